package hostile

import (
	"bytes"
	"compress/gzip"
	"io"
	"strings"
	"testing"
	"time"
)

func TestBombUnpacksToAGigabyte(t *testing.T) {
	t.Parallel()
	if testing.Short() || raced {
		t.Skip("packs and unpacks a gigabyte")
	}
	packed, err := bomb()
	if err != nil {
		t.Fatal(err)
	}
	if len(packed) > 2<<20 {
		t.Errorf("a bomb of %d bytes", len(packed))
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	if n, err := io.Copy(io.Discard, z); err != nil || n < 1<<30 {
		t.Errorf("unpacks to %d bytes: %v", n, err)
	}
}

func TestEveryDisguiseHidesTheWholeRequest(t *testing.T) {
	t.Parallel()
	const inner = "POST /inner HTTP/1.1\r\n\r\n"
	names := map[string]bool{}
	for _, d := range disguises {
		if names[d.name] {
			t.Errorf("two disguises are called %q", d.name)
		}
		names[d.name] = true
		if whole := d.make("POST /outer HTTP/1.1\r\nHost: edge\r\n", inner); !strings.Contains(whole, inner) || !strings.HasPrefix(whole, "POST /outer") {
			t.Errorf("%s: %q", d.name, whole)
		}
	}
}

func TestConfigNamesTheFlagThatIsWrong(t *testing.T) {
	t.Parallel()
	for _, c := range []Config{{Length: time.Hour}, {Attacks: []string{"kindness"}}} {
		if c.Validate() == nil {
			t.Errorf("%+v passes", c)
		}
	}
}
