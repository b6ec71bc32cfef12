package jsonbody

import (
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// exactNames refuses members whose names differ from the struct's by case alone.
// encoding/json takes them for the same; a client that sends "Name" would otherwise
// believe that it had set a member which a later reader does not find. body has been
// decoded into the type before, so its shape is known to fit.
func exactNames(body json.RawMessage, t reflect.Type, path string) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Implements(unmarshaler) || reflect.PointerTo(t).Implements(unmarshaler) {
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		return exactMembers(body, t, path)
	case reflect.Slice, reflect.Array:
		if kind := t.Elem().Kind(); kind < reflect.Array || kind == reflect.String {
			return nil // of numbers, texts or bytes: a long list of members is not read twice
		}
		var elements []json.RawMessage
		if json.Unmarshal(body, &elements) != nil {
			return nil // null
		}
		for i, element := range elements {
			if err := exactNames(element, t.Elem(), path+"["+strconv.Itoa(i)+"]"); err != nil {
				return err
			}
		}
	}
	return nil
}

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

func exactMembers(body json.RawMessage, t reflect.Type, path string) error {
	var members map[string]json.RawMessage
	if json.Unmarshal(body, &members) != nil {
		return nil // null
	}
	known := map[string]reflect.Type{}
	collectNames(t, known)
	names := make([]string, 0, len(members))
	for name := range members {
		names = append(names, name)
	}
	slices.Sort(names) // the same fault for the same body
	for _, name := range names {
		member, ok := known[name]
		if !ok {
			return Invalid("unknown member %q", strings.TrimPrefix(path+"."+name, "."))
		}
		if err := exactNames(members[name], member, strings.TrimPrefix(path+"."+name, ".")); err != nil {
			return err
		}
	}
	return nil
}

// collectNames lists a struct's members as encoding/json names them,
// embedded ones included.
func collectNames(t reflect.Type, known map[string]reflect.Type) {
	for field := range fields(t) {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		switch {
		case name == "-":
		case field.Anonymous && name == "":
			embedded := field.Type
			if embedded.Kind() == reflect.Pointer {
				embedded = embedded.Elem()
			}
			if embedded.Kind() == reflect.Struct {
				collectNames(embedded, known)
			}
		case !field.IsExported():
		case name == "":
			known[field.Name] = field.Type
		default:
			known[name] = field.Type
		}
	}
}

func fields(t reflect.Type) func(func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range t.NumField() {
			if !yield(t.Field(i)) {
				return
			}
		}
	}
}
