package access

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// ration bounds how often an issuer's documents are fetched. A token with an unknown
// `kid` makes go-oidc fetch the issuer's keys, and anybody can write such tokens: without
// a bound, strangers would have this plane call the issuer as often as they call it.
//
// A few fetches may follow each other at once, so that keys which rotate are known at
// once; then one is allowed every rationEvery. In between the last good answer is given
// again, or, when there is none, an error, which is a 503 and no verdict on the token.
type ration struct {
	next http.RoundTripper

	mu   sync.Mutex
	kept map[string]*rationed // by URL: of the discovery and of the keys; not of those that an issuer redirects to
}

type rationed struct {
	left     int       // fetches allowed now
	refilled time.Time // the time up to which refills have been added to left
	header   http.Header
	body     []byte // of the last good answer; nil: none yet
}

const (
	rationBurst = 5
	rationEvery = 10 * time.Second
	// maxIssuerDocument bounds a discovery or key document, and whatever comes instead.
	maxIssuerDocument = 1 << 20
)

var (
	errRationed = errors.New("fetched too often, and there is no earlier answer")
	errTooLong  = errors.New("the issuer's document is too long")
)

func newRation(next http.RoundTripper) *ration {
	return &ration{next: next, kept: make(map[string]*rationed)}
}

// RoundTrip implements http.RoundTripper for the GETs of discovery and keys. Redirects
// belong to the fetch that they answer: an issuer may give others every time.
func (r *ration) RoundTrip(req *http.Request) (*http.Response, error) {
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	url := first.URL.String()
	if first == req {
		header, body, allowed := r.take(url)
		if !allowed && body == nil {
			return nil, errRationed
		}
		if !allowed {
			return answered(req, http.StatusOK, header, body), nil
		}
	}
	resp, err := r.next.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxIssuerDocument+1))
	if err == nil && len(body) > maxIssuerDocument {
		err = errTooLong
	}
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		r.mu.Lock()
		r.kept[url].header, r.kept[url].body = resp.Header, body
		r.mu.Unlock()
	}
	return answered(req, resp.StatusCode, resp.Header, body), nil
}

// take uses up one fetch of a URL, if one is left; the last good answer comes with it.
func (r *ration) take(url string) (header http.Header, body []byte, allowed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	k := r.kept[url]
	if k == nil {
		k = &rationed{left: rationBurst, refilled: now}
		r.kept[url] = k
	}
	if more := int(now.Sub(k.refilled) / rationEvery); more > 0 {
		k.left = min(k.left+more, rationBurst)
		k.refilled = k.refilled.Add(time.Duration(more) * rationEvery)
	}
	if k.left == 0 {
		return k.header, k.body, false
	}
	k.left--
	return k.header, k.body, true
}

func answered(req *http.Request, status int, header http.Header, body []byte) *http.Response {
	return &http.Response{
		Status: fmt.Sprint(status, " ", http.StatusText(status)), StatusCode: status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header.Clone(), Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Request: req,
	}
}
