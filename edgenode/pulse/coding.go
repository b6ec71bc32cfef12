package pulse

import (
	"bytes"
	"io"
	"sync"
	"sync/atomic"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

// coding is a content coding of HTTP.
type coding uint8

// The codings, best first for small JSON: at equal rank of the client's, brotli's
// built-in dictionary makes it the smallest.
const (
	br coding = iota
	zst
	gz
	codings
	identity = codings
)

// names of the codings, as headers have them.
var names = [codings][]byte{br: []byte("br"), zst: []byte("zstd"), gz: []byte("gzip")}

// accepted is the best coding that an Accept-Encoding header admits. It does not
// allocate. Preferences by q are not weighed, only q=0 excludes.
func accepted(header []byte) coding {
	best := identity
	for len(header) > 0 {
		var item []byte
		item, header, _ = bytes.Cut(header, []byte{','})
		name, params, _ := bytes.Cut(item, []byte{';'})
		name = bytes.TrimSpace(name)
		for c := br; c < best; c++ {
			if bytes.EqualFold(name, names[c]) && !refused(params) {
				best = c
			}
		}
	}
	return best
}

// refused reports whether a weight is 0: "q=0", "q=0.0" and the like.
func refused(params []byte) bool {
	_, q, weighed := bytes.Cut(params, []byte{'='})
	return weighed && len(bytes.Trim(q, "0. \t")) == 0
}

// minCoded is the size in bytes below which coding saves no packet.
const minCoded = 1024

// page is one rendered body with its coded forms beside it, each made when it is
// first asked for and kept as long as the page.
type page struct {
	body  []byte
	forms [codings]form
}

// form is one coding of a page. ready is set behind body; body is nil when the coding
// does not make the page smaller.
type form struct {
	ready atomic.Bool
	mu    sync.Mutex
	body  []byte
}

func newPage(body []byte) *page { return &page{body: body} }

func (p *page) weight() int { return 2 * len(p.body) }

// coded is the page in the coding, or as it is where the coding does not pay. Many
// may ask at once; one works.
func (p *page) coded(c coding) (body []byte, as coding) {
	if c == identity || len(p.body) < minCoded {
		return p.body, identity
	}
	f := &p.forms[c]
	if !f.ready.Load() {
		p.encode(f, c)
	}
	if f.body == nil {
		return p.body, identity
	}
	return f.body, c
}

func (p *page) encode(f *form, c coding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ready.Load() {
		return
	}
	if body := encode(c, p.body); len(body) < len(p.body) {
		f.body = body
	}
	f.ready.Store(true)
}

// brotliLevel: higher ones take some tens of times as long on the largest bundle for
// a few percent less.
const brotliLevel = 6

func encode(c coding, body []byte) []byte {
	var out bytes.Buffer
	var w io.WriteCloser
	switch c {
	case br:
		w = brotli.NewWriterLevel(&out, brotliLevel)
	case zst:
		encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedBetterCompression))
		if err != nil {
			panic("BUG: zstd refuses its options: " + err.Error())
		}
		return encoder.EncodeAll(body, nil)
	case gz:
		encoder, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
		if err != nil {
			panic("BUG: gzip refuses its level: " + err.Error())
		}
		w = encoder
	}
	_, _ = w.Write(body) // into memory: cannot fail
	_ = w.Close()
	return out.Bytes()
}
