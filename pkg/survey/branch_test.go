package survey

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
)

func TestBranchPredicatesHoldWhereTheySay(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("testdata/branching.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct {
		Predicate string
		Answer    json.RawMessage
		Matches   bool
	}
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) == 0 {
		t.Fatalf("%d vectors: %v", len(vectors), err)
	}
	for _, v := range vectors {
		b, err := ParseBranch(v.Predicate)
		if err != nil {
			t.Errorf("%s: %v", v.Predicate, err)
			continue
		}
		if got := b.Matches(ReadAnswer(v.Answer)); got != v.Matches {
			t.Errorf("%s on %s: %v, want %v", v.Predicate, v.Answer, got, v.Matches)
		}
	}
}

func TestMalformedBranchPredicatesNameTheirPlace(t *testing.T) {
	t.Parallel()
	for predicate, pos := range map[string]int{
		``:                           1,
		`   `:                        4,
		`answer`:                     7,
		`answers`:                    1,
		`answer == 3`:                9,
		`answer = `:                  10,
		`answer = 03`:                10,
		`answer = 0x1`:               10,
		`answer = Inf`:               10,
		`answer = 1_0`:               10,
		`answer = 1e999`:             10,
		`answer = "a`:                10,
		`answer = "\q"`:              10,
		`answer = 3 4`:               12,
		`answer = 3 and answer = 4`:  12,
		`answer = 3 AND`:             15,
		`answer in []`:               12,
		`answer in [1,]`:             14,
		`answer in [1 2]`:            14,
		`answer in 1`:                11,
		`answer contains 3`:          17,
		`answer < true`:              10,
		`(answered`:                  10,
		`answered)`:                  9,
		`AND(answered)`:              13,
		`AND answered`:               5,
		`ü`:                          1,
		`answer = "ü" x`:             14,
		strings.Repeat(" ", 4097):    1,
		strings.Repeat("(", 4000):    34,
		strings.Repeat("AND(", 1000): 133,
		"answer = \"\xff\"":          1,
	} {
		_, err := ParseBranch(predicate)
		var fault *BranchError
		if !errors.As(err, &fault) {
			t.Errorf("%.40q: %v, want a BranchError", predicate, err)
		} else if fault.Pos != pos {
			t.Errorf("%.40q: %v, want position %d", predicate, fault, pos)
		}
	}
}

func TestNestingOf32IsTheDeepest(t *testing.T) {
	t.Parallel()
	for depth, ok := range map[int]bool{32: true, 33: false} {
		text := strings.Repeat("(", depth) + "answered" + strings.Repeat(")", depth)
		if _, err := ParseBranch(text); (err == nil) != ok {
			t.Errorf("nested %d deep: %v", depth, err)
		}
	}
}

func FuzzParseBranch(f *testing.F) {
	for _, seed := range []string{`answer = 3`, `AND(answer in [1,"a"], OR(answered, answer contains "x"))`, `(answer<7)`, `answer >= -1e2 OR answered AND answer != "\u00e4"`} {
		f.Add(seed, `["x", 1]`)
	}
	f.Fuzz(func(t *testing.T, text, answer string) {
		b, err := ParseBranch(text)
		if err != nil {
			var fault *BranchError
			if !errors.As(err, &fault) || fault.Pos < 1 || fault.Pos > len(text)+1 {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		for _, raw := range []string{``, `3`, `"x"`, `true`, `["x"]`, `{}`} {
			first := b.Matches(ReadAnswer([]byte(raw)))
			if again := b.Matches(ReadAnswer([]byte(raw))); first != again {
				t.Fatalf("%q is not deterministic on %s", text, raw)
			}
		}
	})
}
