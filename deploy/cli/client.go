package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"
)

// connection is how an administrator's command finds its server.
type connection struct {
	URL         string `name:"url" group:"connection" help:"Base address of the write plane or of any edge." placeholder:"URL"`
	Token       string `group:"connection" help:"API token (JWT)." placeholder:"JWT"`
	Credentials string `group:"connection" help:"File that skerry up wrote: gives what --url, --token, --project and --api-key leave open." placeholder:"FILE"`
	JSON        bool   `name:"json" group:"connection" help:"Print the server's JSON instead of a table."`
}

// ofProject is for commands within one project.
type ofProject struct {
	Project string `group:"connection" help:"Project id. Not needed when the token is of one project or sees only one." placeholder:"ID"`
}

// inEnvironment is for commands on what exists once per environment.
type inEnvironment struct {
	Environment string `help:"Environment: live or test." enum:"live,test" default:"live" short:"e"`
}

// listing is for commands that show a list.
type listing struct {
	Limit int `help:"How many to show." default:"50"`
}

// client speaks to one server.
type client struct {
	base    string
	token   string
	apiKeys map[string]string // by environment
	project string
	http    http.Client
	streams Streams
	json    bool
}

// credentials is the part of the file that commands use.
type credentials struct {
	WritePlane string            `json:"writeplane"`
	ProjectID  string            `json:"project_id"`
	APIKeys    map[string]string `json:"api_keys"`
	Tokens     map[string]string `json:"tokens"`
}

// ProvideClient makes the client that a command's Run asks for; kong calls it by its name.
func (c connection) ProvideClient(streams Streams) (*client, error) {
	cl := &client{base: c.URL, token: c.Token, streams: streams, json: c.JSON}
	cl.http.Timeout = time.Minute
	if c.Credentials != "" {
		raw, err := os.ReadFile(c.Credentials)
		if err != nil {
			return nil, usagef("--credentials: %w", err)
		}
		var file credentials
		if err := json.Unmarshal(raw, &file); err != nil {
			return nil, usagef("--credentials: %s: %w", c.Credentials, err)
		}
		cl.base = first(cl.base, file.WritePlane)
		cl.token = first(cl.token, file.Tokens["owner"])
		cl.project = file.ProjectID
		cl.apiKeys = file.APIKeys
	}
	if cl.base == "" {
		return nil, usagef("--url (or SKERRY_URL, or --credentials) is required")
	}
	var err error
	if cl.base, err = httpBase("--url", cl.base); err != nil {
		return nil, err
	}
	return cl, nil
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// within is the query that names an environment of a project: the one given, else the
// credentials file's.
func (c *client) within(project ofProject, environment inEnvironment) map[string]string {
	return map[string]string{"environment": environment.Environment, "project_id": first(project.Project, c.project)}
}

// request is one call. Empty query values are left out.
type request struct {
	method, path string
	query        map[string]string
	body         any
	// apiKey authorizes by x-api-key in place of the token.
	apiKey string
}

// do returns the body of a 2xx answer.
func (c *client) do(ctx context.Context, r request) (json.RawMessage, error) {
	res, err := c.send(ctx, r)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 64<<20))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", c.base, err)
	}
	if res.StatusCode/100 != 2 {
		return nil, answerError(res, body)
	}
	return body, nil
}

func (c *client) send(ctx context.Context, r request) (*http.Response, error) {
	if r.apiKey == "" && c.token == "" {
		return nil, usagef("--token (or SKERRY_TOKEN, or --credentials) is required")
	}
	var body io.Reader
	if r.body != nil {
		raw, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(raw)
	}
	query := url.Values{}
	for k, v := range r.query {
		if v != "" {
			query.Set(k, v)
		}
	}
	target := c.base + r.path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	if r.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if r.apiKey != "" {
		req.Header.Set("x-api-key", r.apiKey)
	} else {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return nil, unreachable(c.base, err)
	}
	return res, nil
}

// unreachable says who could not be reached and why, without the layers
// between.
func unreachable(base string, err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	var op *net.OpError
	if errors.As(err, &op) && op.Err != nil {
		err = op.Err
	}
	return fmt.Errorf("cannot reach %s: %w", base, err)
}

// answerError is the server's own words with the status and the request id.
func answerError(res *http.Response, body []byte) error {
	var said struct {
		Error, Message string
	}
	text := "from a server that is not Skerry's"
	if json.Unmarshal(body, &said) == nil && said.Error != "" {
		text = said.Error
		if said.Message != "" {
			text += ": " + said.Message
		}
	}
	id := res.Header.Get("X-Request-Id")
	if res.StatusCode == http.StatusNotFound && text == "not_found" && res.Request != nil {
		text += ": " + res.Request.URL.RequestURI() + " is not there, or not for this token to see"
		if id == "" { // every plane's own listener gives one
			text = "not_found: this is not an edge's or a write plane's address for clients"
		}
	}
	err := fmt.Errorf("%d %s", res.StatusCode, text)
	if id != "" {
		err = fmt.Errorf("%w (request %s)", err, id)
	}
	return err
}

// list follows cursors until limit items of the member are there.
func (c *client) list(ctx context.Context, path, member string, query map[string]string, limit int) ([]row, error) {
	if limit < 1 {
		return nil, usagef("--limit %d is less than 1", limit)
	}
	items := []row{}
	if query == nil {
		query = map[string]string{}
	}
	for {
		query["limit"] = strconv.Itoa(min(limit-len(items), 200))
		raw, err := c.do(ctx, request{method: "GET", path: path, query: query})
		if err != nil {
			return nil, err
		}
		var page map[string]json.RawMessage
		var more []row
		var next *string
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("read the list: %w", err)
		}
		if err := json.Unmarshal(page[member], &more); err != nil {
			return nil, fmt.Errorf("read %s: %w", member, err)
		}
		if page["next_cursor"] != nil {
			if err := json.Unmarshal(page["next_cursor"], &next); err != nil {
				return nil, fmt.Errorf("read next_cursor: %w", err)
			}
		}
		items = append(items, more...)
		if next == nil || *next == "" || len(items) >= limit {
			return items[:min(limit, len(items))], nil
		}
		query["cursor"] = *next
	}
}

// inProject is the project that a path needs: the one given, else the only
// one the token sees.
func (c *client) inProject(ctx context.Context, given string) (string, error) {
	if id := first(given, c.project); id != "" {
		return id, nil
	}
	projects, err := c.list(ctx, projectsPath, "projects", nil, 2)
	if err != nil {
		return "", err
	}
	if len(projects) != 1 {
		return "", usagef("--project (or SKERRY_PROJECT) is required: the token does not see exactly one project")
	}
	return projects[0].text("id"), nil
}

const projectsPath = "/api/v1/projects"

// projectPath is a path below the project that inProject means.
func (c *client) projectPath(ctx context.Context, given, below string) (string, error) {
	project, err := c.inProject(ctx, given)
	return projectsPath + "/" + url.PathEscape(project) + below, err
}
