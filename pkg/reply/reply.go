// Package reply writes the answers of the write plane's net/http handlers: JSON with
// its length, resources with their tag, problems with their words.
package reply

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"skerry/pkg/etag"
	"skerry/pkg/problem"
)

// RequestIDHeader carries the id of a request both ways (supplement §1).
const RequestIDHeader = "X-Request-Id"

// JSON answers v with the status.
func JSON(w http.ResponseWriter, status int, v any) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	write(w, status, body)
	return nil
}

// Resource answers one management resource and its ETag. member is its singular
// name, others are further members beside it (such as a secret shown once). The tag
// covers the resource alone.
func Resource(w http.ResponseWriter, status int, member string, resource any, others map[string]any) error {
	tag, err := Tag(resource)
	if err != nil {
		return err
	}
	body := map[string]any{member: resource}
	for name, value := range others {
		body[name] = value
	}
	w.Header().Set("ETag", tag)
	return JSON(w, status, body)
}

// Tag is the strong entity tag of a resource as it is shown.
func Tag(resource any) (string, error) {
	shown, err := json.Marshal(resource)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(shown)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:15]) + `"`, nil
}

// ErrPrecondition is the 412 of an If-Match that does not hold.
var ErrPrecondition = problem.Newf(problem.Precondition, "precondition_failed",
	"the resource has changed since the tag in If-Match was made")

// IfMatch honours the If-Match header of a mutation: current is the resource as it is
// shown now, read in the mutation's own transaction.
func IfMatch(r *http.Request, current any) error {
	header := strings.Join(r.Header.Values("If-Match"), ",") // several lines are one list
	if header == "" {
		return nil
	}
	tag, err := Tag(current)
	if err != nil {
		return err
	}
	if !etag.Match([]byte(header), []byte(tag)) {
		return ErrPrecondition
	}
	return nil
}

// Deleted is the answer to a DELETE.
func Deleted(w http.ResponseWriter) error {
	write(w, http.StatusOK, []byte(`{"deleted":true}`))
	return nil
}

// statusClientGone is nginx's word for a client that did not wait; the standard has none.
const statusClientGone = 499

// Error answers err: a problem in its own words, anything else as an internal fault that
// only the log explains. The answer names the id that its headers carry. A request that
// failed because its client ended the connection, or its side of it, is no fault of ours.
func Error(w http.ResponseWriter, r *http.Request, err error) {
	var p *problem.Error
	if errors.As(err, &p) {
		write(w, p.Kind.Status(), p.Body())
		return
	}
	if ctx := r.Context(); ctx.Err() != nil {
		slog.DebugContext(ctx, "request ended by its client", "path", r.URL.Path)
		write(w, statusClientGone, []byte(`{"error":"client_closed_request"}`))
		return
	}
	slog.ErrorContext(r.Context(), "request failed", "method", r.Method, "path", r.URL.Path, "error", err)
	write(w, http.StatusInternalServerError, problem.Internal(w.Header().Get(RequestIDHeader)))
}

func write(w http.ResponseWriter, status int, body []byte) {
	header := w.Header()
	header.Set("Content-Type", "application/json")
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone hears nothing, and nothing else is owed
}
