package reply_test

import (
	"errors"
	"net/http/httptest"
	"testing"

	"skerry/pkg/reply"
)

func TestIfMatchTakesSeveralLinesForOneList(t *testing.T) {
	t.Parallel()
	tag, err := reply.Tag("resource")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		lines []string
		want  error
	}{
		{nil, nil}, {[]string{tag}, nil}, {[]string{`"x"`, tag}, nil}, {[]string{`"x"`, "*"}, nil},
		{[]string{`"x"`}, reply.ErrPrecondition}, {[]string{`"x"`, "W/" + tag}, reply.ErrPrecondition},
	} {
		r := httptest.NewRequest("PATCH", "/", nil)
		for _, line := range c.lines {
			r.Header.Add("If-Match", line)
		}
		if got := reply.IfMatch(r, "resource"); !errors.Is(got, c.want) {
			t.Errorf("%q: %v, want %v", c.lines, got, c.want)
		}
	}
}
