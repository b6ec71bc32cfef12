package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
)

type flagsCommands struct {
	List   flagsList   `cmd:"" help:"List feature flags."`
	Halt   flagsHalt   `cmd:"" help:"Force a flag to its default value everywhere, with an API key."`
	Resume flagsResume `cmd:"" help:"Let a halted flag decide again."`
}

type flagsList struct {
	connection
	ofProject
	inEnvironment
	listing
}

// Run lists an environment's flags.
func (cmd *flagsList) Run(ctx context.Context, c *client) error {
	return c.show(ctx, cmd.listing, "/api/v1/switch/flags", c.within(cmd.ofProject, cmd.inEnvironment), "flags",
		"KEY=key", "KIND=kind", "ENABLED=enabled", "DEFAULT=default_value", "VERSION=current_version",
		"HALTED AT=halted_at", "REASON=halt_reason", "ID=id")
}

type flagsHalt struct {
	connection
	APIKey      string `name:"api-key" help:"Project API key: the halt is authorized by it alone." placeholder:"KEY"`
	Key         string `arg:"" help:"Key of the flag."`
	Environment string `help:"Environment; the key's own when absent." enum:"live,test," default:"" short:"e"`
	Reason      string `help:"Why; kept with the flag and in the audit log." required:""`
	Evidence    string `help:"Address of a dashboard or an alert that shows it." placeholder:"URL"`
}

// Run halts one flag. Halting again changes nothing, so a retry is safe.
func (cmd *flagsHalt) Run(ctx context.Context, c *client) error {
	key := first(cmd.APIKey, c.apiKeys[first(cmd.Environment, "live")])
	if key == "" {
		return usagef("--api-key (or SKERRY_API_KEY, or --credentials) is required")
	}
	body := map[string]string{"flag_key": cmd.Key, "reason": cmd.Reason}
	if cmd.Environment != "" {
		body["environment"] = cmd.Environment
	}
	if cmd.Evidence != "" {
		body["evidence_url"] = cmd.Evidence
	}
	r := request{method: "POST", path: "/api/switch/halt-webhook", body: body, apiKey: key}
	return c.act(ctx, r, "flag", "halted %s in %s at %s (version %s): %s",
		"key", "environment", "halted_at", "current_version", "halt_reason")
}

type flagsResume struct {
	connection
	ofProject
	inEnvironment
	Key  string `arg:"" help:"Key or id of the flag."`
	Note string `help:"Why; kept in the audit log."`
}

// Run resumes one flag.
func (cmd *flagsResume) Run(ctx context.Context, c *client) error {
	body := map[string]string{"environment": cmd.Environment}
	if cmd.Note != "" {
		body["note"] = cmd.Note
	}
	r := request{
		method: "POST", path: "/api/v1/switch/flags/" + url.PathEscape(cmd.Key) + "/resume",
		query: map[string]string{"project_id": first(cmd.Project, c.project)}, body: body,
	}
	return c.act(ctx, r, "flag", "resumed %s in %s (version %s)", "key", "environment", "current_version")
}

type configCommands struct {
	List     configList     `cmd:"" help:"List remote config items."`
	Versions configVersions `cmd:"" help:"List an item's newest 100 versions."`
	Rollback configRollback `cmd:"" help:"Make an earlier version the newest again."`
}

const itemsPath = "/api/v1/config/items"

type configList struct {
	connection
	ofProject
	inEnvironment
	listing
}

// Run lists an environment's items.
func (cmd *configList) Run(ctx context.Context, c *client) error {
	return c.show(ctx, cmd.listing, itemsPath, c.within(cmd.ofProject, cmd.inEnvironment), "items",
		"KEY=key", "TYPE=type", "DEFAULT=default_value", "VERSION=current_version", "ARCHIVED=is_archived", "UPDATED=updated_at", "ID=id")
}

// oneItem names a config item by id or, within an environment, by key.
type oneItem struct {
	connection
	ofProject
	inEnvironment
	Item string `arg:"" help:"Key or id of the item."`
}

func (cmd *oneItem) find(ctx context.Context, c *client) (string, error) {
	items, err := c.list(ctx, itemsPath, "items", c.within(cmd.ofProject, cmd.inEnvironment), 1<<20)
	if err != nil {
		return "", err
	}
	for _, item := range items {
		if item["key"] == cmd.Item || item["id"] == cmd.Item {
			return item.text("id"), nil
		}
	}
	return "", fmt.Errorf("no item %q in %s", cmd.Item, cmd.Environment)
}

func (cmd *oneItem) versions(ctx context.Context, c *client, id string) ([]row, error) {
	raw, err := c.do(ctx, request{method: "GET", path: itemsPath + "/" + url.PathEscape(id) + "/versions"})
	if err != nil {
		return nil, err
	}
	var answer struct{ Versions []row }
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, fmt.Errorf("read versions: %w", err)
	}
	return answer.Versions, nil
}

type configVersions struct{ oneItem }

// Run lists an item's versions, newest first.
func (cmd *configVersions) Run(ctx context.Context, c *client) error {
	id, err := cmd.find(ctx, c)
	if err != nil {
		return err
	}
	versions, err := cmd.versions(ctx, c, id)
	if err != nil {
		return err
	}
	return c.rows("versions", versions, "VERSION=version_number", "ACTION=action", "VALUE=value_snapshot",
		"RULE=rule_snapshot", "BY=actor_email", "AT=created_at", "NOTE=note", "ID=id")
}

type configRollback struct {
	oneItem
	To   int    `help:"Number of the version to return to." required:"" placeholder:"N"`
	Note string `help:"Why; kept with the new version."`
}

// Run rolls an item back to one of its newest 100 versions.
func (cmd *configRollback) Run(ctx context.Context, c *client) error {
	id, err := cmd.find(ctx, c)
	if err != nil {
		return err
	}
	versions, err := cmd.versions(ctx, c, id)
	if err != nil {
		return err
	}
	body := map[string]string{}
	for _, v := range versions {
		if v.text("version_number") == strconv.Itoa(cmd.To) {
			body["version_id"] = v.text("id")
		}
	}
	if body["version_id"] == "" {
		return fmt.Errorf("%s has no version %d among its newest 100", cmd.Item, cmd.To)
	}
	if cmd.Note != "" {
		body["note"] = cmd.Note
	}
	r := request{method: "POST", path: itemsPath + "/" + url.PathEscape(id) + "/rollback", body: body}
	return c.act(ctx, r, "item", "%s is now %s (version %s)", "key", "default_value", "current_version")
}
