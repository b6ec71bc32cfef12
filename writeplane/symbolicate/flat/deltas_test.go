package flat_test

import (
	"testing"

	"skerry/writeplane/symbolicate/flat"
)

// 300 is ac 02 in groups of seven bits, the lowest first; zigzag makes 1 of -1 and 4 of 2.
func TestDeltasReadUntilTheyBreak(t *testing.T) {
	t.Parallel()
	d := flat.NewDeltas([]byte{0xac, 0x02, 0x01, 0x04})
	if u, a, b := d.Uvarint(), d.Varint(), d.Varint(); u != 300 || a != -1 || b != 2 || d.Broken() {
		t.Errorf("%d %d %d broken %t, want 300 -1 2", u, a, b, d.Broken())
	}
	if u, v := d.Uvarint(), d.Varint(); u != 0 || v != 0 || !d.Broken() {
		t.Errorf("past the end: %d %d broken %t, want 0 0 true", u, v, d.Broken())
	}
	// A number without its last byte.
	d = flat.NewDeltas([]byte{0x07, 0x80})
	if u, v := d.Uvarint(), d.Uvarint(); u != 7 || v != 0 || !d.Broken() {
		t.Errorf("broken off: %d %d broken %t, want 7 0 true", u, v, d.Broken())
	}
}
