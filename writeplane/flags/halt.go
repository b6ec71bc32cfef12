package flags

import (
	"encoding/json"
	"net/http"
	"strings"

	"skerry/pkg/decide"
	"skerry/pkg/instant"
	"skerry/pkg/jsonbody"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/form"
)

// change stores a patched flag: the version rises when it decides otherwise than before;
// a patch that changes nothing leaves no trace.
func change(tx *commit.Tx, before, after *Flag) error {
	decides := !before.decidesAs(after)
	if !decides && before.Description == after.Description && before.IsArchived == after.IsArchived {
		return nil
	}
	if decides {
		after.CurrentVersion++
	}
	after.UpdatedAt = instant.Next(before.UpdatedAt)
	if err := update(tx, after); err != nil {
		return err
	}
	action := "switch.flag.updated"
	if before.Enabled != after.Enabled {
		action = "switch.flag.toggled"
	}
	tx.Audit(after.entry(action, before.full(), after.full()))
	if !decides && before.IsArchived == after.IsArchived {
		return nil // a description is nothing that edges know
	}
	return after.put(tx)
}

// The refusals of the halt webhook (specification, Errors).
var (
	ErrFlagKey      = problem.New(problem.Invalid, "flag_key is required")
	ErrReason       = problem.New(problem.Invalid, "reason is required")
	ErrFlagNotFound = problem.New(problem.NotFound, "flag not found")
	ErrSwitchOff    = problem.New(problem.Forbidden, "Switch disabled: module disabled")
)

// HaltActor is the actor of a halt by webhook in the audit log.
const HaltActor = "system:halt-webhook"

// haltRequest is the body of the halt webhook. What automation sends is taken as far as
// possible: a kill switch does not fail over a member that it does not need.
type haltRequest struct {
	FlagKey     string
	Environment string // empty: the key's own
	Reason      string
	EvidenceURL *string
}

// readHalt checks in the order of the specification.
func readHalt(body []byte) (haltRequest, error) {
	var members map[string]json.RawMessage // what is not needed stays unread: it may be a number that no machine holds
	if json.Unmarshal(body, &members) != nil {
		return haltRequest{}, ErrFlagKey
	}
	text := func(name string) (text string) {
		_ = json.Unmarshal(members[name], &text) // empty when it is absent or something else
		return text
	}
	in := haltRequest{FlagKey: text("flag_key"), Reason: storable(text("reason")), Environment: text("environment")}
	if in.FlagKey == "" {
		return in, ErrFlagKey
	}
	if in.Reason == "" {
		return in, ErrReason
	}
	env := members["environment"]
	if env != nil && string(env) != "null" && in.Environment != "live" && in.Environment != "test" {
		return in, access.ErrEnvironment
	}
	if url := storable(text("evidence_url")); url != "" {
		in.EvidenceURL = &url
	}
	return in, nil
}

// storable cuts a text to what a column is meant for and takes NUL out, which no column
// can hold.
func storable(s string) string {
	s = strings.ReplaceAll(s, "\x00", "\uFFFD")
	if runes := []rune(s); len(runes) > form.MaxText {
		return string(runes[:form.MaxText])
	}
	return s
}

// Halt serves POST /api/switch/halt-webhook.
func (m *Module) Halt(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	body, err := jsonbody.ReadUTF8(r, jsonbody.Limit) // a reason that was cut within an emoji is one, too
	if err != nil {
		if p, ok := err.(*problem.Error); ok && p.Kind == problem.TooLarge {
			return err
		}
		return ErrFlagKey
	}
	in, err := readHalt(body)
	if err != nil {
		return err
	}
	if !c.Key.Modules.Switch {
		return ErrSwitchOff
	}
	if in.Environment != "" && in.Environment != c.Key.Environment || !decide.ValidKey(in.FlagKey) {
		return ErrFlagNotFound
	}
	var f *Flag
	err = m.store.InTx(r.Context(), c.OriginAs(HaltActor), func(tx *commit.Tx) error {
		f, err = one(r.Context(), tx, "f.project_id = $1 AND f.environment = $2 AND f.key = $3 AND NOT f.is_archived "+locked,
			c.Key.ProjectID, c.Key.Environment, in.FlagKey)
		if err == access.ErrNotFound {
			return ErrFlagNotFound
		}
		if err != nil || f.HaltedAt != nil {
			return err
		}
		return halt(tx, f, in)
	})
	if err != nil {
		return err
	}
	return reply.JSON(w, http.StatusOK, map[string]any{"flag": f.view()})
}

func halt(tx *commit.Tx, f *Flag, in haltRequest) error {
	before := f.full()
	at := instant.Next(f.UpdatedAt)
	f.HaltedAt, f.HaltReason, f.UpdatedAt = &at, &in.Reason, at
	f.CurrentVersion++
	if err := update(tx, f); err != nil {
		return err
	}
	entry := f.entry("switch.flag.halted", before, f.full())
	if in.EvidenceURL != nil {
		entry.Metadata = map[string]any{"evidence_url": *in.EvidenceURL}
	}
	tx.Audit(entry)
	tx.Emit(commit.Event{
		Name: "switch.flag.halted", OrganizationID: f.OrganizationID, ProjectID: f.ProjectID, Environment: f.Environment,
		Data: map[string]any{"flag": f.view(), "reason": in.Reason, "evidence_url": in.EvidenceURL},
	})
	return tx.Put(replication.HaltSubject(f.ProjectID, f.Environment, f.Key), state.Halt{
		FlagID: f.ID, Key: f.Key, Version: f.CurrentVersion, DefaultValue: f.DefaultValue, DefaultVariant: f.DefaultVariant,
		HaltedAt: at, Reason: in.Reason,
	})
}

// Resume serves POST /api/v1/switch/flags/{id_or_key}/resume. The body may be empty.
func (m *Module) Resume(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	env, note, err := readResume(r)
	if err != nil {
		return err
	}
	var f *Flag
	err = m.change(r, c, env, func(tx *commit.Tx, named *Flag) error {
		f = named
		if err := reply.IfMatch(r, f.full()); err != nil {
			return err
		}
		if f.HaltedAt == nil {
			return nil
		}
		return resume(tx, f, note)
	})
	if err != nil {
		return err
	}
	return reply.Resource(w, http.StatusOK, "flag", f.full(), nil)
}

func readResume(r *http.Request) (env, note string, err error) {
	body, err := jsonbody.Read(r, jsonbody.Limit)
	if err != nil || len(strings.TrimSpace(string(body))) == 0 {
		return "", "", err
	}
	in, err := form.Of(body)
	if err != nil {
		return "", "", err
	}
	env, given := in.Text("environment", form.MaxText)
	note, _ = in.Text("note", form.MaxText)
	if err := in.Err(); err != nil {
		return "", "", err
	}
	if given && env != "live" && env != "test" {
		return "", "", access.ErrEnvironment
	}
	return env, note, nil
}

func resume(tx *commit.Tx, f *Flag, note string) error {
	before := f.full()
	f.HaltedAt, f.HaltReason = nil, nil
	f.UpdatedAt = instant.Next(f.UpdatedAt)
	f.CurrentVersion++
	if err := update(tx, f); err != nil {
		return err
	}
	entry := f.entry("switch.flag.unhalted", before, f.full())
	if note != "" {
		entry.Metadata = map[string]any{"note": note}
	}
	tx.Audit(entry)
	tx.Delete(replication.HaltSubject(f.ProjectID, f.Environment, f.Key))
	return f.put(tx)
}
