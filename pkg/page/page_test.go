package page_test

import (
	"encoding/json"
	"errors"
	"net/url"
	"strconv"
	"testing"

	"skerry/pkg/page"
)

var signer = page.NewSigner([]byte("0123456789abcdef"))

// cursorAt is a cursor of the list "flags" at a position.
func cursorAt(t *testing.T, filters url.Values, position any) string {
	t.Helper()
	window, err := signer.Open(nil, "flags", filters, nil)
	if err != nil {
		t.Fatal(err)
	}
	return *window.Cursor(position)
}

func TestCursorOpensUnderTheSameFiltersOnly(t *testing.T) {
	t.Parallel()
	cursor := cursorAt(t, url.Values{"kind": {"a"}, "limit": {"10"}}, 42)

	var at int
	query := url.Values{"kind": {"a"}, "limit": {"20"}, "cursor": {cursor}}
	if _, err := signer.Open(query, "flags", query, &at); err != nil || at != 42 {
		t.Fatalf("same filters, other limit: %v %d", err, at)
	}
	for name, query := range map[string]url.Values{
		"changed filter": {"kind": {"b"}, "cursor": {cursor}},
		"added filter":   {"kind": {"a"}, "x": {"y"}, "cursor": {cursor}},
		"not base64":     {"kind": {"a"}, "cursor": {"%%%"}},
		"too short":      {"kind": {"a"}, "cursor": {"AAAA"}},
	} {
		if _, err := signer.Open(query, "flags", query, &at); !errors.Is(err, page.ErrCursor) {
			t.Errorf("%s: %v, want invalid_cursor", name, err)
		}
	}
	if _, err := signer.Open(query, "surveys", query, &at); !errors.Is(err, page.ErrCursor) {
		t.Errorf("another list: %v, want invalid_cursor", err)
	}
}

func TestCursorChangedByOneByteIsRefused(t *testing.T) {
	t.Parallel()
	cursor := []byte(cursorAt(t, nil, map[string]string{"after": "k"}))
	for i := range cursor {
		altered := append([]byte(nil), cursor...)
		if altered[i]++; altered[i] == cursor[i] {
			continue
		}
		var at map[string]string
		if _, err := signer.Open(url.Values{"cursor": {string(altered)}}, "flags", nil, &at); !errors.Is(err, page.ErrCursor) || at != nil {
			t.Errorf("byte %d altered: %v %v, want invalid_cursor", i, err, at)
		}
	}
}

func TestLimitIsFrom1To200And50WhenAbsent(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{"1": 1, "200": 200} {
		if got, err := signer.Open(url.Values{"limit": {text}}, "flags", nil, nil); err != nil || got.Limit != want || got.Fetch() != want+1 {
			t.Errorf("limit %s: %d %v", text, got.Limit, err)
		}
	}
	if got, err := signer.Open(nil, "flags", nil, nil); err != nil || got.Limit != 50 {
		t.Errorf("absent limit: %d %v, want 50", got.Limit, err)
	}
	for _, text := range []string{"0", "201", "-1", "x", "", "1.5", "+5", " 5", "５"} {
		if _, err := signer.Open(url.Values{"limit": {text}}, "flags", nil, nil); !errors.Is(err, page.ErrLimit) {
			t.Errorf("limit %q: %v, want invalid_limit", text, err)
		}
	}
}

// Seven rows in pages of three: 3, 3 and 1, each once, in order.
func TestPagesFollowEachOtherWithoutGapOrRepeat(t *testing.T) {
	t.Parallel()
	var seen []int
	query := url.Values{"limit": {"3"}}
	for range 3 {
		after := 0
		window, err := signer.Open(query, "numbers", nil, &after)
		if err != nil {
			t.Fatal(err)
		}
		var rows []int
		for n := after + 1; n <= 7 && len(rows) < window.Fetch(); n++ {
			rows = append(rows, n)
		}
		rows, next := page.Cut(window, rows, func(n int) any { return n })
		seen = append(seen, rows...)
		if next == nil {
			query.Del("cursor")
			break
		}
		query.Set("cursor", *next)
	}
	if len(seen) != 7 || seen[0] != 1 || seen[6] != 7 || query.Has("cursor") {
		t.Errorf("pages gave %v, cursor left %t; want 1 to 7 and none left", seen, query.Has("cursor"))
	}
}

func TestListNamesItsRowsAndWhatFollows(t *testing.T) {
	t.Parallel()
	cursor := "c"
	for want, body := range map[string]any{
		`{"flags":[],"has_more":false,"next_cursor":null}`:      page.List[string]("flags", nil, nil),
		`{"flags":["1","2"],"has_more":true,"next_cursor":"c"}`: page.List("flags", page.Views([]int{1, 2}, strconv.Itoa), &cursor),
	} {
		if got, err := json.Marshal(body); err != nil || string(got) != want {
			t.Errorf("%s, %v; want %s", got, err, want)
		}
	}
}
