package cli

import (
	"context"
	"net/url"
	"time"
)

type projectCommands struct {
	List   projectList   `cmd:"" help:"List the projects the token sees."`
	Create projectCreate `cmd:"" help:"Create a project."`
}

type projectList struct {
	connection
	listing
}

// Run lists projects.
func (cmd *projectList) Run(ctx context.Context, c *client) error {
	return c.show(ctx, cmd.listing, projectsPath, nil, "projects", "ID=id", "NAME=name", "CREATED=created_at")
}

type projectCreate struct {
	connection
	Name string `arg:"" help:"Name of the project."`
}

// Run creates a project.
func (cmd *projectCreate) Run(ctx context.Context, c *client) error {
	r := request{method: "POST", path: projectsPath, body: map[string]string{"name": cmd.Name}}
	return c.act(ctx, r, "project", "created project %s (%s)", "name", "id")
}

const keysPath = "/api/v1/api-keys/"

type keyCommands struct {
	List   keyList   `cmd:"" help:"List a project's API keys, revoked ones included."`
	Create keyCreate `cmd:"" help:"Create an API key; its secret is printed this once."`
	Rotate keyRotate `cmd:"" help:"Give a key a new secret, printed this once."`
	Revoke keyRevoke `cmd:"" help:"Revoke a key at once."`
}

type keyList struct {
	connection
	ofProject
	listing
}

// Run lists keys.
func (cmd *keyList) Run(ctx context.Context, c *client) error {
	path, err := c.projectPath(ctx, cmd.Project, "/api-keys")
	if err != nil {
		return err
	}
	return c.show(ctx, cmd.listing, path, nil, "api_keys", "ID=id", "NAME=name", "ENVIRONMENT=environment", "PREFIX=prefix",
		"CREATED=created_at", "LAST USED=last_used_at", "REVOKED=revoked_at")
}

type keyCreate struct {
	connection
	ofProject
	inEnvironment
	Name string `arg:"" help:"What the key is for."`
}

// Run creates a key.
func (cmd *keyCreate) Run(ctx context.Context, c *client) error {
	path, err := c.projectPath(ctx, cmd.Project, "/api-keys")
	if err != nil {
		return err
	}
	body := map[string]string{"name": cmd.Name, "environment": cmd.Environment}
	return c.reveal(ctx, request{method: "POST", path: path, body: body}, "api_key", "secret")
}

type keyRotate struct {
	connection
	ID    string        `arg:"" help:"Id of the key."`
	Grace time.Duration `help:"How long the old secret stays valid." default:"24h"`
}

// Run rotates a key.
func (cmd *keyRotate) Run(ctx context.Context, c *client) error {
	path := keysPath + url.PathEscape(cmd.ID) + "/rotate"
	return c.reveal(ctx, request{method: "POST", path: path, body: graceOf(cmd.Grace)}, "api_key", "secret")
}

// graceOf is the body of a rotation.
func graceOf(grace time.Duration) map[string]int {
	return map[string]int{"grace_period_seconds": int(grace.Seconds())}
}

type keyRevoke struct {
	connection
	ID string `arg:"" help:"Id of the key."`
}

// Run revokes a key.
func (cmd *keyRevoke) Run(ctx context.Context, c *client) error {
	return c.remove(ctx, keysPath, cmd.ID, "revoked")
}

type tokenCommands struct {
	List   tokenList   `cmd:"" help:"List a project's API tokens."`
	Create tokenCreate `cmd:"" help:"Create a token for automation; it is printed this once."`
	Revoke tokenRevoke `cmd:"" help:"Revoke a token at once."`
}

type tokenList struct {
	connection
	ofProject
	listing
}

// Run lists tokens.
func (cmd *tokenList) Run(ctx context.Context, c *client) error {
	path, err := c.projectPath(ctx, cmd.Project, "/api-tokens")
	if err != nil {
		return err
	}
	return c.show(ctx, cmd.listing, path, nil, "api_tokens", "ID=id", "NAME=name", "ROLE=role", "CREATED=created_at",
		"EXPIRES=expires_at", "REVOKED=revoked_at")
}

type tokenCreate struct {
	connection
	ofProject
	Name string `arg:"" help:"What the token is for."`
	Role string `help:"Role: viewer, editor or project_admin." enum:"viewer,editor,project_admin" default:"viewer"`
	Days int    `name:"expires-in-days" help:"Days until it expires." default:"90"`
}

// Run creates a token.
func (cmd *tokenCreate) Run(ctx context.Context, c *client) error {
	path, err := c.projectPath(ctx, cmd.Project, "/api-tokens")
	if err != nil {
		return err
	}
	body := map[string]any{"name": cmd.Name, "role": cmd.Role, "expires_in_days": cmd.Days}
	return c.reveal(ctx, request{method: "POST", path: path, body: body}, "api_token", "token")
}

type tokenRevoke struct {
	connection
	ID string `arg:"" help:"Id of the token."`
}

// Run revokes a token.
func (cmd *tokenRevoke) Run(ctx context.Context, c *client) error {
	return c.remove(ctx, "/api/v1/api-tokens/", cmd.ID, "revoked")
}
