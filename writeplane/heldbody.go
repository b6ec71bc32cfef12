package writeplane

import (
	"io"
	"time"
)

// heldBody is the body of a caller who was admitted before it came. A body may take as long
// as it likes, and whoever is about to lose their rights could begin requests and end them
// long afterwards; so whoever still sends is admitted anew, again and again. It is read by
// one goroutine.
type heldBody struct {
	io.ReadCloser
	lasts   time.Duration // how long an admission holds
	since   time.Time     // of the latest
	again   func() error
	whole   func() error // called once, before the body's end is told; may take its time
	refused error        // why the body ended, when the caller was not admitted again
}

// Read implements io.Reader.
func (b *heldBody) Read(p []byte) (int, error) {
	if b.refused != nil {
		return 0, b.refused
	}
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF && b.whole != nil {
		b.refused, b.whole = b.whole(), nil
	}
	if b.refused == nil && time.Since(b.since) >= b.lasts {
		b.refused, b.since = b.again(), time.Now()
	}
	if b.refused != nil {
		return 0, b.refused
	}
	return n, err
}
