package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"skerry/pkg/atomicfile"
	"skerry/writeplane"
	"skerry/writeplane/access"
	"skerry/writeplane/postgres"
)

type bootstrapCommand struct {
	database
	identity
	Organization string `help:"Name of the organization." required:""`
	Project      string `help:"Name of its first project." required:""`
	Tier         string `help:"Tier: hobby, pro, growth or enterprise." enum:"hobby,pro,growth,enterprise" default:"hobby"`
	Email        string `help:"Email of the owner." required:"" placeholder:"EMAIL"`
	Plan         string `help:"File that the ids are written to before anything is made. Repeating the command with it is safe and prints the same." required:"" type:"path" placeholder:"FILE"`
}

// Run makes the first organization, its project and its owner, and prints
// their ids and the owner's token.
func (cmd *bootstrapCommand) Run(ctx context.Context, streams Streams) error {
	if err := cmd.validate(); err != nil {
		return err
	}
	sealing, err := readSealingKeys(cmd.SealingKeyFile)
	if err != nil {
		return err
	}
	plan, err := cmd.plan()
	if err != nil {
		return err
	}
	config := access.Config{Issuer: cmd.Issuer, SealingKeys: sealing}
	tokens, err := writeplane.Found(ctx, postgres.Config{URL: cmd.PostgresURL, MaxConns: 2}, config, plan)
	if err != nil {
		return err
	}
	enc := json.NewEncoder(streams.Out)
	enc.SetIndent("", "  ")
	return enc.Encode(map[string]string{
		"organization_id": plan.OrganizationID, "project_id": plan.ProjectID, "token": tokens["owner"],
	})
}

// plan reads the file, or makes a new plan and writes it.
func (cmd *bootstrapCommand) plan() (plan access.Founding, err error) {
	raw, err := os.ReadFile(cmd.Plan)
	if err == nil {
		if err := json.Unmarshal(raw, &plan); err != nil || plan.OrganizationID == "" {
			return plan, usagef("--plan: %s is no plan of this command", cmd.Plan)
		}
		return plan, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return plan, usagef("--plan: %w", err)
	}
	plan = access.NewFounding(cmd.Organization, cmd.Project, cmd.Tier)
	// An organization of one owner; keys and further members are made by them.
	owner := plan.Members["owner"]
	owner.Email = cmd.Email
	plan.Members = map[string]access.FoundingMember{"owner": owner}
	plan.Keys = nil
	if err := plan.Validate(); err != nil {
		return plan, usagef("%s", strings.Replace(err.Error(), "invalid_body: ", "", 1)) // before the plan is written: a wrong one would be repeated
	}
	if raw, err = json.MarshalIndent(plan, "", "  "); err != nil {
		return plan, err
	}
	if err := atomicfile.Write(cmd.Plan, append(raw, '\n')); err != nil {
		return plan, fmt.Errorf("--plan: %w", err)
	}
	return plan, nil
}
