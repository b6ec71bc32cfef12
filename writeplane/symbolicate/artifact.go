// Package symbolicate makes stack traces readable: it reads symbol artifacts into
// lookup forms and turns the frames of a crash into functions, files and lines
// (supplement §6).
//
// It is pure: files come in as bytes, answers go out; it stores nothing and fetches
// nothing. Identify and Build parse what strangers wrote and belong into the sandbox
// (package sandbox); everything that reads a lookup form is safe anywhere.
package symbolicate

import (
	"errors"
	"fmt"
	"io"

	"skerry/writeplane/symbolicate/flat"
	"skerry/writeplane/symbolicate/native"
	"skerry/writeplane/symbolicate/retrace"
	"skerry/writeplane/symbolicate/sourcemap"
)

// Kind is the kind of a symbol artifact (specification, Symbol artifact).
type Kind string

// The kinds.
const (
	SourceMap      Kind = "js_sourcemap"
	DSYM           Kind = "ios_dsym"
	AndroidMapping Kind = "android_mapping"
	AndroidNDK     Kind = "android_ndk"
	FlutterSymbols Kind = "flutter_symbols"
)

// Kinds lists what a kind may be.
func Kinds() []Kind { return []Kind{SourceMap, DSYM, AndroidMapping, AndroidNDK, FlutterSymbols} }

// Valid reports whether k is one of Kinds.
func (k Kind) Valid() bool {
	switch k {
	case SourceMap, DSYM, AndroidMapping, AndroidNDK, FlutterSymbols:
		return true
	}
	return false
}

// The reasons of a frame that is not symbolicated, in the words of the interface.
const (
	NoSymbols   = "no_symbols"  // no artifact of the release matches
	NoMatch     = "no_match"    // the artifact does not cover the position
	Synthesized = "synthesized" // made by the compiler, removed by retracing
	Malformed   = "malformed"   // the artifact or the frame cannot be read
	Limit       = "limit"       // reading it would take too much
)

// Awaited is the reason, never shown, of a frame whose artifact is stored and has no
// lookup form yet: what becomes of the frame is not known before it has one.
const Awaited = "awaited"

// Fault says why an artifact cannot be used: Reason is Malformed, Limit or Awaited.
type Fault struct{ Reason, Text string }

func (f *Fault) Error() string { return f.Text }

// fault words an error of a parser.
func fault(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, native.ErrLimit), errors.Is(err, flat.ErrTooLarge):
		return &Fault{Limit, err.Error()}
	case errors.Is(err, native.ErrMalformed), errors.Is(err, sourcemap.ErrMalformed), errors.Is(err, retrace.ErrMalformed):
		return &Fault{Malformed, err.Error()}
	}
	return err
}

// maxWarnings bounds what is kept of an artifact with many damaged parts.
const maxWarnings = 20

func few(warnings []string) []string {
	for i, w := range warnings {
		if len(w) > 500 {
			warnings[i] = w[:500]
		}
	}
	if len(warnings) > maxWarnings {
		more := fmt.Sprintf("and %d more warnings", len(warnings)-maxWarnings)
		return append(warnings[:maxWarnings:maxWarnings], more)
	}
	return warnings
}

// readWhole is up to which size Identify reads an artifact to its end, so that its
// warnings are complete at once; larger ones are read whole when they are indexed.
const readWhole = 32 << 20

// Identify returns the debug ids of an artifact, the one it is found by first, and
// warnings about what cannot be read. A *Fault means that nothing can. scratch is a
// folder for what zips unpack to, "" the system's.
func Identify(kind Kind, data []byte, scratch string) (debugIDs, warnings []string, err error) {
	switch kind {
	case SourceMap:
		id, err := sourcemap.DebugID(data)
		if id != "" {
			debugIDs = []string{id}
		}
		if err == nil && len(data) <= readWhole {
			_, warnings, err = sourcemap.Build(data)
		}
		return debugIDs, few(warnings), fault(err)
	case AndroidMapping:
		debugIDs = []string{retrace.ID(data)}
		if len(data) <= readWhole {
			_, warnings, err = retrace.Build(data)
		}
		return debugIDs, few(warnings), fault(err)
	case DSYM, AndroidNDK, FlutterSymbols:
		debugIDs, warnings, err = native.Identify(data, scratch)
		return debugIDs, few(warnings), fault(err)
	}
	return nil, nil, fmt.Errorf("identify artifact: unknown kind %q", kind)
}

// Build writes the lookup form of an artifact. Its error is a *Fault unless writing
// failed.
func Build(kind Kind, data []byte, scratch string, w io.Writer) (warnings []string, err error) {
	var index []byte
	switch kind {
	case SourceMap:
		index, warnings, err = sourcemap.Build(data)
	case AndroidMapping:
		warnings, err = retrace.BuildTo(data, w)
		return few(warnings), fault(err)
	case DSYM, AndroidNDK, FlutterSymbols:
		warnings, err = native.Build(data, scratch, w)
		return few(warnings), fault(err)
	default:
		return nil, fmt.Errorf("index artifact: unknown kind %q", kind)
	}
	if err != nil {
		return few(warnings), fault(err)
	}
	if _, err := w.Write(index); err != nil {
		return nil, fmt.Errorf("write lookup form: %w", err)
	}
	return few(warnings), nil
}

// Index is an opened lookup form. It only reads: goroutines may share it.
type Index struct {
	maps    *sourcemap.Table
	mapping *retrace.Table
	native  *native.Table
	size    int
}

// Open opens a lookup form of the kind and keeps using data.
func Open(kind Kind, data []byte) (*Index, error) {
	x := &Index{size: len(data)}
	var err error
	switch kind {
	case SourceMap:
		x.maps, err = sourcemap.Open(data)
	case AndroidMapping:
		x.mapping, err = retrace.Open(data)
	case DSYM, AndroidNDK, FlutterSymbols:
		x.native, err = native.Open(data)
	default:
		err = fmt.Errorf("unknown kind %q", kind)
	}
	if err != nil {
		return nil, fmt.Errorf("open lookup form: %w", err)
	}
	return x, nil
}

// Size is the length of the lookup form in bytes.
func (x *Index) Size() int { return x.size }
