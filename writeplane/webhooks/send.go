package webhooks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"skerry/writeplane/webhooks/target"
)

// How much of what a target says is kept, in bytes.
const (
	responseKept = 16 << 10 // of its response's body; no more is read
	maxFault     = 1000     // of a fault, which may quote its certificate
)

// sender makes the HTTP requests.
type sender struct{ client *http.Client }

func newSender(guard *target.Guard) *sender {
	// Plain http goes through a dialer of its own: it needs a stricter judgement, and
	// DialContext is not told the scheme.
	transport := &http.Transport{
		Proxy:                  nil, // a proxy would connect for us, past the guard
		DialContext:            guard.DialPlain,
		MaxIdleConnsPerHost:    perSubscription,
		MaxIdleConns:           1024,
		IdleConnTimeout:        30 * time.Second,
		TLSHandshakeTimeout:    attemptTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	}
	secure := transport.Clone()
	secure.DialContext = guard.DialContext
	return &sender{client: &http.Client{
		Transport: byScheme{plain: transport, secure: secure},
		// A redirect is an answer like any other: not a success.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// byScheme sends http and https through transports of their own.
type byScheme struct{ plain, secure *http.Transport }

// RoundTrip implements http.RoundTripper.
func (b byScheme) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "https" {
		return b.secure.RoundTrip(r)
	}
	return b.plain.RoundTrip(r)
}

func (s *sender) close() {
	transports, ok := s.client.Transport.(byScheme)
	if ok {
		transports.plain.CloseIdleConnections()
		transports.secure.CloseIdleConnections()
	}
}

// outcome is what came of one attempt.
type outcome struct {
	ok         bool
	status     int    // 0 when there was no response
	fault      string // empty on success
	head       string // of the response's body
	retryAfter time.Duration
}

// letter is a message as one attempt sends it.
type letter struct {
	to      string // URL
	id      string // of the message
	body    []byte
	secrets [][]byte // those that are valid now, newest first
	at      time.Time
}

// send makes one signed attempt. The signature covers the id, the time and the body,
// under each of the secrets (Standard Webhooks).
func (s *sender) send(ctx context.Context, l letter) outcome {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, l.to, bytes.NewReader(l.body))
	if err != nil {
		return outcome{fault: "the target's URL is malformed"}
	}
	signatures := make([]string, len(l.secrets))
	for i, secret := range l.secrets {
		signer, err := standardwebhooks.NewWebhookRaw(secret)
		if err != nil {
			return outcome{fault: "the message could not be signed"}
		}
		if signatures[i], err = signer.Sign(l.id, l.at, l.body); err != nil {
			return outcome{fault: "the message could not be signed"}
		}
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("User-Agent", "Skerry-Webhooks/1")
	request.Header.Set(standardwebhooks.HeaderWebhookID, l.id)
	request.Header.Set(standardwebhooks.HeaderWebhookTimestamp, strconv.FormatInt(l.at.Unix(), 10))
	request.Header.Set(standardwebhooks.HeaderWebhookSignature, strings.Join(signatures, " "))

	response, err := s.client.Do(request)
	if err != nil {
		fault := wordFault(ctx, err)
		return outcome{fault: readable([]byte(fault[:min(len(fault), maxFault)]))}
	}
	defer func() { _ = response.Body.Close() }()
	// The status alone says whether the message was taken; a body that breaks off does
	// not unsay it.
	head, _ := io.ReadAll(io.LimitReader(response.Body, responseKept))
	result := outcome{status: response.StatusCode, head: readable(head), retryAfter: retryAfter(response.Header, l.at)}
	if result.ok = response.StatusCode >= 200 && response.StatusCode <= 299; !result.ok {
		result.fault = fmt.Sprintf("status %d", response.StatusCode)
	}
	return result
}

// wordFault names a connection's fault without the URL, whose query may be a secret.
func wordFault(ctx context.Context, err error) string {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Sprintf("no answer within %s", attemptTimeout)
	}
	var withURL *url.Error
	if errors.As(err, &withURL) {
		err = withURL.Err
	}
	var network *net.OpError
	if errors.As(err, &network) && !errors.Is(err, target.ErrRefused) {
		return fmt.Sprintf("%s: %v", network.Op, network.Err)
	}
	return err.Error()
}

// readable makes bytes of a stranger storable as text: what the database refused would be
// tried again for ever.
func readable(b []byte) string {
	return strings.ReplaceAll(strings.ToValidUTF8(string(b), "\uFFFD"), "\x00", "\uFFFD")
}
