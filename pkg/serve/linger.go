package serve

import (
	"io"
	"net/http"
	"strings"
	"time"
)

// How long, and how much of it, the rest of a body is read for the sake of a client
// that has not looked for its answer yet.
const (
	lingerTime  = 30 * time.Second
	lingerBytes = 1 << 30
)

// Linger lets a client that is still sending hear an answer that came early, such as a
// refusal of an upload for its token. Without it the connection is closed with bytes
// unread, and the reset that follows can destroy the answer on its way: many clients
// look for it only after their last byte.
//
// A client that waits for 100 Continue is not asked to send what nobody reads.
func Linger(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		body := &watchedBody{ReadCloser: r.Body}
		inner := *r // the server goes by its own request's body
		inner.Body = body
		next.ServeHTTP(w, &inner)
		waits := strings.EqualFold(r.Header.Get("Expect"), "100-continue") && !body.begun
		if body.ended || waits {
			return
		}
		response := http.NewResponseController(w)
		if response.Flush() != nil || response.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
			return
		}
		_, _ = io.CopyN(io.Discard, body, lingerBytes) // what fails here ends the connection, as it would have
	})
}

// watchedBody knows how far a request's body was read. Closing it is left to the
// server, which does so when the request is over.
type watchedBody struct {
	io.ReadCloser
	begun, ended bool
}

// Read implements io.Reader.
func (b *watchedBody) Read(p []byte) (int, error) {
	b.begun = true
	n, err := b.ReadCloser.Read(p)
	b.ended = b.ended || err != nil
	return n, err
}

// Close implements io.Closer.
func (*watchedBody) Close() error { return nil }
