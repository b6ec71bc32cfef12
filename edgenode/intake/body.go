package intake

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/andybalholm/brotli"
	kgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/valyala/fasthttp"

	"skerry/edgenode/front"
	"skerry/pkg/crash"
	"skerry/pkg/event"
)

var (
	errTooLarge = errors.New("body is too large")
	errEncoding = errors.New("unknown content encoding")
	errBusy     = errors.New("too many large requests at once")
)

const (
	// inMemory is the largest body that is read whole; a larger one is checked in a
	// window and spooled.
	inMemory = 1 << 20
	// free is the largest body that takes nothing of the memory budget: the server's own
	// buffers are as large.
	free = 64 << 10
	// What a streamed request holds: the part that was read ahead, the parser's window
	// and four unfinished blocks, of which one may hold an operation of half a megabyte.
	streamCost = inMemory + event.WindowBytes + 2<<20
)

// coding is a content encoding that is understood.
type coding uint8

const (
	identity coding = iota
	gzipped
	zstandard
	brotlied
	codings
)

// costs is the memory of a decoder: its window, mostly. That of brotli is as large as its
// sender says, up to 16 MiB, and every decoder has to take that.
var costs = [codings]int64{gzipped: 64 << 10, zstandard: maxZstdWindow + 1<<20, brotlied: 18 << 20}

// maxZstdWindow is what every decoder has to understand, after RFC 8878.
const maxZstdWindow = 8 << 20

func codingOf(ctx *fasthttp.RequestCtx) (coding, error) {
	name := ctx.Request.Header.Peek("Content-Encoding")
	if len(name) > 0 && len(ctx.Request.Header.PeekAll("Content-Encoding")) > 1 {
		return identity, errEncoding // two lines mean the same as two names in one
	}
	switch string(bytes.ToLower(bytes.TrimSpace(name))) {
	case "", "identity":
		return identity, nil
	case "gzip", "x-gzip":
		return gzipped, nil
	case "zstd":
		return zstandard, nil
	case "br":
		return brotlied, nil
	}
	return identity, errEncoding
}

// body reads a request's body: as it comes, bounded, decoded, bounded again.
type body struct {
	m      *Module
	coding coding
	scope  scope
	taken  []*claim // of the memory budget
	raw    raw
	first  []byte    // bytes as they came, before there was memory for more; the slice is reused
	src    io.Reader // first and then raw, or raw alone
	dec    io.Reader // decoder over src, or nil
	give   func()    // returns the decoder to its pool
	plain  int64     // decoded bytes
}

// How a body is decoded.
const (
	inPieces = false
	asOne    = true
)

// scope is for whom a body is read, and how.
type scope struct {
	project string
	whole   bool // it is a crash report, which is decoded as one
}

func (b *body) begin(m *Module, ctx *fasthttp.RequestCtx, scope scope) error {
	c, err := codingOf(ctx)
	if err != nil {
		return err
	}
	length, most := int64(ctx.Request.Header.ContentLength()), m.cfg.MaxBodyBytes
	if scope.whole {
		most = min(most, crash.MaxBodyBytes)
	}
	if length > most {
		return errTooLarge
	}
	*b = body{m: m, coding: c, scope: scope, taken: b.taken[:0], first: b.first[:0], raw: raw{ctx: ctx, src: ctx.RequestBodyStream(), length: length, most: most}}
	if b.raw.src == nil {
		b.raw.src = bytes.NewReader(ctx.Request.Body())
	}
	b.src = &b.raw
	if c != identity || length < 0 || length > free {
		if err := b.claim(); err != nil {
			return err
		}
	}
	b.dec, b.give = m.coders.open(c, b.src)
	return nil
}

// claim takes what the request needs of the memory budget, and waits for it. A sender who
// is slow to begin holds nothing meanwhile: the first bytes are there before, and with a
// small body all of them are.
func (b *body) claim() error {
	if err := b.readFirst(); err != nil {
		return err
	}
	length := b.raw.length
	if b.raw.done {
		length = b.raw.read
	}
	cost := costs[b.coding]
	switch {
	case b.sized() && length > free:
		cost = wholeCost * length
	case length < 0 || length > inMemory || b.coding != identity: // of a few bytes megabytes can come
		cost += streamCost
	case length > free:
		cost += 2 * length
	}
	if cost > 0 && !b.take(cost, b.m.cfg.Patience) {
		return errBusy
	}
	b.src = io.MultiReader(bytes.NewReader(b.first), &b.raw)
	return nil
}

// wholeCost is how many times as much as its text a body takes that is decoded as one:
// text, decoded form, record, block.
const wholeCost = 4

// sized tells whether a body that is decoded as one says beforehand what it takes.
func (b *body) sized() bool { return b.scope.whole && b.coding == identity && b.raw.length >= 0 }

// take takes so much of the memory budget. When others need it more while the body is
// still to come, its reading ends.
func (b *body) take(n int64, patience time.Duration) bool {
	ctx := b.raw.ctx
	c := newClaim(n, b.scope.project, b.m.cfg.Gate.ClientIP(ctx), func() {
		_ = ctx.Conn().SetReadDeadline(time.Unix(1, 0)) // if it fails, the connection is gone and the read ends too
	})
	if !b.m.memory.take(c, patience, ctx.Done()) {
		return false
	}
	b.taken = append(b.taken, c)
	b.raw.come = &b.taken[0].come
	return true
}

// yielded tells whether the request had to give its memory up.
func (b *body) yielded() bool {
	return slices.ContainsFunc(b.taken, func(c *claim) bool { return c.yielded.Load() })
}

// readFirst reads the body to its end, or the part of it that is free.
func (b *body) readFirst() error {
	for len(b.first) < free {
		if len(b.first) == cap(b.first) {
			b.first = append(make([]byte, 0, min(max(2*cap(b.first), 8<<10), free)), b.first...)
		}
		n, err := b.raw.Read(b.first[len(b.first):min(cap(b.first), free)])
		b.first = b.first[:len(b.first)+n]
		switch err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
	return nil
}

func (b *body) end() {
	if b.give != nil {
		b.give()
		b.give = nil
	}
	for _, c := range b.taken {
		b.m.memory.give(c)
	}
	clear(b.taken)
	b.taken = b.taken[:0]
}

// Read yields decoded bytes. Faults of the coding are event.ErrBody.
func (b *body) Read(p []byte) (int, error) {
	src := b.dec
	if src == nil {
		src = b.src
	}
	n, err := src.Read(p)
	b.plain += int64(n)
	switch {
	case b.raw.err != nil && b.yielded():
		return n, errBusy
	case b.raw.err != nil:
		return n, b.raw.err
	case b.plain > b.m.cfg.MaxBodyBytes:
		return n, errTooLarge
	case err != nil && err != io.EOF:
		return n, event.ErrBody
	}
	return n, err
}

// drain reads what is left, so that the sender, who is still sending, gets the answer.
func (b *body) drain() {
	if b.raw.src != nil && b.raw.err == nil && !b.raw.done {
		_, _ = io.Copy(io.Discard, &b.raw) // whatever ends it, ends it
	}
}

// raw is the body as it comes over the connection.
type raw struct {
	ctx    *fasthttp.RequestCtx
	src    io.Reader
	length int64 // announced, or negative
	most   int64 // what is more is too large
	read   int64
	come   *atomic.Int64 // counts what is read, when somebody wants to know
	done   bool
	err    error // the connection's, or errTooLarge
}

func (r *raw) Read(p []byte) (int, error) {
	if r.err != nil {
		return 0, r.err
	}
	if r.done {
		return 0, io.EOF
	}
	n, err := r.src.Read(p)
	r.read += int64(n)
	if r.come != nil {
		r.come.Add(int64(n))
	}
	switch {
	case r.read > r.most:
		r.err = errTooLarge
	case err == io.EOF && (r.read < r.length || front.CutOff(r.ctx)):
		r.err = event.ErrBody // cut off; nobody is left to hear it
	case err == io.EOF:
		r.done = true
		front.Consumed(r.ctx)
	case err != nil:
		r.err = event.ErrBody
	}
	if r.err != nil {
		return n, r.err
	}
	return n, err
}

// decoders keeps decoders for reuse: making one costs more than decoding a usual body.
type decoders struct{ gzip, zstd, brotli sync.Pool }

// open returns a decoder of src, nil for none, and what to do with it afterwards.
func (d *decoders) open(c coding, src io.Reader) (io.Reader, func()) {
	switch c {
	case gzipped:
		z, ok := d.gzip.Get().(*kgzip.Reader)
		if !ok {
			z = new(kgzip.Reader)
		}
		return &lazyGzip{z: z, src: src}, func() { d.gzip.Put(z) }
	case zstandard:
		z, ok := d.zstd.Get().(*zstd.Decoder)
		if !ok {
			var err error
			z, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
				zstd.WithDecoderMaxWindow(maxZstdWindow), zstd.WithDecoderMaxMemory(maxZstdWindow))
			if err != nil {
				panic("BUG: options of the zstd decoder: " + err.Error())
			}
		}
		if err := z.Reset(src); err != nil {
			return faulty{err}, func() {}
		}
		return z, func() {
			_ = z.Reset(nil) // forgets the source
			d.zstd.Put(z)
		}
	case brotlied:
		z, ok := d.brotli.Get().(*brotli.Reader)
		if !ok {
			z = brotli.NewReader(nil)
		}
		if err := z.Reset(src); err != nil {
			return faulty{err}, func() {}
		}
		return z, func() { d.brotli.Put(z) }
	}
	return nil, nil
}

type faulty struct{ err error }

func (f faulty) Read([]byte) (int, error) { return 0, f.err }

// lazyGzip reads the header at the first Read, where its fault can be told.
type lazyGzip struct {
	z     *kgzip.Reader
	src   io.Reader
	begun bool
}

func (l *lazyGzip) Read(p []byte) (int, error) {
	if !l.begun {
		l.begun = true
		if err := l.z.Reset(l.src); err != nil {
			if err == io.EOF {
				err = gzip.ErrHeader // an empty body is no gzip
			}
			return 0, err
		}
	}
	return l.z.Read(p)
}
