package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// row is one resource as the server showed it.
type row map[string]any

// UnmarshalJSON keeps numbers as they were written: a float64 would round them.
func (r *row) UnmarshalJSON(raw []byte) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	return d.Decode((*map[string]any)(r))
}

// text is a member as a person reads it: nested by dots, "-" for nothing.
func (r row) text(path string) string {
	var v any = map[string]any(r)
	for part := range strings.SplitSeq(path, ".") {
		m, ok := v.(map[string]any)
		if !ok {
			return "-"
		}
		v = m[part]
	}
	switch v := v.(type) {
	case nil:
		return "-"
	case string:
		return printable(v)
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return v.String()
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	return printable(string(raw))
}

// printable quotes text that would move the terminal's cursor or break the
// table: much of what is shown was sent by strangers.
func printable(s string) string {
	if s == "" {
		return `""`
	}
	if strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		return strconv.Quote(s)
	}
	return s
}

// rows prints a table of the named members ("TITLE=member"), or JSON.
func (c *client) rows(member string, items []row, columns ...string) error {
	if c.json {
		return c.value(map[string]any{member: items})
	}
	if len(items) == 0 {
		_, err := fmt.Fprintf(c.streams.Out, "no %s\n", strings.ReplaceAll(member, "_", " "))
		return err
	}
	return table(c.streams.Out, items, columns...)
}

func table(out io.Writer, items []row, columns ...string) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
	titles := make([]string, len(columns))
	paths := make([]string, len(columns))
	for i, col := range columns {
		titles[i], paths[i], _ = strings.Cut(col, "=")
	}
	fmt.Fprintln(w, strings.Join(titles, "\t"))
	for _, item := range items {
		cells := make([]string, len(paths))
		for i, p := range paths {
			cells[i] = item.text(p)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	return w.Flush()
}

// value prints JSON for programs.
func (c *client) value(v any) error {
	enc := json.NewEncoder(c.streams.Out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// show lists what a path has.
func (c *client) show(ctx context.Context, n listing, path string, query map[string]string, member string, columns ...string) error {
	items, err := c.list(ctx, path, member, query, n.Limit)
	if err != nil {
		return err
	}
	return c.rows(member, items, columns...)
}

// act makes a change and prints one line about the answer's member; the format takes
// what the member has at paths.
func (c *client) act(ctx context.Context, r request, member, format string, paths ...string) error {
	return c.change(ctx, r, func(answer row) error {
		if member != "" {
			inner, _ := answer[member].(map[string]any)
			answer = row(inner)
		}
		args := make([]any, len(paths))
		for i, p := range paths {
			args[i] = answer.text(p)
		}
		_, err := fmt.Fprintf(c.streams.Out, format+"\n", args...)
		return err
	})
}

// change sends a request and has its answer told, or prints it as JSON.
func (c *client) change(ctx context.Context, r request, tell func(answer row) error) error {
	raw, err := c.do(ctx, r)
	if err != nil {
		return err
	}
	if c.json {
		return c.value(raw)
	}
	var answer row
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return tell(answer)
}

// verbatim is a text within a format.
func verbatim(s string) string { return strings.ReplaceAll(printable(s), "%", "%%") }

// remove deletes one resource by its id.
func (c *client) remove(ctx context.Context, below, id, word string) error {
	return c.act(ctx, request{method: "DELETE", path: below + url.PathEscape(id)}, "", word+" "+verbatim(id))
}

// reveal makes a change and prints the resource's id and, on its own line for
// scripts to cut out, the secret that is never shown again.
func (c *client) reveal(ctx context.Context, r request, member, secret string) error {
	return c.change(ctx, r, func(answer row) error {
		fmt.Fprintf(c.streams.Err, "id %s; the following is shown this once:\n", answer.text(member+".id"))
		_, err := fmt.Fprintln(c.streams.Out, answer.text(secret))
		return err
	})
}
