package load

import (
	"fmt"
	"slices"
	"strings"
)

// Render makes a request's bytes: method, path with query, host, headers in order of
// name, and a body with its length.
func Render(method, path, host string, headers map[string]string, body []byte) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, host)
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		fmt.Fprintf(&b, "%s: %s\r\n", name, headers[name])
	}
	if body != nil || method == "POST" || method == "PUT" {
		fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
	}
	b.WriteString("\r\n")
	return append([]byte(b.String()), body...)
}

// Source gives a worker its requests. It is called by one worker at a time, and the
// bytes it returns are used until its next call.
type Source func() []byte

// Same is the Source of one request that never changes.
func Same(request []byte) func(worker int) Source {
	return func(int) Source { return func() []byte { return request } }
}
