// Package flags holds feature flags and their kill switch (specification, Flag and Flag
// halt state; supplement §4).
//
// It promises: a halt is one step however many ask for it at once, and travels ahead of
// all other changes; a change is checked as a whole before any of it is stored;
// current_version rises with every change of what a flag decides. It does not decide:
// that is pkg/decide, at the edges.
package flags

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"skerry/pkg/decide"
	"skerry/pkg/instant"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/form"
)

// Flag is one flag as it is stored.
type Flag struct {
	ID             string
	ProjectID      string
	OrganizationID string // of its project
	Environment    string
	Key            string
	Kind           decide.Type
	Description    string
	DefaultValue   string // serialized
	DefaultVariant string
	Variants       []decide.Variant
	Enabled        bool
	Rule           *decide.Rule
	Salt           *string // of rollouts, once there was one
	IsArchived     bool
	CurrentVersion int64
	HaltedAt       *time.Time
	HaltReason     *string
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// view is the flag as the halt endpoint shows it: exactly the specification's fields.
type view struct {
	ID             string        `json:"id"`
	ProjectID      string        `json:"project_id"`
	Environment    string        `json:"environment"`
	Key            string        `json:"key"`
	Kind           decide.Type   `json:"kind"`
	Description    string        `json:"description"`
	DefaultValue   string        `json:"default_value"`
	DefaultVariant string        `json:"default_variant"`
	IsArchived     bool          `json:"is_archived"`
	CurrentVersion int64         `json:"current_version"`
	HaltedAt       *instant.Time `json:"halted_at"`
	HaltReason     *string       `json:"halt_reason"`
	HaltCondition  *string       `json:"halt_condition"` // reserved, null
	CreatedAt      instant.Time  `json:"created_at"`
	UpdatedAt      instant.Time  `json:"updated_at"`
}

// fullView is the flag as management shows it.
type fullView struct {
	view
	Enabled  bool             `json:"enabled"`
	Variants []decide.Variant `json:"variants"`
	Rule     *decide.Rule     `json:"rule"`
}

func (f *Flag) view() view {
	return view{
		ID: f.ID, ProjectID: f.ProjectID, Environment: f.Environment, Key: f.Key, Kind: f.Kind, Description: f.Description,
		DefaultValue: f.DefaultValue, DefaultVariant: f.DefaultVariant, IsArchived: f.IsArchived, CurrentVersion: f.CurrentVersion,
		HaltedAt: instant.OfPtr(f.HaltedAt), HaltReason: f.HaltReason,
		CreatedAt: instant.Of(f.CreatedAt), UpdatedAt: instant.Of(f.UpdatedAt),
	}
}

func (f *Flag) full() fullView {
	variants := f.Variants
	if variants == nil {
		variants = []decide.Variant{}
	}
	return fullView{view: f.view(), Enabled: f.Enabled, Variants: variants, Rule: f.Rule}
}

// patchable is what PATCH can change, in the form that a merge patch applies to.
func (f *Flag) patchable() map[string]any {
	return map[string]any{
		"description": f.Description, "default_value": f.DefaultValue, "default_variant": f.DefaultVariant,
		"variants": f.full().Variants, "enabled": f.Enabled, "rule": f.Rule, "is_archived": f.IsArchived,
	}
}

func (f *Flag) project() access.Project {
	return access.Project{ID: f.ProjectID, OrganizationID: f.OrganizationID}
}

// document is what edges know of the flag.
func (f *Flag) document() state.Flag {
	return state.Flag{
		ID: f.ID, Key: f.Key, Kind: f.Kind, DefaultValue: f.DefaultValue, DefaultVariant: f.DefaultVariant,
		Variants: f.Variants, Enabled: f.Enabled, Rule: f.Rule, Version: f.CurrentVersion,
	}
}

// put hands the flag's document over; an archived flag has none.
func (f *Flag) put(tx *commit.Tx) error {
	subject := replication.FlagSubject(f.ProjectID, f.Environment, f.Key)
	if f.IsArchived {
		tx.Delete(subject)
		return nil
	}
	return tx.Put(subject, f.document())
}

func (f *Flag) entry(action string, before, after any) commit.Entry {
	return commit.Entry{
		OrganizationID: f.OrganizationID, ProjectID: f.ProjectID, Action: action,
		ResourceType: "flag", ResourceID: f.ID, Before: before, After: after,
	}
}

// decidesAs reports whether two states of a flag decide the same: what current_version
// counts is the difference.
func (f *Flag) decidesAs(o *Flag) bool {
	return f.DefaultValue == o.DefaultValue && f.DefaultVariant == o.DefaultVariant && f.Enabled == o.Enabled &&
		slices.Equal(f.Variants, o.Variants) && f.Rule.Equal(o.Rule)
}

// Limits.
const (
	maxVariants   = 1000
	maxVariantKey = 128
	// noVariant is the name of the default when its maker gave it none.
	noVariant = "default"
)

// surroundings are what a check has to know beside the body.
type surroundings struct {
	before    *Flag // nil: a new flag
	given     map[string]any
	hasCohort func(string) bool
}

// fill reads everything of the form that may change into f, noting every problem.
func (f *Flag) fill(in *form.Form, s surroundings) {
	f.Description, _ = in.Text("description", form.MaxText)
	f.Enabled = in.Bool("enabled", true)
	f.Variants = f.readVariants(in)
	f.readDefault(in, s)
	f.readRule(in, s)
}

func (f *Flag) readVariants(in *form.Form) []decide.Variant {
	var out []decide.Variant
	seen := map[string]bool{}
	for i, entry := range in.Array("variants", maxVariants) {
		at := fmt.Sprintf("variants[%d]", i)
		members, ok := entry.(map[string]any)
		if !ok {
			in.Fault(decide.InvalidBody, at, "must be an object")
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(members)) {
			if name != "key" && name != "value" {
				in.Fault(decide.InvalidBody, at+"."+name, "unknown member")
			}
		}
		var v decide.Variant
		if v.Key, ok = variantText(in, members, at, "key", maxVariantKey); ok && v.Key == "" {
			in.Fault(decide.InvalidBody, at+".key", "is empty")
		}
		if ok && seen[v.Key] {
			in.Fault(decide.InvalidBody, at+".key", "is there twice")
		}
		seen[v.Key] = true
		if text, ok := variantText(in, members, at, "value", form.MaxValue); ok {
			v.Value = f.value(in, at+".value", text)
		}
		out = append(out, v)
	}
	return out
}

func variantText(in *form.Form, members map[string]any, at, name string, max int) (string, bool) {
	if members[name] == nil {
		in.Fault(decide.InvalidBody, at+"."+name, "is required")
		return "", false
	}
	return in.CheckText(members[name], at+"."+name, max)
}

// value normalizes a serialized value. Of an unknown kind nothing can be said.
func (f *Flag) value(in *form.Form, path, text string) string {
	if !f.Kind.IsFlagKind() {
		return text
	}
	normal, err := decide.NormalizeValue(f.Kind, text)
	if err != nil {
		in.Fault(decide.InvalidValue, path, "%s", err)
	}
	return normal
}

// readDefault reads default_variant and default_value. Where the variant exists it brings
// the value, so the value is needed only without it and may then only repeat it.
func (f *Flag) readDefault(in *form.Form, s surroundings) {
	f.DefaultVariant = noVariant
	if name, ok := in.Text("default_variant", maxVariantKey); ok && name != "" {
		f.DefaultVariant = name
	}
	i := slices.IndexFunc(f.Variants, func(v decide.Variant) bool { return v.Key == f.DefaultVariant })
	read := in.Text
	if i < 0 {
		read = in.RequiredText
	}
	text, ok := read("default_value", form.MaxValue)
	if ok {
		f.DefaultValue = f.value(in, "default_value", text)
	}
	if i < 0 {
		return
	}
	if ok && s.given["default_value"] != nil && f.DefaultValue != f.Variants[i].Value {
		in.Fault(decide.InvalidValue, "default_value", "is not the value of the default variant %q", f.DefaultVariant)
	}
	f.DefaultValue = f.Variants[i].Value
}

func (f *Flag) readRule(in *form.Form, s surroundings) {
	c := decide.RuleContext{Path: "rule", Variants: f.Variants, HasCohort: s.hasCohort}
	if s.before != nil {
		c.Before = s.before.Rule
		if s.before.Salt != nil {
			c.Salt = *s.before.Salt
		}
	}
	rule, problems := decide.CheckRule(in.Any("rule"), c)
	in.Add(problems)
	f.Rule = rule
	if rule != nil && rule.Rollout != nil {
		f.Salt = &rule.Rollout.Salt
	}
}
