// Package problem holds the errors that a client may see.
//
// An Error names what is wrong in the words of the specification; its Kind
// decides the HTTP status by one table. Anything that is not an Error is an
// unexpected fault: it is logged by the outermost handler and answered as
// 500 {"error":"internal","request_id":…}, never with its own words, so that no
// driver's message or secret leaves the process.
package problem

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// Kind is the closed list of what can be wrong with a request or its circumstances.
type Kind uint8

// The kinds, each with the HTTP status that the table in Status gives it.
const (
	Invalid       Kind = iota // 400: the request is malformed or its values are wrong
	Unauthorized              // 401: no identity, or one that does not hold
	QuotaExceeded             // 402: a paid quantity is used up
	Forbidden                 // 403: identity is known, and not allowed
	NotFound                  // 404: absent, or out of the caller's sight
	MethodUnknown             // 405: the path is known, the method is not
	Conflict                  // 409: contradicts the present state
	Precondition              // 412: If-Match did not match
	TooLarge                  // 413: more bytes than the limit
	Unprocessable             // 422: well-formed, and the resource does not accept it now
	BadGateway                // 502: sent on, fate unknown
	Unavailable               // 503: not now; nothing was done
)

var statuses = [...]int{
	Invalid:       http.StatusBadRequest,
	Unauthorized:  http.StatusUnauthorized,
	QuotaExceeded: http.StatusPaymentRequired,
	Forbidden:     http.StatusForbidden,
	NotFound:      http.StatusNotFound,
	MethodUnknown: http.StatusMethodNotAllowed,
	Conflict:      http.StatusConflict,
	Precondition:  http.StatusPreconditionFailed,
	TooLarge:      http.StatusRequestEntityTooLarge,
	Unprocessable: http.StatusUnprocessableEntity,
	BadGateway:    http.StatusBadGateway,
	Unavailable:   http.StatusServiceUnavailable,
}

// Status is the HTTP status of the kind.
func (k Kind) Status() int { return statuses[k] }

// Error is one answer that is not a success.
// Code becomes the member `error`, Message the member `message` (absent when
// empty), and Extra's members follow beside them.
type Error struct {
	Kind    Kind
	Code    string
	Message string
	Extra   map[string]any
}

// New returns an Error with the specification's text as its code.
func New(kind Kind, code string) *Error { return &Error{Kind: kind, Code: code} }

// Newf returns an Error whose message is formatted.
func Newf(kind Kind, code, format string, args ...any) *Error {
	return &Error{Kind: kind, Code: code, Message: fmt.Sprintf(format, args...)}
}

// With returns a copy of e that carries one more member in its body.
func (e *Error) With(member string, value any) *Error {
	copied := *e
	copied.Extra = make(map[string]any, len(e.Extra)+1)
	for k, v := range e.Extra {
		copied.Extra[k] = v
	}
	copied.Extra[member] = value
	return &copied
}

func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code
	}
	return e.Code + ": " + e.Message
}

// Is makes errors.Is compare kind and code, so that package-level values work as targets.
func (e *Error) Is(target error) bool {
	var other *Error
	return errors.As(target, &other) && other.Kind == e.Kind && other.Code == e.Code
}

// Body renders the JSON body: error first, then message, then the extra members
// in order of name.
func (e *Error) Body() []byte {
	body := append([]byte(`{"error":`), quote(e.Code)...)
	if e.Message != "" {
		body = append(append(body, `,"message":`...), quote(e.Message)...)
	}
	if len(e.Extra) > 0 {
		extra, err := json.Marshal(e.Extra)
		if err != nil {
			panic("BUG: extra members of a problem do not marshal: " + err.Error())
		}
		body = append(append(body, ','), extra[1:len(extra)-1]...)
	}
	return append(body, '}')
}

// Internal is the body of an unexpected fault (supplement §1).
func Internal(requestID string) []byte {
	return append(append([]byte(`{"error":"internal","request_id":`), quote(requestID)...), '}')
}

func quote(s string) []byte {
	quoted, err := json.Marshal(s)
	if err != nil {
		panic("BUG: a string does not marshal: " + err.Error())
	}
	return quoted
}
