package survey

import (
	"errors"
	"strings"
	"testing"
)

func TestBranchPredicatesHoldWhereTheySay(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		predicate, answer string
		want              bool
	}{
		{`answer = 3`, `3`, true},
		{`answer = 3`, `3.0`, true},
		{`answer = 3`, `30e-1`, true},
		{`answer = 3`, `4`, false},
		{`answer = 3`, `"3"`, false},
		{`answer = "a"`, `"a"`, true},
		{`answer = "a"`, `"A"`, false},
		{`answer = "ä\n"`, `"\u00e4\n"`, true},
		{`answer = true`, `true`, true},
		{`answer = true`, `false`, false},
		{`answer != 3`, `4`, true},
		{`answer != 3`, `3`, false},
		{`answer != "3"`, `3`, true},
		{`answer != 3`, ``, false},
		{`answer < 7`, `6`, true},
		{`answer < 7`, `7`, false},
		{`answer <= 7`, `7`, true},
		{`answer > 7`, `1e999`, true},
		{`answer > 7`, `7`, false},
		{`answer >= 7`, `7`, true},
		{`answer >= -1.5e1`, `-15`, true},
		{`answer < 7`, `"6"`, false},
		{`answer < 7`, `true`, false},
		{`answer < 7`, ``, false},
		{`answer < "2026-01-02"`, `"2026-01-01"`, true},
		{`answer in [1,2]`, `2`, true},
		{`answer in [1, 2]`, `3`, false},
		{`answer in ["a",2,true]`, `true`, true},
		{`answer in [1]`, ``, false},
		{`answer contains "x"`, `["y","x"]`, true},
		{`answer contains "x"`, `["xy"]`, false},
		{`answer contains "x"`, `"an x in a text"`, true},
		{`answer contains "x"`, `[1,"x"]`, false},
		{`answer contains "x"`, ``, false},
		{`answered`, `0`, true},
		{`answered`, `false`, true},
		{`answered`, `""`, false},
		{`answered`, `null`, false},
		{`answer >= 3 AND answer < 7`, `5`, true},
		{`answer >= 3 AND answer < 7`, `7`, false},
		{`answer = 1 OR answer = 2 AND answer = 3`, `1`, true},
		{`(answer = 1 OR answer = 2) AND answer = 3`, `1`, false},
		{`AND(answer >= 3, answer < 7)`, `5`, true},
		{`OR(answer = 1, answer = 2, answer = 3)`, `3`, true},
		{`OR(answer = 1, AND(answered, answer > 8))`, `9`, true},
		{`AND(answer >= 3, answer < 7) OR answer = 9`, `9`, true},
		{"\tanswer\n=\r3 ", `3`, true},
		{`answer=3`, `3`, true},
	} {
		b, err := ParseBranch(c.predicate)
		if err != nil {
			t.Errorf("%s: %v", c.predicate, err)
			continue
		}
		if got := b.Matches(ReadAnswer([]byte(c.answer))); got != c.want {
			t.Errorf("%s on %s: %v, want %v", c.predicate, c.answer, got, c.want)
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
