package sourcemap

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// jsTools is where `npm install` of testdata/tools was done (make debugtools).
func jsTools(t testing.TB) string {
	t.Helper()
	dir := os.Getenv("SKERRY_JS_TOOLS")
	if dir == "" {
		dir = filepath.Join("testdata", "tools")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "@jridgewell", "trace-mapping")); err != nil {
		t.Skipf("no trace-mapping under %s: make debugtools installs it", dir)
	}
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("node is not installed")
	}
	return dir
}

func answersOf(t testing.TB) string {
	t.Helper()
	tools, out := jsTools(t), t.TempDir()
	script, err := filepath.Abs(filepath.Join("testdata", "tools", "answers.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	if output, err := exec.Command("node", script, tools, out).CombinedOutput(); err != nil {
		t.Fatalf("answers.mjs: %v\n%s", err, output)
	}
	return out
}

func TestEveryPositionOfRealBundlesAgreesWithTraceMapping(t *testing.T) {
	t.Parallel()
	dir := answersOf(t)
	maps, _ := filepath.Glob(filepath.Join(dir, "*.map"))
	if len(maps) != 5 {
		t.Fatalf("maps: %v", maps)
	}
	for _, path := range maps {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		table, _ := open(t, string(text))
		positions, differences := 0, 0
		eachAnswer(t, strings.TrimSuffix(path, ".map")+".answers", func(line, column int64, want string) {
			positions++
			p, outcome := table.Lookup(line, column)
			got := "-"
			if outcome == Found {
				source := normal(p.Source)
				if p.NullSource {
					source = "null"
				}
				got = fmt.Sprintf("%s\t%d\t%d\t%s", source, p.Line, p.Column, p.Name)
			}
			if got != want {
				if differences++; differences <= 10 {
					t.Errorf("%s %d:%d: got %q, want %q", filepath.Base(path), line, column, got, want)
				}
			}
		})
		t.Logf("%s: %d positions, %d differences", filepath.Base(path), positions, differences)
	}
}

// normal removes the "./" that trace-mapping's path resolution removes.
func normal(source string) string { return strings.TrimPrefix(source, "./") }

// eachAnswer expands the runs of an answers file to every column.
func eachAnswer(t testing.TB, path string, do func(line, column int64, want string)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lastLine, lastColumn, lastWant := int64(0), int64(0), ""
	for scan := bufio.NewScanner(file); scan.Scan(); {
		parts := strings.SplitN(scan.Text(), "\t", 3)
		line, _ := strconv.ParseInt(parts[0], 10, 64)
		column, _ := strconv.ParseInt(parts[1], 10, 64)
		if line == lastLine {
			for c := lastColumn + 1; c < column; c++ {
				do(line, c, lastWant)
			}
		}
		do(line, column, parts[2])
		lastLine, lastColumn, lastWant = line, column, parts[2]
	}
}

// big is a map of about the size asked for, shaped like a real one: lines of
// segments with names, and the text of its sources.
func big(size int) []byte {
	var mappings, content strings.Builder
	for mappings.Len() < size/2 {
		mappings.WriteString("AAAA,GAASA,IAAIC,MACFD,QAAQ,CAAC,EACD;")
	}
	for content.Len() < size/2 {
		content.WriteString(`function example(value) {\n  return value + 1;\n}\n`)
	}
	return []byte(`{"version":3,"sources":["a.ts"],"sourcesContent":["` + content.String() + `"],"names":["a","b","c"],"mappings":"` + mappings.String() + `"}`)
}

func BenchmarkBuild30MB(b *testing.B) {
	text := big(30 << 20)
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		index, _, err := Build(text)
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(index)), "index-bytes")
	}
}

func BenchmarkLookup(b *testing.B) {
	index, _, err := Build(big(30 << 20))
	if err != nil {
		b.Fatal(err)
	}
	table, err := Open(index)
	if err != nil {
		b.Fatal(err)
	}
	line := int64(1)
	b.ReportAllocs()
	for b.Loop() {
		line = (line*7919)%400_000 + 1
		if _, outcome := table.Lookup(line, 10); outcome != Found {
			b.Fatal(line)
		}
	}
}
