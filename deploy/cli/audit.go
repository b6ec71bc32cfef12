package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"time"
)

type auditCommands struct {
	Tail   auditTail   `cmd:"" help:"Show the newest entries; with --follow, those to come."`
	Export auditExport `cmd:"" help:"Write entries to a CSV file."`
	Verify auditVerify `cmd:"" help:"Check that the chain of entries is whole."`
}

// auditFilter narrows a selection of entries.
type auditFilter struct {
	Project  string `help:"Only this project." placeholder:"ID"`
	Actor    string `help:"Only this actor." placeholder:"ID"`
	Action   string `help:"Only this action, or a prefix such as switch.*."`
	Resource string `name:"resource-type" help:"Only this type of resource."`
}

func (f auditFilter) members() map[string]string {
	return map[string]string{"project_id": f.Project, "actor_id": f.Actor, "action": f.Action, "resource_type": f.Resource}
}

type auditTail struct {
	connection
	auditFilter
	listing
	Follow bool          `short:"f" help:"Keep showing new entries until interrupted."`
	Every  time.Duration `help:"How often to ask for new entries." default:"1s"`
}

// Run shows the newest entries in order of time, then follows.
func (cmd *auditTail) Run(ctx context.Context, c *client) error {
	newest, err := c.list(ctx, "/api/v1/audit", "entries", cmd.members(), cmd.Limit)
	if err != nil {
		return err
	}
	slices.Reverse(newest)
	seen := map[string]bool{}
	since := ""
	for {
		for _, e := range newest {
			id := e.text("id")
			if seen[id] {
				continue
			}
			// since is inclusive: entries of the last instant come again.
			if at := e.text("created_at"); at != since {
				since = at
				clear(seen)
			}
			seen[id] = true
			if err := c.entry(e); err != nil {
				return err
			}
		}
		if !cmd.Follow {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(cmd.Every):
		}
		query := cmd.members()
		query["order"] = "asc"
		query["since"] = since
		if newest, err = c.list(ctx, "/api/v1/audit", "entries", query, 1000); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

// entry prints one line, JSON lines for programs.
func (c *client) entry(e row) error {
	if c.json {
		raw, err := json.Marshal(e)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(c.streams.Out, "%s\n", raw)
		return err
	}
	actor := e.text("actor_email")
	if actor == "-" {
		actor = e.text("actor_id")
	}
	_, err := fmt.Fprintf(c.streams.Out, "%s  %-28s  %s %s  by %s\n",
		e.text("created_at"), e.text("action"), e.text("resource_type"), e.text("resource_id"), actor)
	return err
}

type auditExport struct {
	connection
	auditFilter
	Since  string `help:"From this time on, ISO 8601." required:"" placeholder:"TIME"`
	Until  string `help:"Up to but not including this time; now when absent." placeholder:"TIME"`
	Output string `short:"o" help:"File to write; - (which it is when absent) is the standard output." default:"-" placeholder:"FILE"`
}

// Run asks for an export, waits for it and fetches the file.
func (cmd *auditExport) Run(ctx context.Context, c *client) error {
	until := first(cmd.Until, time.Now().UTC().Format(time.RFC3339Nano))
	body := map[string]string{"since": cmd.Since, "until": until}
	for k, v := range cmd.members() {
		if v != "" {
			body[k] = v
		}
	}
	raw, err := c.do(ctx, request{method: "POST", path: "/api/v1/audit/exports", body: body})
	for err == nil {
		var answer struct{ Export row }
		if err := json.Unmarshal(raw, &answer); err != nil {
			return fmt.Errorf("read the export: %w", err)
		}
		switch answer.Export["status"] {
		case "ready":
			return c.fetch(ctx, answer.Export, cmd.Output)
		case "failed":
			return errors.New("the export failed: " + answer.Export.text("error"))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
		raw, err = c.do(ctx, request{method: "GET", path: "/api/v1/audit/exports/" + url.PathEscape(answer.Export.text("id"))})
	}
	return err
}

// fetch writes a ready export's file; a file that could not be fetched whole
// does not stay under its name.
func (c *client) fetch(ctx context.Context, export row, output string) error {
	link, err := url.Parse(export.text("download_url"))
	if err != nil {
		return fmt.Errorf("read the download address: %w", err)
	}
	base, err := url.Parse(c.base)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, "GET", base.ResolveReference(link).String(), nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return unreachable(link.Host, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		head, _ := io.ReadAll(io.LimitReader(res.Body, 4096))
		return answerError(res, head)
	}
	if output == "-" {
		_, err = io.Copy(c.streams.Out, res.Body)
		return err
	}
	f, err := os.OpenFile(output+".part", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, res.Body)
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	fmt.Fprintf(c.streams.Err, "%s rows in %s\n", export.text("row_count"), output)
	return os.Rename(f.Name(), output)
}

type auditVerify struct{ connection }

// Run fails when the chain is broken, so that a script can rely on the exit
// code.
func (cmd *auditVerify) Run(ctx context.Context, c *client) error {
	raw, err := c.do(ctx, request{method: "GET", path: "/api/v1/audit/verify"})
	if err != nil {
		return err
	}
	var answer struct {
		OK          bool   `json:"ok"`
		Entries     int64  `json:"entries"`
		FirstBroken *int64 `json:"first_broken_seq"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if c.json {
		err = c.value(raw)
	} else if answer.OK {
		_, err = fmt.Fprintf(c.streams.Out, "whole: %d entries\n", answer.Entries)
	}
	if err == nil && !answer.OK {
		where := "at its end"
		if answer.FirstBroken != nil {
			where = fmt.Sprintf("at entry %d", *answer.FirstBroken)
		}
		return errors.New("the chain is broken " + where)
	}
	return err
}
