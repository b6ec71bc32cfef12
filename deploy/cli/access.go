package cli

import (
	"context"
	"encoding/json"
	"fmt"
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
func (cmd *projectList) Run(ctx context.Context, streams Streams) error {
	c, err := cmd.client(streams)
	if err != nil {
		return err
	}
	projects, err := c.list(ctx, "/api/v1/projects", "projects", nil, cmd.Limit)
	if err != nil {
		return err
	}
	return c.rows("projects", projects, "ID=id", "NAME=name", "CREATED=created_at")
}

type projectCreate struct {
	connection
	Name string `arg:"" help:"Name of the project."`
}

// Run creates a project.
func (cmd *projectCreate) Run(ctx context.Context, streams Streams) error {
	c, err := cmd.client(streams)
	if err != nil {
		return err
	}
	raw, err := c.do(ctx, request{method: "POST", path: "/api/v1/projects", body: map[string]string{"name": cmd.Name}})
	if err != nil {
		return err
	}
	return c.done(raw, "project", "created project %s (%s)", "name", "id")
}

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
func (cmd *keyList) Run(ctx context.Context, streams Streams) error {
	c, err := cmd.client(streams)
	if err != nil {
		return err
	}
	project, err := c.inProject(ctx, cmd.Project)
	if err != nil {
		return err
	}
	keys, err := c.list(ctx, "/api/v1/projects/"+url.PathEscape(project)+"/api-keys", "api_keys", nil, cmd.Limit)
	if err != nil {
		return err
	}
	return c.rows("api_keys", keys, "ID=id", "NAME=name", "ENVIRONMENT=environment", "PREFIX=prefix",
		"CREATED=created_at", "LAST USED=last_used_at", "REVOKED=revoked_at")
}

type keyCreate struct {
	connection
	ofProject
	inEnvironment
	Name string `arg:"" help:"What the key is for."`
}

// Run creates a key.
func (cmd *keyCreate) Run(ctx context.Context, streams Streams) error {
	c, err := cmd.client(streams)
	if err != nil {
		return err
	}
	project, err := c.inProject(ctx, cmd.Project)
	if err != nil {
		return err
	}
	raw, err := c.do(ctx, request{
		method: "POST", path: "/api/v1/projects/" + url.PathEscape(project) + "/api-keys",
		body: map[string]string{"name": cmd.Name, "environment": cmd.Environment},
	})
	if err != nil {
		return err
	}
	return c.secret(raw, "api_key", "secret")
}

// secret prints a created resource's id and, on its own line for scripts to
// cut out, the secret that is never shown again.
func (c *client) secret(raw json.RawMessage, member, secret string) error {
	if c.json {
		return c.value(raw)
	}
	var answer row
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	fmt.Fprintf(c.streams.Err, "id %s; the following is shown this once:\n", answer.text(member+".id"))
	_, err := fmt.Fprintln(c.streams.Out, answer.text(secret))
	return err
}

type keyRotate struct {
	connection
	ID    string        `arg:"" help:"Id of the key."`
	Grace time.Duration `help:"How long the old secret stays valid." default:"24h"`
}

// Run rotates a key.
func (cmd *keyRotate) Run(ctx context.Context, streams Streams) error {
	c, err := cmd.client(streams)
	if err != nil {
		return err
	}
	raw, err := c.do(ctx, request{
		method: "POST", path: "/api/v1/api-keys/" + url.PathEscape(cmd.ID) + "/rotate",
		body: map[string]int{"grace_period_seconds": int(cmd.Grace.Seconds())},
	})
	if err != nil {
		return err
	}
	return c.secret(raw, "api_key", "secret")
}

type keyRevoke struct {
	connection
	ID string `arg:"" help:"Id of the key."`
}

// Run revokes a key.
func (cmd *keyRevoke) Run(ctx context.Context, streams Streams) error {
	return remove(ctx, cmd.connection, streams, "/api/v1/api-keys/", cmd.ID, "revoked")
}

// remove deletes one resource by its id.
func remove(ctx context.Context, conn connection, streams Streams, path, id, word string) error {
	c, err := conn.client(streams)
	if err != nil {
		return err
	}
	raw, err := c.do(ctx, request{method: "DELETE", path: path + url.PathEscape(id)})
	if err != nil {
		return err
	}
	return c.done(raw, "", word+" "+printable(id))
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
func (cmd *tokenList) Run(ctx context.Context, streams Streams) error {
	c, err := cmd.client(streams)
	if err != nil {
		return err
	}
	project, err := c.inProject(ctx, cmd.Project)
	if err != nil {
		return err
	}
	tokens, err := c.list(ctx, "/api/v1/projects/"+url.PathEscape(project)+"/api-tokens", "api_tokens", nil, cmd.Limit)
	if err != nil {
		return err
	}
	return c.rows("api_tokens", tokens, "ID=id", "NAME=name", "ROLE=role", "CREATED=created_at",
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
func (cmd *tokenCreate) Run(ctx context.Context, streams Streams) error {
	c, err := cmd.client(streams)
	if err != nil {
		return err
	}
	project, err := c.inProject(ctx, cmd.Project)
	if err != nil {
		return err
	}
	raw, err := c.do(ctx, request{
		method: "POST", path: "/api/v1/projects/" + url.PathEscape(project) + "/api-tokens",
		body: map[string]any{"name": cmd.Name, "role": cmd.Role, "expires_in_days": cmd.Days},
	})
	if err != nil {
		return err
	}
	return c.secret(raw, "api_token", "token")
}

type tokenRevoke struct {
	connection
	ID string `arg:"" help:"Id of the token."`
}

// Run revokes a token.
func (cmd *tokenRevoke) Run(ctx context.Context, streams Streams) error {
	return remove(ctx, cmd.connection, streams, "/api/v1/api-tokens/", cmd.ID, "revoked")
}
