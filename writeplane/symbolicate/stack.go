package symbolicate

import (
	"errors"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"skerry/pkg/crash"
	"skerry/writeplane/symbolicate/native"
	"skerry/writeplane/symbolicate/retrace"
	"skerry/writeplane/symbolicate/sourcemap"
)

// What one event is answered with at most: frames beyond either have reason Limit. A
// hostile artifact has names of megabytes, or calls inlined a thousand deep.
const (
	MaxFrames  = 2_000
	maxAnswers = 16 << 20 // bytes of text, and some for each place
)

// Location is a place in the source. Filename and Function are null where unknown,
// Lineno and Colno 0.
type Location struct {
	Module   string  `json:"module,omitempty"`
	Filename *string `json:"filename"`
	Function *string `json:"function"`
	Lineno   int64   `json:"lineno"`
	Colno    int64   `json:"colno"`
}

// Symbolicated is the innermost function of a frame, with its callers outward that
// it was inlined into.
type Symbolicated struct {
	Location
	Inlined []Location `json:"inlined"`
}

// Answer is what became of one frame: one of the two is set.
type Answer struct {
	Symbolicated *Symbolicated
	Reason       string
}

// weight is about what an answer takes.
func (a Answer) weight() int {
	if a.Symbolicated == nil {
		return 0
	}
	sum := a.Symbolicated.Location.weight()
	for _, l := range a.Symbolicated.Inlined {
		sum += l.weight()
	}
	return sum
}

func (l Location) weight() int {
	return 100 + len(l.Module) + len(text(l.Filename)) + len(text(l.Function))
}

// Artifact is one candidate of a Set.
type Artifact struct {
	Kind     Kind
	MatchKey string
	Name     string // as uploaded
	DebugIDs []string
	// OfRelease tells that the artifact belongs to the event's release, so it may be
	// used for frames without a debug id.
	OfRelease bool
	// Load opens the lookup form; it is called once for a Set. A *Fault gives
	// its reason to the frames, any other error ends Symbolicate.
	Load func() (*Index, error)
}

// Set is the artifacts that may serve the events of one release, the preferred first
// (the newest). It is for one goroutine at a time.
type Set struct {
	loaded  map[*Artifact]loaded
	ids     map[string][]*Artifact // all, by each of their ids and their match key, lower case
	release []*Artifact            // those of the release
	maps    map[string][]*Artifact // source maps of the release by the base name of their file
}

type loaded struct {
	index *Index
	err   error
}

// NewSet returns a set.
func NewSet(artifacts []*Artifact) *Set {
	s := &Set{loaded: map[*Artifact]loaded{}, ids: map[string][]*Artifact{}, maps: map[string][]*Artifact{}}
	for _, a := range artifacts {
		s.known(a, a.MatchKey)
		for _, id := range a.DebugIDs {
			s.known(a, id)
		}
		if !a.OfRelease {
			continue
		}
		s.release = append(s.release, a)
		if a.Kind == SourceMap {
			file := fileOf(a.MatchKey)
			s.maps[file] = append(s.maps[file], a)
		}
	}
	return s
}

// known notes an id of an artifact, once.
func (s *Set) known(a *Artifact, id string) {
	id = strings.ToLower(id)
	if list := s.ids[id]; len(list) == 0 || list[len(list)-1] != a {
		s.ids[id] = append(list, a)
	}
}

func (s *Set) load(a *Artifact) (*Index, error) {
	l, ok := s.loaded[a]
	if !ok {
		l.index, l.err = a.Load()
		s.loaded[a] = l
	}
	return l.index, l.err
}

// Symbolicate answers for every frame of an event, in its order.
func (s *Set) Symbolicate(e crash.Event) ([]Answer, error) {
	answers := make([]Answer, len(e.Frames))
	frames := e.Frames
	for i := MaxFrames; i < len(frames); i++ {
		answers[i] = Answer{Reason: Limit}
	}
	frames = frames[:min(len(frames), MaxFrames)]
	retraced, err := s.retrace(e, frames)
	if err != nil {
		return nil, err
	}
	weight := 0
	for i, f := range frames {
		switch {
		case weight > maxAnswers:
		case retraced[i] != (Answer{}):
			answers[i] = retraced[i]
		case e.Platform == crash.JavaScript:
			answers[i], err = s.javascript(f)
		default:
			answers[i], err = s.native(e.Platform, f)
		}
		if err != nil {
			return nil, err
		}
		if weight += answers[i].weight(); weight > maxAnswers {
			answers[i] = Answer{Reason: Limit}
		}
	}
	return answers, nil
}

// reasonOf is the reason that a failure to load gives to a frame; ok is false for
// failures that are not the artifact's.
func reasonOf(err error) (reason string, ok bool) {
	var f *Fault
	if errors.As(err, &f) {
		return f.Reason, true
	}
	return "", false
}

// tryAll asks candidates in order until one answers. Failing that, the reason is the
// last one that says most: an artifact that is awaited before an unreadable one, and
// that before one that does not cover. inOrder does not ask behind an awaited one.
func (s *Set) tryAll(candidates []*Artifact, inOrder bool, ask func(*Index) Answer) (Answer, error) {
	answer := Answer{Reason: NoSymbols}
	for _, a := range candidates {
		x, err := s.load(a)
		if err != nil {
			reason, ok := reasonOf(err)
			if !ok {
				return Answer{}, err
			}
			if inOrder && reason == Awaited {
				return Answer{Reason: Awaited}, nil
			}
			if answer.Reason != Awaited {
				answer = Answer{Reason: reason}
			}
			continue
		}
		got := ask(x)
		if got.Symbolicated != nil {
			return got, nil
		}
		if answer.Reason == NoSymbols || answer.Reason == NoMatch {
			answer = got
		}
	}
	return answer, nil
}

// byID returns the artifacts of the kinds that have a debug id.
func (s *Set) byID(id string, kinds ...Kind) []*Artifact {
	var out []*Artifact
	for _, a := range s.ids[strings.ToLower(id)] {
		if slices.Contains(kinds, a.Kind) {
			out = append(out, a)
		}
	}
	return out
}

func (s *Set) ofRelease(fits func(*Artifact) bool, kinds ...Kind) []*Artifact {
	var out []*Artifact
	for _, a := range s.release {
		if slices.Contains(kinds, a.Kind) && fits(a) {
			out = append(out, a)
		}
	}
	return out
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func number(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

// javascript looks a frame up in the source map of its file: by debug id, else by
// the release and the file's name.
func (s *Set) javascript(f crash.Frame) (Answer, error) {
	var candidates []*Artifact
	if id := text(f.DebugID); id != "" {
		candidates = s.byID(id, SourceMap)
	}
	if name := text(f.Filename); len(candidates) == 0 && name != "" {
		candidates = s.named(fileOf(name))
	}
	// Of maps of one file the newest decides, so an older one is not asked in its stead.
	return s.tryAll(candidates, true, func(x *Index) Answer {
		p, outcome := x.maps.Lookup(number(f.Lineno), number(f.Colno))
		switch outcome {
		case sourcemap.NotFound:
			return Answer{Reason: NoMatch}
		case sourcemap.Bad:
			return Answer{Reason: Malformed}
		}
		at := Location{Filename: &p.Source, Function: f.Function, Lineno: p.Line, Colno: p.Column}
		if p.NullSource {
			at.Filename = nil
		}
		if p.Name != "" {
			at.Function = &p.Name
		}
		return Answer{Symbolicated: &Symbolicated{Location: at, Inlined: []Location{}}}
	})
}

// named are the source maps of a script. A browser gives its name as the URL has it,
// where a build that wrote "[id].js" is asked for "%5Bid%5D.js".
func (s *Set) named(file string) []*Artifact {
	if found := s.maps[file]; found != nil {
		return found
	}
	if plain, err := url.PathUnescape(file); err == nil {
		return s.maps[plain]
	}
	return nil
}

// fileOf is what the name of a script and the match key of its map have in common:
// the base name without query, fragment and ".map".
func fileOf(name string) string {
	if i := strings.IndexAny(name, "?#"); i >= 0 {
		name = name[:i]
	}
	return base(strings.TrimSuffix(name, ".map"))
}

func base(name string) string { return path.Base(strings.ReplaceAll(name, "\\", "/")) }

// nativeKinds are the artifacts that hold native code of a platform, the usual first.
func nativeKinds(platform string) []Kind {
	switch platform {
	case crash.IOS:
		return []Kind{DSYM}
	case crash.Flutter:
		return []Kind{FlutterSymbols, AndroidNDK, DSYM}
	}
	return []Kind{AndroidNDK}
}

// native looks an address up: in the image with the frame's debug id, and in no
// other when it has one; else in the release's artifacts, those named like the
// frame's module first.
func (s *Set) native(platform string, f crash.Frame) (Answer, error) {
	kinds := nativeKinds(platform)
	id := text(f.DebugID)
	var candidates []*Artifact
	if id != "" {
		candidates = s.byID(id, kinds...)
	} else {
		named := func(a *Artifact) bool { return isNamed(a, text(f.Module)) || isNamed(a, text(f.Filename)) }
		candidates = append(s.ofRelease(named, kinds...), s.ofRelease(func(a *Artifact) bool { return !named(a) }, kinds...)...)
	}
	if len(candidates) == 0 {
		return Answer{Reason: NoSymbols}, nil
	}
	if f.Address == nil {
		return Answer{Reason: NoMatch}, nil
	}
	address, ok := hex(*f.Address)
	imageBase, baseOK := uint64(0), true
	if f.ImageBase != nil {
		imageBase, baseOK = hex(*f.ImageBase)
	}
	if !ok || !baseOK {
		return Answer{Reason: Malformed}, nil
	}
	return s.tryAll(candidates, false, func(x *Index) Answer {
		return lookup(images(x.native, id), address, imageBase, f.ImageBase != nil)
	})
}

func isNamed(a *Artifact, module string) bool {
	return module != "" && (strings.EqualFold(a.MatchKey, base(module)) || strings.EqualFold(a.Name, base(module)))
}

func images(t *native.Table, id string) []*native.Image {
	if img, ok := t.ByID(id); ok && id != "" {
		return []*native.Image{img}
	}
	return t.Images()
}

// hex reads "0x…".
func hex(s string) (uint64, bool) {
	if len(s) < 3 || s[0] != '0' || s[1] != 'x' && s[1] != 'X' {
		return 0, false
	}
	n, err := strconv.ParseUint(s[2:], 16, 64)
	return n, err == nil
}

// lookup asks the images; of several architectures that cover an address nobody can
// say which one ran, so the answer is none.
func lookup(list []*native.Image, address, imageBase uint64, relative bool) Answer {
	var found []native.Place
	for _, img := range list {
		at, ok := address, true
		if relative {
			at, ok = img.FileAddress(address, imageBase)
		}
		if !ok {
			continue
		}
		if chain, ok := img.Lookup(at); ok {
			if found != nil {
				return Answer{Reason: NoMatch}
			}
			found = chain
		}
	}
	if found == nil {
		return Answer{Reason: NoMatch}
	}
	locations := make([]Location, len(found))
	for i, p := range found {
		locations[i] = Location{Filename: optional(p.File), Function: optional(p.Function), Lineno: p.Line, Colno: p.Column}
	}
	return Answer{Symbolicated: &Symbolicated{Location: locations[0], Inlined: locations[1:]}}
}

func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

// retrace answers the frames of an Android stack that have a class. Frames are
// retraced together, because an outline hands its position to its caller.
func (s *Set) retrace(e crash.Event, frames []crash.Frame) ([]Answer, error) {
	answers := make([]Answer, len(frames))
	if e.Platform != crash.Android {
		return answers, nil
	}
	stack := make([]retrace.Frame, len(frames))
	mappings := make([][]*Artifact, len(frames))
	for i, f := range frames {
		stack[i] = retrace.Frame{Class: text(f.Module), Method: text(f.Function), File: text(f.Filename), Line: number(f.Lineno)}
		if f.Module == nil || f.Address != nil {
			continue
		}
		if id := text(f.DebugID); id != "" {
			mappings[i] = s.byID(id, AndroidMapping)
		}
		if len(mappings[i]) == 0 {
			mappings[i] = s.ofRelease(func(*Artifact) bool { return true }, AndroidMapping)
		}
		if len(mappings[i]) == 0 {
			answers[i] = Answer{Reason: NoSymbols}
		}
	}
	results := map[*Artifact][]retrace.Result{}
	for i := range frames {
		for _, a := range mappings[i] {
			x, err := s.load(a)
			if err != nil {
				reason, ok := reasonOf(err)
				if !ok {
					return nil, err
				}
				answers[i] = Answer{Reason: reason}
				if reason == Awaited {
					break
				}
				continue
			}
			if results[a] == nil {
				results[a] = x.mapping.Stack(e.Exception.Type, stack, maxAnswers)
			}
			answers[i] = retraced(results[a][i])
			break // the newest that can be read decides
		}
	}
	return answers, nil
}

func retraced(r retrace.Result) Answer {
	switch r.Outcome {
	case retrace.NotFound:
		return Answer{Reason: NoMatch}
	case retrace.Synthesized:
		return Answer{Reason: Synthesized}
	case retrace.Excess:
		return Answer{Reason: Limit}
	}
	locations := make([]Location, len(r.Chain))
	for i, o := range r.Chain {
		locations[i] = Location{Module: o.Class, Filename: optional(o.File), Function: optional(o.Method), Lineno: o.Line}
	}
	return Answer{Symbolicated: &Symbolicated{Location: locations[0], Inlined: locations[1:]}}
}
