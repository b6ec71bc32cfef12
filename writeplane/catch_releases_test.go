package writeplane

import (
	"testing"

	"skerry/writeplane/symbols"
)

func TestDeletionOfAReleaseHonoursIfMatch(t *testing.T) {
	t.Parallel()
	c := newCatch(t, symbols.Config{})
	c.uploaded(t, "kind", "js_sourcemap", "release", "1.0", "file", "app.js.map:"+bundle)
	remove := func(tag string) int {
		credentials := append(bearer(c.tokens["editor"]), "If-Match", tag)
		return call(t, c.server, "DELETE", "/api/v1/catch/releases/1.0?project_id="+c.founding.ProjectID, "", credentials...).status
	}
	artifacts := func() int {
		_, body := c.get(t, "viewer", "GET", "/api/v1/catch/symbols?release=1.0")
		return len(body["artifacts"].([]any))
	}
	if status, left := remove(`"another"`), artifacts(); status != 412 || left != 1 {
		t.Errorf("another's tag: %d, %d artifacts; want 412 and the one", status, left)
	}
	if status, left := remove("*"), artifacts(); status != 200 || left != 0 {
		t.Errorf("any tag: %d, %d artifacts; want 200 and none", status, left)
	}
}
