package writeplane

import (
	"net/http"
	"net/url"
	"testing"

	"skerry/pkg/reply"
	"skerry/writeplane/access"
)

func TestParametersThatAreNotEncodedAreNotDropped(t *testing.T) {
	t.Parallel()
	for sent, want := range map[string]string{
		"":                        "",
		"limit=1&environment=a":   "limit=1&environment=a",
		"environment=te%st":       "environment=te%25st",
		"limit=1;x":               "limit=1%3Bx",
		"a=100%":                  "a=100%25",
		"a=%4":                    "a=%254",
		"a=%41%zz%C3%A4;&b=a+b%2": "a=%41%25zz%C3%A4%3B&b=a+b%252",
	} {
		got := readable(sent)
		if got != want {
			t.Errorf("%q: %q, want %q", sent, got, want)
		}
		if _, err := url.ParseQuery(got); err != nil {
			t.Errorf("%q: %v", sent, err)
		}
	}
}

func TestHandlersSeeEveryParameter(t *testing.T) {
	t.Parallel()
	echo := func(w http.ResponseWriter, r *http.Request, _ *access.Call) error {
		return reply.JSON(w, http.StatusOK, r.URL.Query())
	}
	server := newPlane(t).serve(t, HandlerConfig{}, Route{Method: "DELETE", Path: "/x", Needs: Public, Handle: echo})
	if got := call(t, server, "DELETE", "/x?environment=te%st", ""); got.body != `{"environment":["te%st"]}` {
		t.Errorf("%d %s", got.status, got.body)
	}
}
