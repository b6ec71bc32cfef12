// Package baseline is the yardstick of the benchmarks: a bare fasthttp handler that
// sends the same status, headers and body as the server that is measured, and knows
// nothing else. Every figure is a ratio to it, measured in the same run on the same
// core, because the machines that this runs on are shared and noisy.
package baseline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/valyala/fasthttp"
)

// Answer is what the yardstick sends to every request.
type Answer struct {
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	Body    []byte            `json:"body"`
}

// perServer are the headers that an HTTP server sets by itself.
var perServer = []string{"date", "content-length", "connection", "server"}

// Like makes the Answer that equals a response, given its status, its head as it stood
// on the wire and its body. The request id, which differs each time, is kept as it was.
func Like(status int, head, body []byte) Answer {
	a := Answer{Status: status, Headers: map[string]string{}, Body: body}
	for i, line := range strings.Split(string(head), "\r\n") {
		name, value, ok := strings.Cut(line, ":")
		if i == 0 || !ok {
			continue
		}
		own := false
		for _, n := range perServer {
			own = own || strings.EqualFold(n, name)
		}
		if !own {
			a.Headers[name] = strings.TrimSpace(value)
		}
	}
	return a
}

// Handler answers every request with a. The body of a POST is there when it is called,
// as for any fasthttp handler that does not stream.
func (a Answer) Handler() fasthttp.RequestHandler {
	contentType := a.Headers["Content-Type"]
	type header struct{ name, value string }
	var headers []header
	for name, value := range a.Headers {
		if name != "Content-Type" {
			headers = append(headers, header{name, value})
		}
	}
	return func(ctx *fasthttp.RequestCtx) {
		ctx.SetStatusCode(a.Status)
		if contentType != "" {
			ctx.SetContentType(contentType)
		}
		for _, h := range headers {
			ctx.Response.Header.Set(h.name, h.value)
		}
		if a.Status != fasthttp.StatusNotModified {
			ctx.SetBody(a.Body)
		}
	}
}

// Serve is the life of a yardstick process: it reads an Answer from in, prints its
// address to out, and serves until ctx or in ends.
func Serve(ctx context.Context, in io.Reader, out io.Writer) error {
	decoder := json.NewDecoder(in)
	var a Answer
	if err := decoder.Decode(&a); err != nil {
		return fmt.Errorf("read the answer to give: %w", err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	// The same write buffer as the edge's: one write for an answer of some kilobytes.
	server := &fasthttp.Server{Handler: a.Handler(), Name: "baseline", MaxRequestBodySize: 64 << 20, WriteBufferSize: 16 << 10}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	if _, err := fmt.Fprintln(out, listener.Addr()); err != nil {
		return fmt.Errorf("say the address: %w", err)
	}
	gone := make(chan struct{})
	go func() { _, _ = io.Copy(io.Discard, decoder.Buffered()); _, _ = io.Copy(io.Discard, in); close(gone) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	case <-gone:
	}
	stop, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := server.ShutdownWithContext(stop); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return nil
}
