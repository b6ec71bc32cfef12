package event

import (
	"errors"
	"io"
	"unicode/utf8"
)

// scanner walks over one JSON text, in memory or through a window that
// slides over a stream.
//
// The usual body is in memory whole: src is nil and buf is the body. Otherwise buf is a
// window of fixed capacity and more moves it. Indexes into buf change whenever more is
// called, so places are kept as offsets from the body's start (off), and turned into
// slices at the last moment (text).
//
// Two things can hold bytes in the window: hold, the start of a token that is being read,
// and mark, the start of the payload that is being read. When the window is full, the
// payload gives way first: it spills, that is, its bytes go to spill as the window moves
// on. Then an overlong token.
type scanner struct {
	src  io.Reader
	buf  []byte
	pos  int   // next byte
	base int64 // offset of buf[0]

	valid int // bytes of buf that are known to be UTF-8
	depth int
	seen  byte // seenEscape, seenNUL, seenLone: what the strings since the last reset held

	hold     int64 // offset, -1: none
	overlong bool  // the held token did not fit
	mark     int64 // offset of the payload's start, -1: none
	end      int64 // offset of the payload's end, -1: still inside
	teed     int64 // spilling: offset up to which spill has the payload; -1: not spilling
	spill    func([]byte) error
	spilled  func() // called before the first piece is spilled: slices into buf are about to die
	err      error
}

const (
	seenEscape = 1 << iota
	seenNUL
	seenLone
)

// errSyntax is any fault of the text itself.
var errSyntax = errors.New("syntax")

func (s *scanner) reset(src io.Reader, buf []byte) {
	*s = scanner{src: src, buf: buf, hold: -1, mark: -1, end: -1, teed: -1, spill: s.spill, spilled: s.spilled}
	if src == nil && !utf8.Valid(buf) {
		s.err = errSyntax
	}
}

func (s *scanner) off() int64 { return s.base + int64(s.pos) }

// text is the bytes of [from, to), which must still be in the window.
func (s *scanner) text(from, to int64) []byte {
	return s.buf[from-s.base : to-s.base : to-s.base]
}

// more makes at least one byte available at pos. It is false at the end of the body
// or after a fault.
func (s *scanner) more() bool {
	if s.src == nil || s.err != nil {
		return false
	}
	for {
		lo := s.floor()
		if lo > 0 {
			if !s.slide(lo) {
				return false
			}
			break
		}
		if len(s.buf) < cap(s.buf) {
			break
		}
		s.giveWay()
	}
	return s.read()
}

// floor is the first index of buf that is still needed.
func (s *scanner) floor() int {
	lo := min(s.pos, s.valid)
	if s.hold >= 0 {
		lo = min(lo, int(s.hold-s.base))
	}
	if s.mark >= 0 {
		lo = min(lo, int(s.mark-s.base))
	}
	return lo
}

// giveWay releases what fills the window.
func (s *scanner) giveWay() {
	if s.mark >= 0 {
		s.spilled()
		s.teed, s.mark = s.mark, -1
		return
	}
	s.hold, s.overlong = -1, true
}

// slide drops the first lo bytes of the window.
func (s *scanner) slide(lo int) bool {
	if s.teed >= 0 && !s.tee(s.base+int64(lo)) {
		return false
	}
	n := copy(s.buf, s.buf[lo:])
	s.buf = s.buf[:n]
	s.pos, s.valid, s.base = s.pos-lo, s.valid-lo, s.base+int64(lo)
	return true
}

// tee spills the payload up to the offset.
func (s *scanner) tee(to int64) bool {
	if s.end >= 0 {
		to = min(to, s.end)
	}
	if to <= s.teed {
		return true
	}
	if err := s.spill(s.text(s.teed, to)); err != nil {
		s.err = err
		return false
	}
	s.teed = to
	return true
}

// read fills the window's free part once and checks the new bytes.
func (s *scanner) read() bool {
	for empty := 0; ; empty++ {
		n, err := s.src.Read(s.buf[len(s.buf):cap(s.buf)])
		s.buf = s.buf[:len(s.buf)+n]
		if n > 0 {
			s.err = err
			return s.checkUTF8()
		}
		if err == nil && empty > 100 {
			err = io.ErrNoProgress
		}
		if err != nil {
			s.err = err
			return false
		}
	}
}

// checkUTF8 validates what was read; an unfinished character at the end waits
// for the next read.
func (s *scanner) checkUTF8() bool {
	fresh := s.buf[s.valid:]
	tail := len(fresh)
	for i := 1; i <= min(utf8.UTFMax-1, len(fresh)); i++ {
		if b := fresh[len(fresh)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(fresh[len(fresh)-i:]) {
				tail = len(fresh) - i
			}
			break
		}
	}
	if !utf8.Valid(fresh[:tail]) {
		s.err = errSyntax
		return false
	}
	s.valid += tail
	return true
}

// fault is the reason why scanning failed: the stream's or the sink's own error,
// else the text's.
func (s *scanner) fault() error {
	if s.err != nil && s.err != io.EOF {
		return s.err
	}
	return errSyntax
}
