package decide

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"skerry/pkg/predicate"
)

// CompileFlag compiles a flag and the halt that overlays it (nil: not halted). It always
// gives an entry: when something in the definition cannot be understood, which the write
// plane prevents, the entry answers the default with reason "error", unless it is halted,
// and err tells why.
func CompileFlag(d *FlagDefinition, h *HaltDefinition) (*Entry, error) {
	k := compiler{entry: &Entry{Key: d.Key, version: d.Version, ruled: d.Rule != nil}, flag: true,
		values: make(map[string]string, len(d.Variants))}
	for _, v := range d.Variants {
		k.values[v.Key] = v.Value
	}
	var e *Entry
	var err error
	if d.Enabled {
		e, err = k.rule(d.Rule, d.DefaultValue, d.DefaultVariant)
	} else {
		k.entry.fallback = k.outcome(ReasonDisabled, d.DefaultValue, d.DefaultVariant)
		e = k.done()
	}
	return e.Halted(h), err
}

// CompileItem compiles a config item, as CompileFlag does a flag.
func CompileItem(d *ItemDefinition) (*Entry, error) {
	k := compiler{entry: &Entry{Key: d.Key, version: d.Version, ruled: d.Rule != nil}, kind: d.Type}
	return k.rule(d.Rule, d.DefaultValue, "")
}

// compiler collects the parts of an entry's text until all of them are known.
type compiler struct {
	entry  *Entry
	kind   Type // of a config item
	flag   bool
	values map[string]string // of variants
	// made holds the choices that exist, so that whatever gives the same shares its text.
	made    map[choice]uint16
	choices []byte   // text of the choices
	starts  []uint32 // where the halves of each begin in it
	code    []byte   // text behind the choices
}

type choice struct{ value, variant string }

// What an entry's numbers can tell apart, less the default, for which there must
// be room. A rule has at most maxOverrides and maxBuckets values; nothing that
// long is ever stored.
const (
	maxChoices = 1<<16 - 2
	maxText    = 1 << 30
)

func (k *compiler) rule(r *Rule, value, variant string) (*Entry, error) {
	if err := k.parts(r); err != nil {
		failed := compiler{entry: &Entry{Key: k.entry.Key, version: k.entry.version, ruled: true}, kind: k.kind, flag: k.flag}
		failed.entry.fallback = failed.outcome(ReasonError, value, variant)
		return failed.done(), fmt.Errorf("compile the rule of %s: %w", k.entry.Key, err)
	}
	k.entry.fallback = k.outcome(ReasonDefault, value, variant)
	return k.done(), nil
}

func (k *compiler) parts(r *Rule) error {
	if r == nil {
		return nil
	}
	if len(r.Overrides) > 0 {
		k.entry.overrides = make([]override, 0, len(r.Overrides))
	}
	for i := range r.Overrides {
		o := &r.Overrides[i]
		when, err := k.predicate(o.Predicate)
		if err != nil {
			return fmt.Errorf("override %d: %w", i, err)
		}
		to, err := k.choice(o.Value, o.Variant)
		if err != nil {
			return fmt.Errorf("override %d: %w", i, err)
		}
		k.entry.overrides = append(k.entry.overrides, override{when, to})
	}
	if r.Rollout == nil {
		return nil
	}
	return k.rolloutOf(r.Rollout)
}

func (k *compiler) rolloutOf(r *Rollout) error {
	out := &rollout{salt: saltHash(r.Salt), ranges: make([]choiceRange, 0, len(r.Buckets))}
	if r.Predicate != nil {
		var err error
		if out.when, err = k.predicate(*r.Predicate); err != nil {
			return fmt.Errorf("rollout: %w", err)
		}
	}
	key, isProp := strings.CutPrefix(r.BucketBy, "props.")
	switch {
	case isProp:
		out.by = unitProp
		out.key.start = uint32(len(k.code))
		k.code = append(k.code, key...)
		out.key.end = uint32(len(k.code))
	case r.BucketBy == "anon_id":
		out.by = unitAnonID
	case r.BucketBy != "distinct_id" && r.BucketBy != "":
		return fmt.Errorf("rollout: bucket_by %q is not known", r.BucketBy)
	}
	at := 0
	for i, b := range r.Buckets {
		to, err := k.choice(b.Value, b.Variant)
		if err != nil {
			return fmt.Errorf("bucket %d: %w", i, err)
		}
		if b.Start == b.End {
			continue
		}
		if b.Start < at || b.End < b.Start || b.End > Buckets {
			return fmt.Errorf("bucket %d: %d to %d overlaps or is out of range", i, b.Start, b.End)
		}
		at = b.End
		out.ranges = append(out.ranges, choiceRange{uint32(b.Start), uint32(b.End), to})
	}
	k.entry.rollout = out
	return nil
}

// predicate gives where the predicate's program stands in code.
func (k *compiler) predicate(text string) (span, error) {
	p, err := predicate.Parse(text)
	if err != nil {
		return span{}, err
	}
	start := len(k.code)
	k.code = p.AppendProgram(k.code)
	return span{uint32(start), uint32(len(k.code))}, nil
}

func (k *compiler) choice(value, variant *string) (uint16, error) {
	if len(k.starts)/2 > maxChoices || len(k.choices) > maxText {
		return 0, errors.New("has too many or too long values")
	}
	if !k.flag {
		if value == nil {
			return 0, errors.New("has no value")
		}
		return k.render(*value, ""), nil
	}
	if variant == nil {
		return 0, errors.New("has no variant")
	}
	text, ok := k.values[*variant]
	if !ok {
		return 0, fmt.Errorf("variant %q is unknown", *variant)
	}
	return k.render(text, *variant), nil
}

// outcome renders the default's answer.
func (k *compiler) outcome(reason Reason, value, variant string) Outcome {
	if reason == ReasonError {
		if text, err := compactJSON(value); err == nil {
			value = text
		}
	}
	return Outcome{k.render(value, variant), reason}
}

// render renders a choice and gives its index.
func (k *compiler) render(value, variant string) uint16 {
	of := choice{value, variant}
	if i, ok := k.made[of]; ok {
		return i
	}
	if _, err := compactJSON(value); err != nil {
		value = "null" // unreadable text would spoil the whole answer that it is pasted into
	}
	i := len(k.starts) / 2
	k.starts = append(k.starts, uint32(len(k.choices)))
	k.handshake(value, variant)
	k.starts = append(k.starts, uint32(len(k.choices)))
	k.openFeature(value, variant)
	if k.made == nil {
		k.made = map[choice]uint16{}
	}
	k.made[of] = uint16(i)
	return uint16(i)
}

func (k *compiler) handshake(value, variant string) {
	b := append(appendString(k.choices, k.entry.Key), `:{"value":`...)
	b = append(b, value...)
	if k.flag {
		b = appendString(append(b, `,"variant":`...), variant)
	} else {
		b = appendString(append(b, `,"type":`...), string(k.kind))
	}
	k.choices = append(b, `,"reason":"`...)
}

func (k *compiler) openFeature(value, variant string) {
	b := append(k.choices, '"')
	if variant != "" {
		b = appendString(append(b, `,"variant":`...), variant)
	}
	b = append(append(b, `,"value":`...), value...)
	b = strconv.AppendInt(append(b, `,"metadata":{"version":`...), k.entry.version, 10)
	k.choices = append(b, "}}"...)
}

// done puts the text together and moves everything that stands in it to its place.
func (k *compiler) done() *Entry {
	e := k.entry
	b := make([]byte, 0, 2*len(e.Key)+len(k.choices)+len(k.code)+64)
	b = append(b, e.Key...)
	b = strconv.AppendInt(append(b, `","version":`...), e.version, 10)
	b = append(b, '}')
	e.opening = uint32(len(b))
	b = append(appendString(append(b, `{"key":`...), e.Key), `,"reason":"`...)
	e.choices = make([]uint32, 0, len(k.starts)+1)
	for _, start := range k.starts {
		e.choices = append(e.choices, uint32(len(b))+start)
	}
	b = append(b, k.choices...)
	code := uint32(len(b))
	e.choices = append(e.choices, code)
	b = append(b, k.code...)
	if short := step - 1 - len(k.code); short > 0 {
		b = append(b, make([]byte, short)...)
	}
	for i := range e.overrides {
		e.overrides[i].when.move(code)
	}
	if e.rollout != nil {
		e.rollout.when.move(code)
		e.rollout.key.move(code)
	}
	e.text = string(b)
	e.Key = e.text[:len(e.Key)]
	return e
}

// move shifts a span that is not empty.
func (s *span) move(by uint32) {
	if s.end > 0 {
		s.start += by
		s.end += by
	}
}
