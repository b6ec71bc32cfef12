package jsonbody_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"skerry/pkg/jsonbody"
)

func TestHalfASurrogatePairIsRefused(t *testing.T) {
	t.Parallel()
	for text, refused := range map[string]bool{
		`plain`:                     false,
		`\ud83d\ude00`:              false, // one character outside the basic plane
		`\uD83D\uDE00\uD83D\uDE00`:  false,
		`\\ud800`:                   false, // a backslash and five letters
		`\\\\\u00e9\n\ud7ff\ue000`:  false,
		`\ud800`:                    true,
		`\uDC00`:                    true,
		`\ud800\ud800\udc00`:        true,
		`\ud800x`:                   true,
		`\ud800\n`:                  true,
		`\ud800\u0041`:              true,
		`\udc00\ud800`:              true,
		`\ud83d\ude00\udbff`:        true,
		`\\\ud800`:                  true,
		`\ud800\\udc00`:             true,
		strings.Repeat(`\u0041`, 9): false,
	} {
		for place, body := range map[string]string{"value": `{"name":"` + text + `"}`, "name": `{"` + text + `":"name"}`} {
			_, err := jsonbody.Read(httptest.NewRequest("POST", "/", strings.NewReader(body)), 1000)
			if (err != nil) != refused {
				t.Errorf("%s as %s: %v, want refused: %v", text, place, err, refused)
			}
			// In pieces of a byte.
			var s jsonbody.Surrogates
			half, piece, reader := false, make([]byte, 10), iotest.OneByteReader(strings.NewReader(body))
			for {
				n, err := reader.Read(piece)
				half = half || s.Half(piece[:n])
				if err != nil {
					break
				}
			}
			if half != refused {
				t.Errorf("%s as %s in pieces: %v, want %v", text, place, half, refused)
			}
		}
	}
}

// Malformed text is the decoder's to refuse; what follows it is not misread.
func TestMalformedEscapesAreNoHalves(t *testing.T) {
	t.Parallel()
	for _, text := range []string{`{"a":"\uZZZZ"}`, `{"a":"\ud8Zx"}`, `{"a":"\u12`, `\`, `{"a":"\q"}`} {
		if _, err := jsonbody.Read(httptest.NewRequest("POST", "/", strings.NewReader(text)), 1000); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}
