// Package decide finds the value that a flag or a config item has for one user:
// definitions and a context in, typed values with reasons out. See supplement §4.
//
// A definition (FlagDefinition, ItemDefinition) is what the write plane keeps and sends
// to the edges. Compile turns it into an Entry: immutable and small, with every possible
// choice rendered beforehand, so that deciding is a few comparisons, one hash and a copy
// of three pieces, without allocation. A Context is reused from request to request.
//
// The order of a decision: halted or disabled gives the default; then the overrides in
// order; then the rollout; then the default. The bucket of a unit is
//
//	(uint64(murmur3_x86_32(salt + "\x00" + unit, seed 0)) * 100000) >> 32
//
// and depends on nothing else: not on the key, the order of buckets or other flags.
//
// The package promises the same answer from the same definition and context on every
// machine and in every release (testdata/ holds vectors for client libraries too). It
// owns what a valid value and a valid rule are, since both planes must agree. It does no
// I/O and knows no HTTP.
package decide

import "time"

// Reason is why a value was given. See the handshake in supplement §4.
type Reason uint8

// The reasons, in the words of the handshake.
const (
	ReasonDefault Reason = iota + 1
	ReasonOverride
	ReasonRollout
	ReasonDisabled
	ReasonHalted
	ReasonError
)

var reasons = [...]padded{
	ReasonDefault: pad("default"), ReasonOverride: pad("override"), ReasonRollout: pad("rollout"),
	ReasonDisabled: pad("disabled"), ReasonHalted: pad("halted"), ReasonError: pad("error"),
}

// String is the reason as the handshake writes it.
func (r Reason) String() string { return reasons[r].text[:reasons[r].size] }

// openReasons are the reasons in the words of the OpenFeature Remote Evaluation Protocol;
// the first is for the default of a flag without a rule. Without a rule there is nothing
// to target, hence STATIC; a halted flag is pinned, hence STATIC too.
var openReasons = [...]padded{
	0: pad("STATIC"), ReasonDefault: pad("DEFAULT"), ReasonOverride: pad("TARGETING_MATCH"), ReasonRollout: pad("SPLIT"),
	ReasonDisabled: pad("DISABLED"), ReasonHalted: pad("STATIC"), ReasonError: pad("ERROR"),
}

// FlagDefinition is the body of a flag's document.
type FlagDefinition struct {
	ID             string    `json:"id"`
	Key            string    `json:"key"`
	Kind           Type      `json:"kind"`
	DefaultValue   string    `json:"default_value"` // serialized
	DefaultVariant string    `json:"default_variant"`
	Variants       []Variant `json:"variants,omitempty"`
	Enabled        bool      `json:"enabled"`
	Rule           *Rule     `json:"rule,omitempty"`
	Version        int64     `json:"version"`
}

// Variant is a named value of a flag.
type Variant struct {
	Key   string `json:"key"`
	Value string `json:"value"` // serialized
}

// HaltDefinition is the body of the document that overlays a halted flag. It travels in a
// lane of its own, so either of the two may be ahead: the default is taken from the one
// with the higher version.
type HaltDefinition struct {
	FlagID         string    `json:"flag_id"`
	Key            string    `json:"key"`
	Version        int64     `json:"version"`
	DefaultValue   string    `json:"default_value"` // serialized
	DefaultVariant string    `json:"default_variant"`
	HaltedAt       time.Time `json:"halted_at"`
	Reason         string    `json:"reason"`
}

// ItemDefinition is the body of a config item's document.
type ItemDefinition struct {
	ID           string `json:"id"`
	Key          string `json:"key"`
	Type         Type   `json:"type"`
	DefaultValue string `json:"default_value"` // serialized
	Rule         *Rule  `json:"rule,omitempty"`
	Version      int64  `json:"version"`
}
