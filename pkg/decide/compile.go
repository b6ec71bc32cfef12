package decide

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"unsafe"

	"skerry/pkg/predicate"
)

// Entry is one compiled flag or config item. It is immutable.
type Entry struct {
	Key       string
	overrides []override
	rollout   *rollout // nil: none
	fallback  int      // index of the default's outcome
	outcomes  []Outcome
	size      int
}

type override struct {
	when    *predicate.Predicate
	outcome int
}

type rollout struct {
	when   *predicate.Predicate // nil: everybody
	by     unitKind
	key    string // of props.<key>
	salt   salted
	ranges []outcomeRange // in order, none empty
}

type outcomeRange struct {
	start, end uint32
	outcome    int
}

type unitKind uint8

const (
	unitDistinctID unitKind = iota
	unitAnonID
	unitProp
)

// Outcome is one possible answer, rendered. Its bytes are shared: callers copy and never change them.
type Outcome struct {
	Reason Reason
	// Handshake is `"key":{"value":…,"variant":…,"reason":…,"version":…}`; config items have "type" for "variant".
	Handshake []byte
	// OpenFeature is the whole answer of a single evaluation and an element of a bulk one.
	OpenFeature []byte
}

// Size is about how many bytes the entry holds.
func (e *Entry) Size() int { return e.size }

// Decide finds the answer for a user.
func (e *Entry) Decide(c *Context) *Outcome {
	for i := range e.overrides {
		if e.overrides[i].when.Eval(c) {
			return &e.outcomes[e.overrides[i].outcome]
		}
	}
	if e.rollout != nil {
		if i := e.rollout.outcome(c); i >= 0 {
			return &e.outcomes[i]
		}
	}
	return &e.outcomes[e.fallback]
}

func (r *rollout) outcome(c *Context) int {
	unit := c.unit(r.by, r.key)
	if len(unit) == 0 || r.when != nil && !r.when.Eval(c) {
		return -1
	}
	bucket := r.salt.bucket(unit)
	ranges := r.ranges
	if len(ranges) > 8 {
		ranges = ranges[sort.Search(len(ranges), func(i int) bool { return bucket < ranges[i].end }):]
	}
	for i := range ranges {
		if bucket < ranges[i].end {
			if bucket >= ranges[i].start {
				return ranges[i].outcome
			}
			return -1
		}
	}
	return -1
}

// CompileFlag compiles a flag and the halt that overlays it (nil: not halted). It always gives an entry: when something
// in the definition cannot be understood, which the write plane prevents, the entry answers the default with reason
// "error" and err tells why.
func CompileFlag(d *FlagDefinition, h *HaltDefinition) (*Entry, error) {
	k := compiler{entry: &Entry{Key: d.Key}, version: d.Version, flag: true, ruled: d.Rule != nil,
		values: make(map[string]string, len(d.Variants))}
	for _, v := range d.Variants {
		k.values[v.Key] = v.Value
	}
	switch {
	case h != nil:
		value, variant := d.DefaultValue, d.DefaultVariant
		if h.Version >= d.Version {
			k.version, value, variant = h.Version, h.DefaultValue, h.DefaultVariant
		}
		k.entry.fallback = k.outcome(ReasonHalted, value, variant)
	case !d.Enabled:
		k.entry.fallback = k.outcome(ReasonDisabled, d.DefaultValue, d.DefaultVariant)
	default:
		return k.rule(d.Rule, d.DefaultValue, d.DefaultVariant)
	}
	return k.done(), nil
}

// CompileItem compiles a config item, as CompileFlag does a flag.
func CompileItem(d *ItemDefinition) (*Entry, error) {
	k := compiler{entry: &Entry{Key: d.Key}, version: d.Version, kind: d.Type, ruled: d.Rule != nil}
	return k.rule(d.Rule, d.DefaultValue, "")
}

type compiler struct {
	entry   *Entry
	version int64
	kind    Type // of a config item
	flag    bool
	ruled   bool
	values  map[string]string // of variants
	// made holds the outcomes that exist, so that many ranges of one variant share theirs.
	made map[outcomeKey]int
}

type outcomeKey struct {
	reason         Reason
	value, variant string
}

func (k *compiler) rule(r *Rule, value, variant string) (*Entry, error) {
	if err := k.parts(r); err != nil {
		failed := compiler{entry: &Entry{Key: k.entry.Key}, version: k.version, kind: k.kind, flag: k.flag, ruled: true}
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
	for i := range r.Overrides {
		o := &r.Overrides[i]
		when, err := predicate.Parse(o.Predicate)
		if err != nil {
			return fmt.Errorf("override %d: %w", i, err)
		}
		to, err := k.choice(ReasonOverride, o.Value, o.Variant)
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
	out := &rollout{salt: saltHash(r.Salt)}
	if r.Predicate != nil {
		when, err := predicate.Parse(*r.Predicate)
		if err != nil {
			return fmt.Errorf("rollout: %w", err)
		}
		out.when = when
	}
	key, isProp := strings.CutPrefix(r.BucketBy, "props.")
	switch {
	case isProp:
		out.by, out.key = unitProp, key
	case r.BucketBy == "anon_id":
		out.by = unitAnonID
	case r.BucketBy != "distinct_id" && r.BucketBy != "":
		return fmt.Errorf("rollout: bucket_by %q is not known", r.BucketBy)
	}
	at := 0
	for i, b := range r.Buckets {
		to, err := k.choice(ReasonRollout, b.Value, b.Variant)
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
		out.ranges = append(out.ranges, outcomeRange{uint32(b.Start), uint32(b.End), to})
	}
	k.entry.rollout = out
	return nil
}

func (k *compiler) choice(reason Reason, value, variant *string) (int, error) {
	if !k.flag {
		if value == nil {
			return 0, fmt.Errorf("has no value")
		}
		return k.outcome(reason, *value, ""), nil
	}
	if variant == nil {
		return 0, fmt.Errorf("has no variant")
	}
	text, ok := k.values[*variant]
	if !ok {
		return 0, fmt.Errorf("variant %q is unknown", *variant)
	}
	return k.outcome(reason, text, *variant), nil
}

// outcome renders an answer and gives its index.
func (k *compiler) outcome(reason Reason, value, variant string) int {
	key := outcomeKey{reason, value, variant}
	if i, ok := k.made[key]; ok {
		return i
	}
	if text, err := compactJSON(value); err != nil {
		value = "null" // unreadable text would spoil the whole answer that it is pasted into
	} else if reason == ReasonError {
		value = text
	}
	o := Outcome{Reason: reason}
	o.Handshake = k.handshake(reason, value, variant)
	o.OpenFeature = k.openFeature(reason, value, variant)
	if k.made == nil {
		k.made = map[outcomeKey]int{}
	}
	i := len(k.entry.outcomes)
	k.made[key] = i
	k.entry.outcomes = append(k.entry.outcomes, o)
	return i
}

func (k *compiler) handshake(reason Reason, value, variant string) []byte {
	b := make([]byte, 0, len(k.entry.Key)+len(value)+len(variant)+80)
	b = append(appendString(b, k.entry.Key), `:{"value":`...)
	b = append(b, value...)
	if k.flag {
		b = appendString(append(b, `,"variant":`...), variant)
	} else {
		b = appendString(append(b, `,"type":`...), string(k.kind))
	}
	b = appendString(append(b, `,"reason":`...), reason.String())
	b = strconv.AppendInt(append(b, `,"version":`...), k.version, 10)
	return append(b, '}')
}

func (k *compiler) openFeature(reason Reason, value, variant string) []byte {
	b := make([]byte, 0, len(k.entry.Key)+len(value)+len(variant)+96)
	b = appendString(append(b, `{"key":`...), k.entry.Key)
	if reason == ReasonError {
		return append(b, `,"errorCode":"GENERAL","errorDetails":"the stored definition cannot be evaluated"}`...)
	}
	b = appendString(append(b, `,"reason":`...), reason.openFeature(k.ruled))
	if variant != "" {
		b = appendString(append(b, `,"variant":`...), variant)
	}
	b = append(append(b, `,"value":`...), value...)
	b = strconv.AppendInt(append(b, `,"metadata":{"version":`...), k.version, 10)
	if reason == ReasonHalted {
		b = append(b, `,"halted":true`...)
	}
	return append(b, "}}"...)
}

// done reckons the size.
func (k *compiler) done() *Entry {
	e := k.entry
	e.size = int(unsafe.Sizeof(*e)) + len(e.Key)
	for i := range e.outcomes {
		e.size += int(unsafe.Sizeof(e.outcomes[i])) + cap(e.outcomes[i].Handshake) + cap(e.outcomes[i].OpenFeature)
	}
	for i := range e.overrides {
		e.size += int(unsafe.Sizeof(e.overrides[i])) + predicateSize(e.overrides[i].when)
	}
	if e.rollout != nil {
		e.size += int(unsafe.Sizeof(*e.rollout)) + predicateSize(e.rollout.when)
		e.size += len(e.rollout.ranges) * int(unsafe.Sizeof(outcomeRange{}))
	}
	return e
}

func predicateSize(p *predicate.Predicate) int {
	if p == nil {
		return 0
	}
	n := 0
	for node := range p.Nodes() {
		n += int(unsafe.Sizeof(*node)) + len(node.Name) + len(node.Value)
	}
	return n
}
