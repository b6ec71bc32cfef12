// Package jsonbody reads JSON bodies of the write plane and words what is wrong
// with them. Management endpoints refuse unknown members by name, SDK endpoints
// ignore them (supplement §1). Every fault is a *problem.Error with the code
// invalid_body unless the caller's endpoint words it otherwise.
package jsonbody

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"unicode/utf8"

	"skerry/pkg/instant"
	"skerry/pkg/problem"
)

// Limit is the largest management body in bytes: past it the answer is 413.
const Limit = 8 << 20

// Invalid is a 400 invalid_body with a message.
func Invalid(format string, args ...any) *problem.Error {
	return problem.Newf(problem.Invalid, "invalid_body", format, args...)
}

// Missing is the fault of an absent member.
func Missing(member string) *problem.Error { return Invalid("%s is required", member) }

// Read returns the whole body, up to limit bytes, checked to be Unicode: the decoder
// would replace what is not.
func Read(r *http.Request, limit int64) ([]byte, error) {
	body, err := ReadUTF8(r, limit)
	if err != nil {
		return nil, err
	}
	return body, Whole(body)
}

// Whole refuses a body in which a text has half of a surrogate pair.
func Whole(body []byte) error {
	if (&Surrogates{}).Half(body) {
		return ErrHalf
	}
	return nil
}

// ReadUTF8 is Read without Whole: for an endpoint that takes such a text, with U+FFFD in
// the half's place, or that has something else to say first.
func ReadUTF8(r *http.Request, limit int64) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, limit+1))
	if err != nil {
		return nil, Invalid("the body broke off")
	}
	if int64(len(body)) > limit {
		return nil, problem.Newf(problem.TooLarge, "payload_too_large", "the body is larger than %d bytes", limit)
	}
	if !utf8.Valid(body) {
		return nil, Invalid("the body is not UTF-8")
	}
	return body, nil
}

// Strict decodes a management body into v, a pointer to a struct: an unknown
// member, a wrong type and bytes behind the object are refused by name.
func Strict(r *http.Request, v any) error {
	body, err := Read(r, Limit)
	if err != nil {
		return err
	}
	return Unmarshal(body, v)
}

// StrictPatch is Strict for a merge patch: null removes a member, so it is refused for
// the members that the resource cannot be without. To decode alone it would be the same
// as their absence.
func StrictPatch(r *http.Request, v any, needed ...string) error {
	body, err := Read(r, Limit)
	if err != nil {
		return err
	}
	if err := Unmarshal(body, v); err != nil {
		return err
	}
	var sent map[string]json.RawMessage
	if err := json.Unmarshal(body, &sent); err != nil {
		return Invalid("the body is not a JSON object")
	}
	for _, name := range needed {
		if value, ok := sent[name]; ok && string(value) == "null" {
			return Missing(name)
		}
	}
	return nil
}

// Optional is Strict for a body that may be empty: v then stays as it is.
func Optional(r *http.Request, v any) error {
	body, err := Read(r, Limit)
	if err != nil || len(bytes.TrimSpace(body)) == 0 {
		return err
	}
	return Unmarshal(body, v)
}

// Unmarshal decodes an object into v, a pointer to a struct. Unknown members are refused
// by name; of members of one name the last counts.
func Unmarshal(body []byte, v any) error {
	body = lastOnly(body)
	if err := decode(body, v, (*json.Decoder).DisallowUnknownFields); err != nil {
		return err
	}
	return exactNames(body, reflect.TypeOf(v), "")
}

// Object tells what keeps a body from being one JSON object; its members may be any.
func Object(body []byte) error { return decode(body, &struct{}{}, func(*json.Decoder) {}) }

func decode(body []byte, v any, set func(*json.Decoder)) error {
	if trimmed := bytes.TrimLeft(body, " \t\r\n"); len(trimmed) == 0 {
		return Invalid("the body is empty; a JSON object is expected")
	} else if trimmed[0] != '{' {
		return Invalid("the body is not a JSON object")
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	set(decoder)
	if err := decoder.Decode(v); err != nil {
		return worded(err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Invalid("there are bytes behind the JSON object")
	}
	return nil
}

func worded(err error) *problem.Error {
	var syntax *json.SyntaxError
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		return Invalid("malformed JSON at byte %d", syntax.Offset)
	case errors.Is(err, io.ErrUnexpectedEOF):
		return Invalid("malformed JSON: it ends too early")
	case errors.As(err, &wrongType) && wrongType.Field != "":
		return Invalid("%s must be %s, not %s", wrongType.Field, typeName(wrongType), wrongType.Value)
	case strings.HasPrefix(err.Error(), "json: unknown field "):
		return Invalid("unknown member %s", strings.TrimPrefix(err.Error(), "json: unknown field "))
	}
	return Invalid("%s", strings.TrimPrefix(err.Error(), "json: "))
}

func typeName(e *json.UnmarshalTypeError) string {
	switch kind := e.Type.Kind().String(); {
	case e.Type == reflect.TypeFor[instant.Time]():
		return instant.Wanted
	case strings.HasPrefix(kind, "int"), strings.HasPrefix(kind, "uint"):
		return "an integer"
	case strings.HasPrefix(kind, "float"):
		return "a number"
	case kind == "bool":
		return "true or false"
	case kind == "slice", kind == "array":
		return "an array"
	case kind == "struct", kind == "map":
		return "an object"
	}
	return "a " + e.Type.Kind().String()
}

// MergePatch applies an RFC 7396 merge patch: objects merge, null removes, arrays
// and everything else are replaced. Both are JSON texts; the result is one too.
// Numbers keep their written form.
func MergePatch(target, patch []byte) ([]byte, error) {
	change, err := decodeAny(patch)
	if err != nil {
		return nil, fmt.Errorf("read merge patch: %w", err)
	}
	current, err := decodeAny(target)
	if err != nil {
		current = nil // what is not there, or not JSON, is replaced
	}
	return json.Marshal(merge(current, change))
}

func decodeAny(text []byte) (value any, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	err = decoder.Decode(&value)
	return value, err
}

func merge(target, patch any) any {
	changes, isObject := patch.(map[string]any)
	if !isObject {
		return patch
	}
	into, isObject := target.(map[string]any)
	if !isObject {
		into = map[string]any{}
	}
	for name, value := range changes {
		if value == nil {
			delete(into, name)
		} else {
			into[name] = merge(into[name], value)
		}
	}
	return into
}
