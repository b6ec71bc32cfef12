package payloads

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"skerry/pkg/natsserver/natstest"
	"skerry/pkg/openapi/openapitest"
	"skerry/pkg/reply"
	"skerry/pkg/seal"
	"skerry/replication/up"
	"skerry/writeplane/blobs"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

type bundle struct {
	*Module
	t     *testing.T
	url   string
	conn  *nats.Conn
	store *blobs.Store
}

func newBundle(t *testing.T) *bundle {
	t.Helper()
	store, err := blobs.Open(t.Context(), blobs.Config{URL: t.TempDir()}, dbtest.New(t).App)
	if err != nil {
		t.Fatal(err)
	}
	sealer, err := seal.New(bytes.Repeat([]byte{1}, seal.KeyLen))
	if err != nil {
		t.Fatal(err)
	}
	ns := natstest.New(t)
	m := New(store, sealer, ns.Connect(t))
	mux := http.NewServeMux()
	mux.HandleFunc("PUT "+up.PayloadPath+"{key...}", func(w http.ResponseWriter, r *http.Request) {
		if err := m.Put(w, r, nil); err != nil {
			reply.Error(w, r, err)
		}
	})
	server := httptest.NewServer(mux)
	ctx, stop := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	wait.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		wait.Wait()
		server.Close()
		_ = store.Close()
	})
	return &bundle{Module: m, t: t, url: server.URL, conn: ns.Connect(t), store: store}
}

func (b *bundle) uploader(edge string) *up.Uploader {
	u, err := up.NewUploader(edge, b.url, b.conn)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(u.Close)
	return u
}

// eventually tries until the responder is there.
func eventually(t *testing.T, f func() error) error {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := f()
		if err == nil || !strings.Contains(err.Error(), "no responders") || time.Now().After(deadline) {
			return err
		}
	}
}

func (b *bundle) content(key string) string {
	r, err := b.store.Open(b.t.Context(), key)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = r.Close() }()
	data, err := io.ReadAll(r)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(data)
}

func TestEdgePutsWhatItAnnounced(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	const key, text = "ingest/e1/0102/event/7", `{"a":1}`
	for range 2 { // an answer that was lost
		err := eventually(t, func() error {
			return b.uploader("e1").Upload(t.Context(), key, int64(len(text)), sha256.Sum256([]byte(text)), strings.NewReader(text))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got := b.content(key); got != text {
		t.Errorf("stored %q", got)
	}
}

func TestWhatIsNotAsAnnouncedIsNotStored(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	const text = `{"a":1}`
	for what, c := range map[string]struct {
		key  string
		size int64
		sum  [32]byte
	}{
		"other bytes":       {"ingest/e1/1", int64(len(text)), sha256.Sum256([]byte("other"))},
		"another edge's":    {"ingest/e2/1", int64(len(text)), sha256.Sum256([]byte(text))},
		"outside":           {"symbols/1", int64(len(text)), sha256.Sum256([]byte(text))},
		"climbing out":      {"ingest/e1/../../symbols/1", int64(len(text)), sha256.Sum256([]byte(text))},
		"too large for all": {"ingest/e1/1", MaxBytes + 1, sha256.Sum256([]byte(text))},
	} {
		err := eventually(t, func() error {
			return b.uploader("e1").Upload(t.Context(), c.key, c.size, c.sum, strings.NewReader(text))
		})
		if err == nil {
			t.Errorf("%s was taken", what)
		}
		if got := b.content(c.key); got == text {
			t.Errorf("%s was stored", what)
		}
	}
}

func TestTokenOpensOneObjectOnly(t *testing.T) {
	t.Parallel()
	b := newBundle(t)
	const text = `{"a":1}`
	sum := sha256.Sum256([]byte(text))
	ask, err := json.Marshal(up.GrantRequest{Key: "ingest/e1/1", Size: int64(len(text)), SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		t.Fatal(err)
	}
	token, err := b.grant("ingest.grant.e1", ask)
	if err != nil {
		t.Fatal(err)
	}
	old, err := json.Marshal(grant{up.GrantRequest{Key: "ingest/e1/1", Size: int64(len(text))}, time.Now().Add(-time.Second)})
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		path, authorization, body string
		status                    int
	}{
		"the object":     {"ingest/e1/1", "Bearer " + token, text, 204},
		"another object": {"ingest/e1/2", "Bearer " + token, text, 401},
		"no token":       {"ingest/e1/2", "", text, 401},
		"no real token":  {"ingest/e1/1", "Bearer " + token[1:], text, 401},
		"expired":        {"ingest/e1/1", "Bearer " + encoded(b.sealer.Seal(purpose, old)), text, 401},
		"more bytes":     {"ingest/e1/1", "Bearer " + token, text + " ", 413},
		"fewer bytes":    {"ingest/e1/1", "Bearer " + token, text[1:], 400},
	} {
		req, err := http.NewRequest(http.MethodPut, b.url+up.PayloadPath+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", c.authorization)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		answer, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		openapitest.Check(t, req.Method, req.URL.Path, res.StatusCode, res.Header, answer)
		if res.StatusCode != c.status {
			t.Errorf("%s: %d, want %d", what, res.StatusCode, c.status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
