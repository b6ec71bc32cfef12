package blobs

import (
	"context"
	"errors"
	"io"
	"time"

	"gocloud.dev/blob"
)

// A store behind a network may keep a connection and say nothing, for as long as it
// likes. Events are stored in transactions that look for their payloads here: without a
// bound they would hold their locks, and all lanes behind them, as long.

// How long an S3 store may say nothing: silence to whoever reads, deletes or lists, accepting
// while it is given a part of an object, which takes its time on a slow link.
const (
	silence   = 10 * time.Second
	accepting = 2 * time.Minute
)

var errSilent = errors.New("the blob store gives no answer")

// watch ends a context when nothing has come for a while.
type watch struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

// watch begins to wait for an answer; whoever calls it ends it. A folder is not watched:
// nothing hurries the kernel.
func (s *Store) watch(ctx context.Context) *watch {
	w := &watch{}
	w.ctx, w.cancel = context.WithCancelCause(ctx)
	w.timer = time.AfterFunc(s.silence, func() { w.cancel(errSilent) })
	if s.IsFolder() {
		w.timer.Stop()
	}
	return w
}

func (w *watch) end() {
	w.timer.Stop()
	w.cancel(nil)
}

// cause is err, or why it came to that.
func (w *watch) cause(err error) error {
	if err != nil && errors.Is(context.Cause(w.ctx), errSilent) {
		return errSilent
	}
	return err
}

// watchedReader is a Reader that does not wait for ever. How long its user takes between
// two reads does not matter.
type watchedReader struct {
	r       *blob.Reader // no part of the struct's own methods: its WriteTo would pass the watch by
	watch   *watch
	silence time.Duration
}

func (r *watchedReader) Read(p []byte) (int, error) {
	r.watch.timer.Reset(r.silence)
	n, err := r.r.Read(p)
	r.watch.timer.Stop()
	if err == io.EOF {
		return n, err
	}
	return n, r.watch.cause(err)
}

func (r *watchedReader) Seek(offset int64, whence int) (int64, error) {
	return r.r.Seek(offset, whence)
}

func (r *watchedReader) Close() error {
	defer r.watch.end()
	return r.r.Close()
}

func (r *watchedReader) Size() int64        { return r.r.Size() }
func (r *watchedReader) ModTime() time.Time { return r.r.ModTime() }
