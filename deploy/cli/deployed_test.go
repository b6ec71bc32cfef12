package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/alecthomas/kong"
)

// What the files for deploying and the operators' documents set must be settings.
func TestFilesForDeployingNameSettingsThatExist(t *testing.T) {
	t.Parallel()
	parser, err := kong.New(&root{}, append(readers(), kong.Name("skerry"), kong.DefaultEnvars("SKERRY"), kong.Vars{"version": ""})...)
	if err != nil {
		t.Fatal(err)
	}
	flags, variables := map[string]bool{}, map[string]bool{
		"SKERRY_POSTGRES_PASSWORD": true, "SKERRY_NATS_PASSWORD": true, // of compose.yaml itself
	}
	collect(parser.Model.Node, flags)
	collectVariables(parser.Model.Node, variables)
	flag, variable := regexp.MustCompile(`(?m)^ *(?:ExecStart=|- ).*`), regexp.MustCompile(`\bSKERRY_[A-Z][A-Z_]*[A-Z]\b`)
	name := regexp.MustCompile(` --([a-z][a-z-]*)`)
	named := 0
	for _, pattern := range []string{
		"../helm/skerry/*.yaml", "../helm/skerry/templates/*.yaml", "../systemd/*.service", "../compose/compose.yaml",
		"../docker/Dockerfile", "../../docs/operations/*.md", "../../README.md",
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil || len(paths) == 0 {
			t.Fatalf("%s: %v, %d files", pattern, err, len(paths))
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range variable.FindAllString(string(text), -1) {
				if named++; !variables[v] {
					t.Errorf("%s: %s is no setting", path, v)
				}
			}
			if ext := filepath.Ext(path); ext != ".yaml" && ext != ".service" {
				continue
			}
			for _, line := range flag.FindAllString(string(text), -1) {
				for _, match := range name.FindAllStringSubmatch(line, -1) {
					if named++; !flags[match[1]] {
						t.Errorf("%s: --%s is no flag", path, match[1])
					}
				}
			}
		}
	}
	if named < 40 {
		t.Errorf("only %d settings were found: the test looks in the wrong place", named)
	}
}
