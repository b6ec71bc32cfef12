package up

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// # Payloads
//
// A payload over MaxInlineBytes goes to the write plane over HTTP, in its turn. The edge
// first asks for leave over its own connection to the streams, where nobody else can
// speak for it: on ingest.grant.<edge>, JSON, see GrantRequest. The answer is a token for
// this one object, which the edge then sends with
//
//	PUT <write plane>/internal/v1/ingest/payloads/<key>      Authorization: Bearer <token>
//
// 204 says that the object lasts. Repeating it replaces the object by itself.

// PayloadPath is where payloads are put; the key follows.
const PayloadPath = "/internal/v1/ingest/payloads/"

// GrantSubjects is where edges ask for leave to upload.
const GrantSubjects = "ingest.grant.*"

// GrantSubject is where an edge asks.
func GrantSubject(edge string) string { return "ingest.grant." + edge }

// PayloadPrefix begins the keys of an edge's payloads.
func PayloadPrefix(edge string) string { return "ingest/" + edge + "/" }

// GrantRequest asks for leave to put one object.
type GrantRequest struct {
	Key    string `json:"key"`
	Size   int64  `json:"size"`
	SHA256 string `json:"sha256"` // hex
}

// GrantReply has either a token or the reason why there is none.
type GrantReply struct {
	Token string `json:"token,omitempty"`
	Error string `json:"error,omitempty"`
}

// Uploader puts payloads into the centre's blob store. It is safe for use by several
// goroutines.
type Uploader struct {
	edge string
	base string
	nc   *nats.Conn
	http *http.Client
	// stall is how long the write plane may take nothing of a payload.
	stall time.Duration
}

const (
	grantTimeout  = 5 * time.Second
	uploadStall   = time.Minute
	answerTimeout = time.Minute
)

// NewUploader returns an Uploader to the write plane at the base URL. The connection
// stays the caller's.
func NewUploader(edge, writePlane string, nc *nats.Conn) (*Uploader, error) {
	base, err := url.Parse(writePlane)
	if err != nil || base.Host == "" || (base.Scheme != "http" && base.Scheme != "https") {
		return nil, fmt.Errorf("address of the write plane %q is no http URL", writePlane)
	}
	return &Uploader{edge: edge, base: strings.TrimSuffix(writePlane, "/"), nc: nc, stall: uploadStall, http: &http.Client{
		Transport:     &http.Transport{MaxIdleConnsPerHost: 2, IdleConnTimeout: 30 * time.Second, ResponseHeaderTimeout: answerTimeout},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

// Close lets go of idle connections.
func (u *Uploader) Close() { u.http.CloseIdleConnections() }

// Upload puts size bytes of r, whose SHA-256 is sum, under the key. A write plane that
// stops taking them gives a fault: the lane waits here, and behind the same address
// another process may be alive.
func (u *Uploader) Upload(ctx context.Context, key string, size int64, sum [32]byte, r io.Reader) error {
	token, err := u.grant(ctx, GrantRequest{Key: key, Size: size, SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		return fmt.Errorf("ask for leave to upload: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pace := pacer{r: r, stall: u.stall, timer: time.AfterFunc(u.stall, func() {
		cancel(fmt.Errorf("the write plane took nothing for %s", u.stall))
	})}
	defer pace.timer.Stop()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, u.base+PayloadPath+key, &pace)
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	req.ContentLength = size
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("Content-Type", "application/json")
	res, err := u.http.Do(req)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	if err != nil {
		return fmt.Errorf("upload: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusNoContent {
		said, _ := io.ReadAll(io.LimitReader(res.Body, 200))
		return fmt.Errorf("upload: status %d: %s", res.StatusCode, said)
	}
	return nil
}

// pacer yields r and puts the timer off each time it is asked for more. Behind the end it
// is the client's own timeout that waits for the answer.
type pacer struct {
	r     io.Reader
	stall time.Duration
	timer *time.Timer
}

func (p *pacer) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if err != nil {
		p.timer.Stop()
	} else {
		p.timer.Reset(p.stall)
	}
	return n, err
}

func (u *Uploader) grant(ctx context.Context, ask GrantRequest) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, grantTimeout)
	defer cancel()
	data, err := json.Marshal(ask)
	if err != nil {
		return "", err
	}
	m, err := u.nc.RequestWithContext(ctx, GrantSubject(u.edge), data)
	if err != nil {
		return "", err
	}
	var reply GrantReply
	if err := json.Unmarshal(m.Data, &reply); err != nil {
		return "", err
	}
	if reply.Token == "" {
		return "", errors.New("refused: " + reply.Error)
	}
	return reply.Token, nil
}
