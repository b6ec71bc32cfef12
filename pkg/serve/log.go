package serve

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"

	"skerry/pkg/id"
)

// Logging says how to write logs.
type Logging struct {
	// Format is "text" or "json".
	Format string
	// Level is "debug", "info", "warn" or "error".
	Level string
}

// NewLogger writes to w. A line logged with a context that carries a request
// id has it as request_id; secrets in values are masked.
func NewLogger(w io.Writer, l Logging) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.Level)); err != nil {
		return nil, fmt.Errorf("log level %q is none of debug, info, warn, error", l.Level)
	}
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: maskAttr}
	switch l.Format {
	case "text":
		return slog.New(withRequestID{slog.NewTextHandler(w, opts)}), nil
	case "json":
		return slog.New(withRequestID{slog.NewJSONHandler(w, opts)}), nil
	}
	return nil, fmt.Errorf("log format %q is neither text nor json", l.Format)
}

// secrets are API keys and deploy tokens, webhook secrets, JWTs, passwords in
// URLs, and the key in a stream's query.
var secrets = regexp.MustCompile(`(sk_(?:live|test|deploy)_[A-Za-z0-9]{4})[A-Za-z0-9]*|(whsec_)[A-Za-z0-9+/=]+|(eyJ)[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+|(://[^\s/@:]*:)[^\s/@]+@|(://)[^\s/@:]+@|([?&]key=)[^\s&"]+`)

// mask keeps enough of a secret to recognize which one it was.
func mask(s string) string {
	if !strings.ContainsAny(s, "_.:=") {
		return s
	}
	return secrets.ReplaceAllStringFunc(s, func(m string) string {
		parts := secrets.FindStringSubmatch(m)
		tail := "…"
		if strings.HasSuffix(m, "@") {
			tail = "…@"
		}
		return strings.Join(parts[1:], "") + tail
	})
}

func maskAttr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(mask(a.Value.String()))
	case slog.KindAny:
		switch v := a.Value.Any().(type) {
		case error:
			a.Value = slog.StringValue(mask(v.Error()))
		case fmt.Stringer:
			a.Value = slog.StringValue(mask(v.String()))
		}
	}
	return a
}

// RequestID returns what a caller sent as X-Request-Id when it is 1 to 128
// visible ASCII characters, else a fresh id (supplement §1).
func RequestID(sent string) string {
	if UsableRequestID(sent) {
		return sent
	}
	return id.New()
}

// UsableRequestID reports whether a caller's id is taken over.
func UsableRequestID[T string | []byte](sent T) bool {
	if len(sent) < 1 || len(sent) > 128 {
		return false
	}
	for i := range len(sent) {
		if sent[i] <= ' ' || sent[i] > '~' {
			return false
		}
	}
	return true
}

type requestIDKey struct{}

// WithRequestID carries a request's id to everything that logs with ctx.
func WithRequestID(ctx context.Context, requestID string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, requestID)
}

// requestIDOf is the id that ctx carries, empty when none.
func requestIDOf(ctx context.Context) string {
	requestID, _ := ctx.Value(requestIDKey{}).(string)
	return requestID
}

// withRequestID adds the context's request id to each line.
type withRequestID struct{ slog.Handler }

func (h withRequestID) Handle(ctx context.Context, r slog.Record) error {
	if requestID := requestIDOf(ctx); requestID != "" {
		r.AddAttrs(slog.String("request_id", requestID))
	}
	r.Message = mask(r.Message)
	return h.Handler.Handle(ctx, r)
}

func (h withRequestID) WithAttrs(attrs []slog.Attr) slog.Handler {
	return withRequestID{h.Handler.WithAttrs(attrs)}
}

func (h withRequestID) WithGroup(name string) slog.Handler {
	return withRequestID{h.Handler.WithGroup(name)}
}
