package local

import (
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
)

// announce prints where everything is and three commands to try. It is the
// only output on standard output, and comes when all of it holds.
func announce(cfg Config, kept *secrets, c credentials, credentialsPath string) error {
	var b strings.Builder
	b.WriteString("\nSkerry is up.")
	if kept.fresh {
		b.WriteString(" This was the first start on this folder: an organization, a project and keys were made.")
	}
	b.WriteString("\n\n")
	w := tabwriter.NewWriter(&b, 0, 8, 3, ' ', 0)
	for i, edge := range c.Edges {
		fmt.Fprintf(w, "  edge %d\t%s\toperator %s\n", i, edge, c.EdgeOps[i])
	}
	fmt.Fprintf(w, "  write plane\t%s\toperator %s\n", c.WritePlane, c.WritePlaneOps)
	fmt.Fprintf(w, "  PostgreSQL\t%s\t%s\n", hostOf(c.PostgresURL), origin(cfg.PostgresURL))
	fmt.Fprintf(w, "  NATS\t%s\t%s\n", hostOf(c.NATSURL), origin(cfg.NATSURL))
	fmt.Fprintf(w, "  credentials\t%s\n", shown(credentialsPath))
	w.Flush()
	key, edge := c.APIKeys["live"], c.Edges[0]
	b.WriteString("\nTry:\n\n")
	fmt.Fprintf(&b, "  curl -i -H 'x-api-key: %s' %s/api/pulse/surveys\n", key, edge)
	fmt.Fprintf(&b, "  curl -H 'x-api-key: %s' '%s/api/v1/handshake?distinct_id=user-1'\n", key, edge)
	if kept.DemoMade {
		fmt.Fprintf(&b, "  %s flags halt new-checkout --reason 'just trying' --credentials %s\n", cfg.Program, shown(credentialsPath))
	} else {
		fmt.Fprintf(&b, "  %s status --credentials %s\n", cfg.Program, shown(credentialsPath))
	}
	b.WriteString("\nCtrl-C stops everything; the data stays.\n")
	_, err := fmt.Fprint(cfg.Out, b.String())
	return err
}

// hostOf is a URL's host without the secrets beside it.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "?"
	}
	return u.Host
}

func origin(given string) string {
	if given == "" {
		return "private"
	}
	return "given"
}

// shown is a path as the user would type it: relative where that is shorter.
func shown(path string) string {
	wd, err := os.Getwd()
	if err != nil {
		return path
	}
	if rel, err := filepath.Rel(wd, path); err == nil && len(rel) < len(path) {
		path = rel
	}
	if strings.ContainsAny(path, " '\"$&;()\\") {
		return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
	}
	return path
}
