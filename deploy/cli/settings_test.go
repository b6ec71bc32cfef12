package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

var update = flag.Bool("update", false, "write docs/operations/settings.md anew")

const settingsPage = "../../docs/operations/settings.md"

// TestSettingsPageNamesEveryFlag holds the page of settings against the command line.
func TestSettingsPageNamesEveryFlag(t *testing.T) {
	want := settingsText(t)
	if *update {
		if err := os.WriteFile(settingsPage, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(settingsPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the flags say; write it anew: go test ./deploy/cli -run SettingsPage -update", settingsPage)
	}
}

func settingsText(t *testing.T) string {
	t.Helper()
	parser, err := kong.New(&root{}, append(readers(), kong.Name("skerry"), kong.DefaultEnvars("SKERRY"), kong.Vars{"version": ""})...)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString(`# Settings

Each can be given as a flag, as an environment variable and in the file that ` + "`--config`" + ` names, in this order of precedence
([how the file looks](running.md#settings)). A flag that has no default and may be left out is shown with –. Durations are
written 30s, 5m, 24h; lists with commas, in the file also as YAML lists. The administrator's commands explain theirs with ` + "`--help`" + `.
This page is written by a test, from the flags.
`)
	section := func(title string, flags []*kong.Flag) {
		fmt.Fprintf(&b, "\n## %s\n\n| flag | environment | default | meaning |\n| --- | --- | --- | --- |\n", title)
		for _, f := range flags {
			if f.Name == "help" || f.Name == "version" {
				continue
			}
			standard := "–"
			switch {
			case f.Required:
				standard = "required"
			case f.HasDefault && f.Default != "":
				standard = "`" + f.Default + "`"
			case f.IsBool():
				standard = "off"
			}
			fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s |\n", f.Name, strings.Join(f.Envs, "`, `"), standard, strings.ReplaceAll(f.Help, "|", "\\|"))
		}
	}
	section("All commands", parser.Model.Flags)
	for _, name := range []string{"up", "edge", "writeplane", "migrate", "bootstrap", "restored"} {
		node := command(parser.Model.Node, name)
		if node.DefaultCmd != nil {
			node = node.DefaultCmd
		}
		section("skerry "+name, node.Flags)
	}
	return b.String()
}
