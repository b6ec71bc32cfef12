package layout

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	root   = "../.."
	module = "skerry"
)

// mayImport draws the arrows deploy → bench, writeplane, edgenode →
// replication → pkg: each folder with the others it may import.
var mayImport = map[string][]string{
	"deploy":      {"bench", "writeplane", "edgenode", "replication", "pkg"},
	"bench":       {"replication", "pkg"},
	"writeplane":  {"replication", "pkg"},
	"edgenode":    {"replication", "pkg"},
	"replication": {"pkg"},
	"pkg":         {},
}

// whyNot is the reason behind an arrow that is missing above, for those that
// somebody will one day want.
var whyNot = map[[2]string]string{
	{"writeplane", "edgenode"}:    "the planes never import each other: what both need is a document, a batch, or belongs into pkg",
	{"edgenode", "writeplane"}:    "the planes never import each other: what both need is a document, a batch, or belongs into pkg",
	{"replication", "writeplane"}: "replication declares the interfaces it needs; the plane implements them",
	{"replication", "edgenode"}:   "replication declares the interfaces it needs; the plane implements them",
	{"bench", "deploy"}:           "deploy contains the command line, which contains bench",
	{"bench", "writeplane"}:       "the load generator knows Skerry only as its clients do",
	{"bench", "edgenode"}:         "the load generator knows Skerry only as its clients do",
}

// mayNotReach names outside packages a folder must not depend on, directly or
// through other packages of this module.
var mayNotReach = map[string]map[string]string{
	"edgenode": {
		"github.com/jackc/pgx":  "an edge works without the centre's database, so it has no driver for it",
		"skerry/pkg/pgserver":   "an edge works without the centre's database",
		"github.com/riverqueue": "jobs run in the centre",
	},
	"writeplane": {
		"github.com/cockroachdb/pebble": "the centre keeps its state in Postgres alone, so that its processes are interchangeable",
		"github.com/valyala/fasthttp":   "the centre streams, serves pprof and OIDC: net/http fits; two servers' habits in one plane do not",
	},
	"replication": {
		"github.com/jackc/pgx":          "replication carries documents and batches; where they are kept is the planes' business",
		"github.com/cockroachdb/pebble": "replication carries documents and batches; where they are kept is the planes' business",
	},
	"pkg": {
		"github.com/valyala/fasthttp":   "pkg serves both planes, and only one of them uses it",
		"github.com/cockroachdb/pebble": "pkg serves both planes, and only one of them uses it",
	},
}

// drawers are package names that mean that the thing inside has no name yet.
var drawers = []string{"utils", "util", "common", "types", "helpers", "helper", "models", "misc", "shared", "base"}

// maxLines of a file, tests included.
const maxLines = 700

// file is one parsed Go file of the module.
type file struct {
	path    string // from the module's root, with slashes
	pkg     string // import path of its folder
	top     string // first folder
	test    bool   // of a test: _test.go, or a package for tests such as pgtest
	lines   int
	imports []string
	ast     *ast.File
	set     *token.FileSet
}

func parseModule(t *testing.T) []file {
	t.Helper()
	var files []file
	set := token.NewFileSet()
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if base := d.Name(); name != root && (strings.HasPrefix(base, ".") || base == "node_modules" || base == "testdata" || base == "bin") {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(name, ".go") {
			return nil
		}
		src, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		parsed, err := parser.ParseFile(set, name, src, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		f := file{path: rel, pkg: path.Join(module, path.Dir(rel)), lines: strings.Count(string(src), "\n"), ast: parsed, set: set}
		f.top, _, _ = strings.Cut(rel, "/")
		f.test = strings.HasSuffix(rel, "_test.go") || forTests(f.pkg)
		for _, spec := range parsed.Imports {
			p, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			f.imports = append(f.imports, p)
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatalf("parse the module: %v", err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d files found under %s: the test looks in the wrong place", len(files), root)
	}
	return files
}

// forTests recognizes packages that exist for tests only: pgtest, natstest.
func forTests(pkg string) bool {
	name := path.Base(pkg)
	return strings.HasSuffix(name, "test") && name != "test"
}

func within(pkg, folder string) bool { return pkg == folder || strings.HasPrefix(pkg, folder+"/") }

func TestArrowsPointDownOnly(t *testing.T) {
	t.Parallel()
	for _, f := range parseModule(t) {
		allowed, known := mayImport[f.top]
		if !known {
			t.Errorf("%s: the folder %s is not in the architecture: give it a place in mayImport", f.path, f.top)
			continue
		}
		for _, p := range f.imports {
			if !within(p, module) {
				continue
			}
			to, _, _ := strings.Cut(strings.TrimPrefix(p, module+"/"), "/")
			if to != f.top && !slices.Contains(allowed, to) {
				t.Errorf("%s imports %s: %s", f.path, p, reason(f.top, to))
			}
		}
	}
}

func reason(from, to string) string {
	if why, ok := whyNot[[2]string{from, to}]; ok {
		return why
	}
	return "arrows point down: deploy → bench, writeplane, edgenode → replication → pkg"
}

func TestPlanesDoNotReachWhatTheyMustNot(t *testing.T) {
	t.Parallel()
	graph := map[string][]string{}
	tops := map[string]string{}
	for _, f := range parseModule(t) {
		if !f.test {
			graph[f.pkg] = append(graph[f.pkg], f.imports...)
			tops[f.pkg] = f.top
		}
	}
	for _, pkg := range slices.Sorted(maps.Keys(graph)) {
		for banned, why := range mayNotReach[tops[pkg]] {
			if tops[pkg] == "pkg" && within(pkg, banned) {
				continue
			}
			if chain := reach(graph, pkg, banned, map[string]bool{}); chain != nil {
				t.Errorf("%s: %s", strings.Join(chain, " → "), why)
			}
		}
	}
}

// reach returns the imports that lead from a package to one under banned, nil
// when none do.
func reach(graph map[string][]string, from, banned string, seen map[string]bool) []string {
	if seen[from] {
		return nil
	}
	seen[from] = true
	for _, p := range graph[from] {
		if within(p, banned) {
			return []string{from, p}
		}
		if within(p, module) {
			if rest := reach(graph, p, banned, seen); rest != nil {
				return append([]string{from}, rest...)
			}
		}
	}
	return nil
}

func TestPackagesForTestsStayInTests(t *testing.T) {
	t.Parallel()
	for _, f := range parseModule(t) {
		if f.test {
			continue
		}
		for _, p := range f.imports {
			if p == "testing" || within(p, module) && forTests(p) {
				t.Errorf("%s imports %s: the program does not carry its tests' tools", f.path, p)
			}
		}
	}
}

func TestPackagesAreNamedByWhatTheyHold(t *testing.T) {
	t.Parallel()
	for _, f := range parseModule(t) {
		for _, part := range strings.Split(path.Dir(f.path), "/") {
			if slices.Contains(drawers, part) {
				t.Errorf("%s: %q is a drawer; the thing inside has no name yet: find it", f.path, part)
			}
		}
	}
}

func TestPackagesSayWhatTheyAre(t *testing.T) {
	t.Parallel()
	said := map[string]bool{}
	for _, f := range parseModule(t) {
		if strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		said[f.pkg] = said[f.pkg] || f.ast.Doc != nil
	}
	for _, pkg := range slices.Sorted(maps.Keys(said)) {
		if !said[pkg] {
			t.Errorf("%s has no package comment: say what it is, what it promises, what it does not", pkg)
		}
	}
}

func TestNothingRunsByImport(t *testing.T) {
	t.Parallel()
	for _, f := range parseModule(t) {
		for _, d := range f.ast.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
				t.Errorf("%s has an init function: what is built is built by name, in the assembly", f.path)
			}
		}
	}
}

func TestFilesAreChapters(t *testing.T) {
	t.Parallel()
	for _, f := range parseModule(t) {
		if f.lines > maxLines {
			t.Errorf("%s has %d lines, more than %d: look for the second idea in it", f.path, f.lines, maxLines)
		}
	}
}

// slownessUnderTest, as a comment on its line, allows a test to sleep: a slow
// peer is then what it tests, and nothing waits for the sleep to be long enough.
const slownessUnderTest = "the fault under test"

// says tells whether the line of n has a comment with that text.
func (f file) says(n ast.Node, text string) bool {
	line := f.set.Position(n.Pos()).Line
	for _, group := range f.ast.Comments {
		for _, c := range group.List {
			if f.set.Position(c.Pos()).Line == line && strings.Contains(c.Text, text) {
				return true
			}
		}
	}
	return false
}

func TestTestsWaitOnSignals(t *testing.T) {
	t.Parallel()
	for _, f := range parseModule(t) {
		if !f.test || slices.Contains(f.imports, "testing/synctest") {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok || sel.Sel.Name != "Sleep" {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if ok && x.Name == "time" && !f.says(n, slownessUnderTest) {
				t.Errorf("%s sleeps: wait on a signal, or poll with a deadline, so that it is neither slow nor flaky", f.path)
			}
			return true
		})
	}
}
