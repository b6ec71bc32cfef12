package sourcemap

import "errors"

var (
	errDigit    = errors.New("mappings contain a character that is no base64 digit")
	errCutOff   = errors.New("mappings end within a number")
	errOverflow = errors.New("mappings contain a number of more than 32 bits")
)

const notDigit = 0xff

// digits maps a byte to its base64 value; nothing writes it after its making.
// The loop over it is where the time of a large map goes.
var digits = func() (t [256]byte) {
	for i := range t {
		t[i] = notDigit
	}
	for i, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/") {
		t[c] = byte(i)
	}
	return t
}()

// vlq reads one base64 VLQ number at the start of b and returns how many bytes it
// took. Any number of leading-zero continuation digits is allowed; the value with
// its sign bit must fit 32 bits.
func vlq(b []byte) (value int64, n int, err error) {
	var bits uint64
	for shift := uint(0); ; shift += 5 {
		if n == len(b) {
			return 0, n, errCutOff
		}
		d := digits[b[n]]
		if d == notDigit {
			return 0, n, errDigit
		}
		n++
		part := uint64(d & 31)
		if part != 0 && (shift > 30 || part<<shift > 1<<32-1) {
			return 0, n, errOverflow
		}
		if part != 0 {
			bits |= part << shift
		}
		if d&32 == 0 {
			break
		}
	}
	value = int64(bits >> 1)
	if bits&1 != 0 {
		if value == 0 {
			return -1 << 31, n, nil // negative zero is the one way to write it
		}
		value = -value
	}
	return value, n, nil
}
