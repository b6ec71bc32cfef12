package page_test

import (
	"errors"
	"net/url"
	"testing"

	"skerry/pkg/page"
)

var signer = page.NewSigner([]byte("0123456789abcdef"))

func TestCursorOpensUnderTheSameFiltersOnly(t *testing.T) {
	t.Parallel()
	filters := url.Values{"kind": {"a"}, "limit": {"10"}}
	cursor := signer.Encode("flags", filters, 42)

	var at int
	ok, err := signer.Decode("flags", url.Values{"kind": {"a"}, "limit": {"20"}, "cursor": {cursor}}, &at)
	if err != nil || !ok || at != 42 {
		t.Fatalf("same filters, other limit: %v %v %d", ok, err, at)
	}
	for name, query := range map[string]url.Values{
		"changed filter": {"kind": {"b"}, "cursor": {cursor}},
		"added filter":   {"kind": {"a"}, "x": {"y"}, "cursor": {cursor}},
		"not base64":     {"kind": {"a"}, "cursor": {"%%%"}},
		"too short":      {"kind": {"a"}, "cursor": {"AAAA"}},
	} {
		if _, err := signer.Decode("flags", query, &at); !errors.Is(err, page.ErrCursor) {
			t.Errorf("%s: %v, want invalid_cursor", name, err)
		}
	}
	if _, err := signer.Decode("surveys", url.Values{"kind": {"a"}, "cursor": {cursor}}, &at); !errors.Is(err, page.ErrCursor) {
		t.Errorf("another list: %v, want invalid_cursor", err)
	}
}

func TestCursorChangedByOneByteIsRefused(t *testing.T) {
	t.Parallel()
	cursor := []byte(signer.Encode("flags", nil, map[string]string{"after": "k"}))
	for i := range cursor {
		altered := append([]byte(nil), cursor...)
		if altered[i]++; altered[i] == cursor[i] {
			continue
		}
		var at map[string]string
		if ok, err := signer.Decode("flags", url.Values{"cursor": {string(altered)}}, &at); ok || !errors.Is(err, page.ErrCursor) {
			t.Errorf("byte %d altered: %v %v, want invalid_cursor", i, ok, err)
		}
	}
}

func TestLimitBounds(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"1": 1, "200": 200} {
		if got, err := page.Limit(url.Values{"limit": {text}}); err != nil || got != want {
			t.Errorf("limit %s: %d %v", text, got, err)
		}
	}
	if got, err := page.Limit(nil); err != nil || got != 50 {
		t.Errorf("absent limit: %d %v, want 50", got, err)
	}
	for _, text := range []string{"0", "201", "-1", "x", "", "1.5"} {
		if _, err := page.Limit(url.Values{"limit": {text}}); !errors.Is(err, page.ErrLimit) {
			t.Errorf("limit %q: %v, want invalid_limit", text, err)
		}
	}
}
