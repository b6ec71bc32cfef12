package relay

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/front"
)

// upload is a request's body on its way up. The transport may go on reading it in a
// goroutine of its own after it has returned the answer; fasthttp's stream must not be
// touched after the handler. So reading is under a lock, and stop ends it.
type upload struct {
	ctx   *fasthttp.RequestCtx
	moved func() // is told when a part has passed

	mu   sync.Mutex
	from io.Reader
	left int   // bytes to come; negative: unknown
	end  error // why no more can be read; io.EOF: all was read

	whole atomic.Bool // end is io.EOF; known without the lock, which a read holds as long as it waits for the client
}

var errStopped = errors.New("the answer came first")

// newUpload returns nil for a request without a body.
func newUpload(ctx *fasthttp.RequestCtx, moved func()) *upload {
	stream := ctx.RequestBodyStream()
	if stream == nil {
		return nil
	}
	u := &upload{ctx: ctx, moved: moved, from: stream, left: ctx.Request.Header.ContentLength()}
	if u.left == 0 {
		u.end = io.EOF
		u.whole.Store(true)
	}
	return u
}

func (u *upload) Read(p []byte) (int, error) {
	u.moved() // whoever asks for more has sent what there was
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.end != nil {
		return 0, u.end
	}
	n, err := u.from.Read(p)
	if u.left > 0 {
		// The last byte is the end: the answer may come before anybody asks for more.
		if u.left -= n; u.left == 0 {
			err = io.EOF
		}
	}
	if err == io.EOF && (u.left > 0 || front.CutOff(u.ctx)) {
		err = io.ErrUnexpectedEOF // or the write plane would take it for whole
	}
	u.end = err
	if err == io.EOF {
		u.whole.Store(true)
	}
	return n, err
}

// Close is the transport's; the stream is fasthttp's to close.
func (u *upload) Close() error { return nil }

// ended tells whether the body was read to its end. It does not wait for a read that
// waits for the client.
func (u *upload) ended() bool { return u == nil || u.whole.Load() }

// fault is why the client's body could not be read, nil when it could so far. A read that
// still waits has not failed.
func (u *upload) fault() error {
	if u == nil || !u.mu.TryLock() {
		return nil
	}
	defer u.mu.Unlock()
	if u.end == io.EOF {
		return nil
	}
	return u.end
}

// stop ends the reading. A read that waits for the client is woken by a deadline in
// the past.
func (u *upload) stop(ctx *fasthttp.RequestCtx) {
	if u == nil {
		return
	}
	if !u.mu.TryLock() {
		_ = ctx.Conn().SetReadDeadline(time.Unix(1, 0)) // if it fails, the connection is gone and the read ends too
		u.mu.Lock()
	}
	defer u.mu.Unlock()
	if u.end == nil {
		u.end = errStopped
	}
}
