// Package prometheus_test keeps the alerts and the dashboard true: every metric they
// name must be one that the program has, and every alert must have its page.
package prometheus_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

var metricName = regexp.MustCompile(`\bskerry_[a-z_]+`)

// known are the string literals of the program that are metric names, and what
// histograms make of them.
func known(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == "testdata" || strings.HasPrefix(entry.Name(), ".") && path != root) {
			return fs.SkipDir
		}
		if !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			if text, err := strconv.Unquote(literal.Value); err == nil && metricName.FindString(text) == text && text != "" {
				for _, suffix := range []string{"", "_bucket", "_sum", "_count"} {
					names[text+suffix] = true
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

func TestEveryMetricNamedExists(t *testing.T) {
	t.Parallel()
	exist := known(t)
	for _, path := range []string{"deploy/prometheus/alerts.yaml", "deploy/grafana/skerry.json"} {
		found := metricName.FindAllString(read(t, path), -1)
		if len(found) == 0 {
			t.Errorf("%s names no metric", path)
		}
		for _, name := range found {
			if !exist[name] {
				t.Errorf("%s names %s, which the program does not have", path, name)
			}
		}
	}
}

func TestEveryAlertHasItsPage(t *testing.T) {
	t.Parallel()
	alerts, runbook := read(t, "deploy/prometheus/alerts.yaml"), read(t, "docs/operations/runbook.md")
	named := regexp.MustCompile(`(?m)- alert: (\w+)`).FindAllStringSubmatch(alerts, -1)
	if len(named) == 0 {
		t.Fatal("no alerts")
	}
	for _, match := range named {
		if !strings.Contains(runbook, "\n## "+match[1]+"\n") {
			t.Errorf("the runbook has no page %s", match[1])
		}
		if !strings.Contains(alerts, "runbook.md#"+strings.ToLower(match[1])) {
			t.Errorf("alert %s does not point at its page", match[1])
		}
	}
}
