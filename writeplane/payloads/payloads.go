// Package payloads takes the payloads of ingested operations that are too large to travel
// in a message, from edges into the blob store.
//
// It promises: only an edge can put an object, only under its own prefix, only the bytes
// it has announced; an object is there whole and lasting, or not at all. It does not read
// what is inside.
package payloads

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/nats-io/nats.go"

	"skerry/pkg/problem"
	"skerry/pkg/seal"
	"skerry/replication/up"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
)

const (
	// MaxBytes bounds one payload: the largest body that an edge takes, with room to
	// spare.
	MaxBytes = 512 << 20

	purpose = "ingest payload"
	validIn = 10 * time.Minute
	queue   = "payloads" // one process of the plane answers
)

// errToken is the answer to a token that does not hold for this object.
var errToken = problem.New(problem.Unauthorized, "invalid_token")

// Module answers edges. Its methods may be called concurrently.
type Module struct {
	blobs  *blobs.Store
	sealer *seal.Sealer
	nc     *nats.Conn
}

// New returns a Module. Tokens are sealed with a key that all processes of the plane share.
func New(store *blobs.Store, sealer *seal.Sealer, nc *nats.Conn) *Module {
	return &Module{blobs: store, sealer: sealer, nc: nc}
}

// grant is the content of a token.
type grant struct {
	up.GrantRequest
	Expires time.Time `json:"expires"`
}

// Run answers edges that ask for upload tokens until ctx ends.
func (m *Module) Run(ctx context.Context) error {
	sub, err := m.nc.QueueSubscribe(up.GrantSubjects, queue, func(msg *nats.Msg) {
		var reply up.GrantReply
		token, err := m.grant(msg.Subject, msg.Data)
		if reply.Token = token; err != nil {
			reply.Error = err.Error()
		}
		data, err := json.Marshal(reply)
		if err != nil {
			panic("BUG: a reply does not marshal: " + err.Error())
		}
		if err := msg.Respond(data); err != nil {
			slog.Debug("grant an upload", "error", err)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe to grants: %w", err)
	}
	<-ctx.Done()
	if err := sub.Unsubscribe(); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		return fmt.Errorf("end grants: %w", err)
	}
	return nil
}

// grant makes a token for what an edge asks. The subject says which edge it is: the
// streams' server lets it use no other.
func (m *Module) grant(subject string, data []byte) (string, error) {
	edge := strings.TrimPrefix(subject, up.GrantSubject(""))
	g := grant{Expires: time.Now().Add(validIn)}
	if err := json.Unmarshal(data, &g.GrantRequest); err != nil {
		return "", errors.New("request not understood")
	}
	sum, err := hex.DecodeString(g.SHA256)
	switch {
	case !strings.HasPrefix(g.Key, up.PayloadPrefix(edge)) || strings.Contains(g.Key, ".."):
		return "", errors.New("key is not of this edge")
	case g.Size < 0 || g.Size > MaxBytes:
		return "", fmt.Errorf("size is not between 0 and %d", MaxBytes)
	case err != nil || len(sum) != sha256.Size:
		return "", errors.New("sha256 is no digest in hex")
	}
	text, err := json.Marshal(g)
	if err != nil {
		return "", err
	}
	return encoded(m.sealer.Seal(purpose, text)), nil
}

func encoded(box []byte) string { return base64.RawURLEncoding.EncodeToString(box) }

// Put serves PUT /internal/v1/ingest/payloads/{key...}: 204 when the object lasts.
func (m *Module) Put(w http.ResponseWriter, r *http.Request, _ *access.Call) error {
	g, ok := m.open(r)
	if !ok {
		return errToken
	}
	if err := m.store(r.Context(), g, http.MaxBytesReader(w, r.Body, g.Size)); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// open reads the request's token, which must hold for the object named in the path.
func (m *Module) open(r *http.Request) (g grant, ok bool) {
	token, found := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	box, err := base64.RawURLEncoding.DecodeString(token)
	if !found || err != nil {
		return g, false
	}
	text, err := m.sealer.Open(purpose, box)
	if err != nil || json.Unmarshal(text, &g) != nil {
		return g, false
	}
	return g, g.Key == r.PathValue("key") && time.Now().Before(g.Expires)
}

func (m *Module) store(ctx context.Context, g grant, body io.Reader) error {
	object, err := m.blobs.Create(ctx, g.Key, "application/json")
	if err != nil {
		return fmt.Errorf("store payload: %w", err)
	}
	defer object.Abort()
	hash := sha256.New()
	n, err := io.Copy(io.MultiWriter(object, hash), body)
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return problem.New(problem.TooLarge, "payload_too_large")
	case err != nil:
		return problem.Newf(problem.Invalid, "invalid_body", "the payload was cut off: %v", err)
	case n != g.Size || hex.EncodeToString(hash.Sum(nil)) != g.SHA256:
		return problem.New(problem.Invalid, "checksum_mismatch")
	}
	if err := object.Close(); err != nil {
		return fmt.Errorf("store payload: %w", err)
	}
	return nil
}
