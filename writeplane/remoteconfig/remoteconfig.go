// Package remoteconfig holds config items with their append-only version log and rollback
// (specification, Config item, Config version, POST rollback; supplement §4).
//
// It promises: versions of an item are numbered without gaps however many change it at
// once; a version, once written, is never changed or removed, which the database enforces
// against the program itself; a rollback writes a new version.
package remoteconfig

import (
	"time"

	"skerry/pkg/decide"
	"skerry/pkg/instant"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/form"
)

// Item is one config item as it is stored.
type Item struct {
	ID             string
	ProjectID      string
	OrganizationID string // of its project
	Environment    string
	Key            string
	Type           decide.Type
	DefaultValue   string // serialized
	Description    string
	Rule           *decide.Rule
	Salt           *string // of rollouts, once there was one
	IsArchived     bool
	CurrentVersion int64
	CreatedAt      time.Time
	UpdatedAt      time.Time
}

// The actions of versions.
const (
	created    = "created"
	changed    = "changed"
	rolledBack = "rolled_back"
)

// Version is one row of an item's log.
type Version struct {
	ID            string       `json:"id"`
	ItemID        string       `json:"item_id"`
	VersionNumber int64        `json:"version_number"`
	Action        string       `json:"action"`
	ValueSnapshot string       `json:"value_snapshot"`
	RuleSnapshot  *string      `json:"rule_snapshot"`
	ActorID       string       `json:"actor_id"`
	ActorEmail    *string      `json:"actor_email"`
	Note          *string      `json:"note"`
	CreatedAt     instant.Time `json:"created_at"`
}

// view is the item as the API shows it: exactly the specification's fields.
type view struct {
	ID             string       `json:"id"`
	ProjectID      string       `json:"project_id"`
	Environment    string       `json:"environment"`
	Key            string       `json:"key"`
	Type           decide.Type  `json:"type"`
	DefaultValue   string       `json:"default_value"`
	Description    string       `json:"description"`
	IsArchived     bool         `json:"is_archived"`
	CurrentVersion int64        `json:"current_version"`
	CreatedAt      instant.Time `json:"created_at"`
	UpdatedAt      instant.Time `json:"updated_at"`
}

func (i *Item) view() view {
	return view{
		ID: i.ID, ProjectID: i.ProjectID, Environment: i.Environment, Key: i.Key, Type: i.Type, DefaultValue: i.DefaultValue,
		Description: i.Description, IsArchived: i.IsArchived, CurrentVersion: i.CurrentVersion,
		CreatedAt: instant.Of(i.CreatedAt), UpdatedAt: instant.Of(i.UpdatedAt),
	}
}

// traced is the item as the audit log keeps it: the rule belongs to what was changed.
type traced struct {
	view
	Rule *decide.Rule `json:"rule"`
}

func (i *Item) traced() traced { return traced{i.view(), i.Rule} }

// patchable is what PATCH can change, in the form that a merge patch applies to.
func (i *Item) patchable() map[string]any {
	return map[string]any{
		"default_value": i.DefaultValue, "description": i.Description, "rule": i.Rule, "is_archived": i.IsArchived,
	}
}

func (i *Item) project() access.Project {
	return access.Project{ID: i.ProjectID, OrganizationID: i.OrganizationID}
}

// put hands the item's document over; an archived item has none.
func (i *Item) put(tx *commit.Tx) error {
	subject := replication.ConfigSubject(i.ProjectID, i.Environment, i.Key)
	if i.IsArchived {
		tx.Delete(subject)
		return nil
	}
	return tx.Put(subject, state.ConfigItem{
		ID: i.ID, Key: i.Key, Type: i.Type, DefaultValue: i.DefaultValue, Rule: i.Rule, Version: i.CurrentVersion,
	})
}

func (i *Item) entry(action string, before, after any) commit.Entry {
	return commit.Entry{
		OrganizationID: i.OrganizationID, ProjectID: i.ProjectID, Action: action,
		ResourceType: "config_item", ResourceID: i.ID, Before: before, After: after,
	}
}

// decidesAs reports whether two states of an item decide the same: a version records the
// difference.
func (i *Item) decidesAs(o *Item) bool {
	return i.DefaultValue == o.DefaultValue && i.Rule.Equal(o.Rule)
}

// surroundings are what a check has to know beside the body.
type surroundings struct {
	before    *Item // nil: a new item
	hasCohort func(string) bool
}

// fill reads everything of the form that may change into i, noting every problem.
func (i *Item) fill(in *form.Form, s surroundings) {
	i.Description, _ = in.Text("description", form.MaxText)
	if text, ok := in.RequiredText("default_value", form.MaxValue); ok && i.Type.IsItemType() {
		normal, err := decide.NormalizeValue(i.Type, text)
		if err != nil {
			in.Fault(decide.InvalidValue, "default_value", "%s", err)
		}
		i.DefaultValue = normal
	}
	rule := in.Any("rule")
	if !i.Type.IsItemType() {
		return // what the rule's values are is not known
	}
	c := decide.RuleContext{Path: "rule", Type: i.Type, HasCohort: s.hasCohort}
	if s.before != nil {
		c.Before = s.before.Rule
		if s.before.Salt != nil {
			c.Salt = *s.before.Salt
		}
	}
	checked, problems := decide.CheckRule(rule, c)
	in.Add(problems)
	i.Rule = checked
	if checked != nil && checked.Rollout != nil {
		i.Salt = &checked.Rollout.Salt
	}
}
