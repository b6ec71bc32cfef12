package native

import (
	"strconv"
	"strings"
	"testing"
)

// A substitution costs three bytes and stands for all that was before it: thirty levels
// of a template would be written in gigabytes.
func TestDemangledNamesAreBounded(t *testing.T) {
	t.Parallel()
	var name strings.Builder
	name.WriteString("_Z1f1A")
	for level := range 24 {
		at := "S_" // the type of the level before: each level adds its template and itself
		if level > 0 {
			at = "S" + strings.ToUpper(strconv.FormatInt(int64(2*level-1), 36)) + "_"
		}
		name.WriteString("1BI" + at + at + "E")
	}
	written := Demangle(name.String())
	if !strings.HasPrefix(written, "f(A, B<A, A>, B<B<A, A>, B<A, A> >") {
		t.Errorf("written %.100s", written)
	}
	if len(written) > maxWritten {
		t.Errorf("%d bytes", len(written))
	}
	if written := Demangle(strings.Repeat("x", 1<<20)); len(written) != maxWritten {
		t.Errorf("a plain name of %d bytes", len(written))
	}
}
