package surveys

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"

	"skerry/pkg/survey"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
)

//go:embed demo.json
var demo []byte

// Demo are the surveys of the demonstration project: one of every kind, together all
// kinds of questions, one with branching and two languages. Each has a slug.
func Demo() []survey.Authored {
	var authored []survey.Authored
	if err := json.Unmarshal(demo, &authored); err != nil {
		panic("BUG: the demo surveys do not parse: " + err.Error())
	}
	return authored
}

// AddDemo makes and publishes those demo surveys that the project does not have yet,
// so it may be run again after dying at any point.
func (m *Module) AddDemo(ctx context.Context, projectID, organizationID string) error {
	origin := commit.Origin{Actor: commit.Actor{ID: "system:demo"}}
	for _, authored := range Demo() {
		stored, err := Load(ctx, m.store.Pool(), projectID, *authored.Slug)
		if errors.Is(err, access.ErrNotFound) {
			stored, err = m.Add(ctx, origin, access.Project{ID: projectID, OrganizationID: organizationID}, &authored)
		}
		if err != nil {
			return fmt.Errorf("add demo survey %s: %w", *authored.Slug, err)
		}
		if stored.Bundle.Survey.Status != survey.Draft {
			continue
		}
		if err := m.Publish(ctx, origin, stored.Bundle.Survey.ID); err != nil {
			return fmt.Errorf("publish demo survey %s: %w", *authored.Slug, err)
		}
	}
	return nil
}
