package handshake

import (
	"encoding/binary"
	"encoding/hex"

	"github.com/twmb/murmur3"

	"skerry/edgenode/view"
	"skerry/replication"
)

// format is the version of what the answers look like. It is part of every tag: when an
// answer to the same state and context changes with the program, this letter must change.
const format = 'a'

// Scope is what a tag covers beside the context.
type Scope uint8

// The scopes.
const (
	Whole       Scope = 'h' // the handshake
	Switch      Scope = 's' // flags
	Config      Scope = 'c' // config items
	OpenFeature Scope = 'o' // the bulk evaluation
)

// AppendTag appends the strong entity tag of an answer to a context. It needs no
// evaluation: state and context decide the answer, and positions name the state. All
// edges make the same tag.
func AppendTag(dst []byte, scope Scope, env *view.Environment, context [16]byte) []byte {
	var room [192]byte
	b := append(room[:0], format, byte(scope))
	b = append(b, context[:]...)
	b = append(b, env.ProjectID...)
	b = append(b, env.Name...)
	for _, r := range [...]replication.Revision{
		scope.revision(env), env.Modules.Cohorts, env.Modules.Settings,
	} {
		b = binary.BigEndian.AppendUint64(b, uint64(r.Normal))
		b = binary.BigEndian.AppendUint64(b, uint64(r.Urgent))
	}
	h1, h2 := murmur3.Sum128(b)
	var sum [16]byte
	for i := range 8 {
		sum[i], sum[8+i] = byte(h1>>(56-8*i)), byte(h2>>(56-8*i))
	}
	dst = append(dst, '"')
	dst = hex.AppendEncode(dst, sum[:])
	return append(dst, '"')
}

// revision is what the scope depends on, beside cohorts and settings.
func (s Scope) revision(env *view.Environment) replication.Revision {
	switch s {
	case Switch:
		return env.Modules.Switch
	case Config:
		return env.Modules.Config
	case OpenFeature:
		return env.Modules.Switch.Max(env.Modules.Config)
	}
	return env.Revision
}
