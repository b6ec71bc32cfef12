package layout

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents are the texts of the repository by their path from its root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		names, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			rel, err := filepath.Rel(root, name)
			if err != nil {
				t.Fatal(err)
			}
			texts[filepath.ToSlash(rel)] = string(text)
		}
	}
	if len(texts) < 10 {
		t.Fatalf("only %d documents found under %s: the test looks in the wrong place", len(texts), root)
	}
	return texts
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.+)$`)
	noWord  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors are the names by which the headings of a text can be linked to.
func anchors(text string) []string {
	var names []string
	for _, found := range heading.FindAllStringSubmatch(text, -1) {
		plain := noWord.ReplaceAllString(strings.ToLower(strings.TrimSpace(found[1])), "")
		names = append(names, strings.ReplaceAll(plain, " ", "-"))
	}
	return names
}

func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	t.Parallel()
	texts := documents(t)
	for name, text := range texts {
		for _, found := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(found[1], "://") {
				continue
			}
			to, anchor, _ := strings.Cut(found[1], "#")
			target := name
			if to != "" {
				target = filepath.ToSlash(filepath.Join(filepath.Dir(name), to))
			}
			if _, err := os.Stat(filepath.Join(root, target)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, found[1])
				continue
			}
			if anchor != "" && !slices.Contains(anchors(texts[target]), anchor) {
				t.Errorf("%s links to %s, which has no such heading", name, found[1])
			}
		}
	}
}

func TestEveryDecisionIsListedByItsTitle(t *testing.T) {
	t.Parallel()
	texts := documents(t)
	index := texts["docs/decisions/README.md"]
	for name, text := range texts {
		dir, base := filepath.Split(name)
		if dir != "docs/decisions/" || base == "README.md" {
			continue
		}
		title, _, _ := strings.Cut(strings.TrimPrefix(text, "# "), "\n")
		if !strings.Contains(index, "["+title+"]("+base+")") {
			t.Errorf("docs/decisions/README.md does not list [%s](%s)", title, base)
		}
	}
}
