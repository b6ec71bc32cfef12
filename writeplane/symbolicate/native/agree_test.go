package native

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// tool returns the path of a tool or skips the test saying which package has it.
func tool(t testing.TB, name, pkg string) string {
	t.Helper()
	p, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%s is not installed (Debian package %s)", name, pkg)
	}
	return p
}

func compile(t testing.TB, name string, args ...string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command(name, append(args, "-o", out)...)
	cmd.Dir = "testdata"
	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, output)
	}
	beside, _ := filepath.Glob(filepath.Join(filepath.Dir(out), "*.dwo")) // what is uploaded is the file alone
	for _, path := range beside {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

func build(t testing.TB, path string) *Table {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	table, warnings := buildBytes(t, data)
	if len(warnings) > 0 {
		t.Errorf("warnings: %q", warnings)
	}
	return table
}

func buildBytes(t testing.TB, data []byte) (*Table, []string) {
	t.Helper()
	var index bytes.Buffer
	warnings, err := Build(data, t.TempDir(), &index)
	if err != nil {
		t.Fatal(err)
	}
	table, err := Open(index.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	return table, warnings
}

// addresses are all of the .text section.
func addresses(t testing.TB, path string) []uint64 {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	list, err := images("x", data)
	if err != nil {
		t.Fatal(err)
	}
	var out []uint64
	for _, s := range list[0].code {
		for a := s.low; a < s.high; a++ {
			out = append(out, a)
		}
	}
	return out
}

// ask feeds addresses to addr2line or llvm-symbolizer and cuts the answer by its
// address lines. Each answer is a list of "function", "file:line" pairs.
func ask(t testing.TB, command *exec.Cmd, list []uint64) map[uint64][][2]string {
	t.Helper()
	var in bytes.Buffer
	for _, a := range list {
		fmt.Fprintf(&in, "0x%x\n", a)
	}
	command.Stdin = &in
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := map[uint64][][2]string{}
	var now uint64
	function, half := "", false
	scan := bufio.NewScanner(bytes.NewReader(output))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		line := scan.Text()
		switch a, err := strconv.ParseUint(strings.TrimPrefix(line, "0x"), 16, 64); {
		case strings.HasPrefix(line, "0x") && err == nil && !half:
			now = a
		case line == "" && !half:
		case !half:
			function, half = line, true
		default:
			line, _, _ = strings.Cut(line, " (discriminator")
			answers[now] = append(answers[now], [2]string{function, line})
			half = false
		}
	}
	return answers
}

// tally counts the addresses at which the chain agrees wholly, and why not.
type tally struct {
	addresses, agree int
	differ           map[string]int
	samples          map[string]string
}

func (c *tally) note(kind, sample string) {
	if c.differ == nil {
		c.differ, c.samples = map[string]int{}, map[string]string{}
	}
	c.differ[kind]++
	if _, ok := c.samples[kind]; !ok {
		c.samples[kind] = sample
	}
}

func (c *tally) log(t testing.TB, name string) {
	t.Logf("%s: %d addresses, %d agree wholly", name, c.addresses, c.agree)
	for kind, n := range c.differ {
		t.Logf("  %6d %s, such as\n%s", n, kind, c.samples[kind])
	}
}

func render(chain [][2]string) string {
	var b strings.Builder
	for _, p := range chain {
		fmt.Fprintf(&b, "      %s at %s\n", p[0], p[1])
	}
	return b.String()
}

// ours renders a lookup as addr2line does.
func ours(img *Image, address uint64) [][2]string {
	chain, ok := img.Lookup(address)
	if !ok {
		return [][2]string{{"??", "??:?"}}
	}
	var out [][2]string
	for _, p := range chain {
		file, line, function := p.File, strconv.FormatInt(p.Line, 10), p.Function
		if file == "" {
			file = "??"
		}
		if p.Line == 0 {
			line = "?"
		}
		if function == "" {
			function = "??"
		}
		out = append(out, [2]string{function, file + ":" + line})
	}
	return out
}

// compare classifies each address. norm makes the other tool's notation ours.
func compare(table *Table, list []uint64, answers map[uint64][][2]string, norm func([2]string) [2]string) *tally {
	c := &tally{}
	img := table.Images()[0]
	for _, a := range list {
		want := answers[a]
		for i := range want {
			want[i] = norm(want[i])
		}
		got := ours(img, a)
		for i := range got {
			got[i] = norm(got[i])
		}
		c.addresses++
		both := fmt.Sprintf("    0x%x ours:\n%s    theirs:\n%s", a, render(got), render(want))
		switch {
		case equal(got, want, 0) && equal(got, want, 1):
			c.agree++
		case got[0][0] == "??" && len(want) == 1 && strings.HasPrefix(want[0][1], "??"):
			c.note("padding behind a symbol's end", both)
		case len(got) != len(want):
			c.note("another depth of inlining", both)
		case !equal(got, want, 0):
			c.note("another function name", both)
		default:
			c.note("another file or line", both)
		}
	}
	return c
}

func equal(a, b [][2]string, part int) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i][part] != b[i][part] {
			return false
		}
	}
	return true
}

// likeOurs makes the notation of the other tools ours: spaces in templates, 0 for an
// unknown line, the part of a function that the compiler moved away from it. A file
// without a line comes from the symbol table's file symbols, which are not read here.
func likeOurs(p [2]string) [2]string {
	i := strings.LastIndexByte(p[1], ':')
	file, line := filepath.Clean(p[1][:i]), p[1][i:]
	if line == ":0" || line == ":?" {
		line = ":?"
		file = "??"
	}
	name := strings.TrimSuffix(strings.ReplaceAll(p[0], " ", ""), ".cold")
	name = strings.ReplaceAll(strings.ReplaceAll(name, "[clone.cold]", ""), "(.cold)", "")
	return [2]string{name, file + line}
}

// Every address of the code of real programs, against two independent tools. Depth,
// files and lines must agree everywhere. Names may differ where the tools write
// them otherwise (lambdas, clones), and where addr2line puts the name of the symbol
// into an inlined frame that has no linkage name of its own.
func TestEveryAddressAgreesWithOtherTools(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("compiles and asks for every address")
	}
	for _, c := range []struct {
		name, tool, pkg string
		args            []string
		skip            string // a tool whose answers are known to be wrong here
	}{
		{"gcc, DWARF 5, optimised", "g++", "g++", []string{"-g", "-O2", "orders.cc"}, ""},
		{"gcc, DWARF 4, not optimised", "g++", "g++", []string{"-g", "-O0", "-gdwarf-4", "orders.cc"}, ""},
		{"gcc, discarded sections", "g++", "g++", []string{"-g", "-O2", "-gdwarf-4", "-ffunction-sections", "-Wl,--gc-sections", "orders.cc"}, ""},
		// addr2line of binutils 2.40 finds no lines without the file that was split off.
		{"gcc, split", "g++", "g++", []string{"-g", "-O2", "-gdwarf-5", "-gsplit-dwarf", "orders.cc"}, "addr2line"},
		{"gcc, compressed sections", "g++", "g++", []string{"-g", "-O3", "-gz", "orders.cc"}, ""},
		// addr2line of binutils 2.40 loses inlined frames whose ranges are in clang's .debug_rnglists.
		{"clang, DWARF 5", "clang++", "clang", []string{"-g", "-O2", "orders.cc"}, "addr2line"},
		{"clang and lld, DWARF 4", "clang++", "clang, lld", []string{"-g", "-O2", "-gdwarf-4", "-fuse-ld=lld", "-ffunction-sections", "-Wl,--gc-sections", "orders.cc"}, ""},
		{"rustc", "rustc", "rustc", []string{"-g", "-O", "orders.rs"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			tool(t, c.tool, c.pkg)
			if strings.Contains(c.pkg, "lld") {
				tool(t, "ld.lld", "lld")
			}
			path := compile(t, c.tool, c.args...)
			table, list := build(t, path), sampled(addresses(t, path))
			for _, other := range []struct{ name, pkg string }{{"addr2line", "binutils"}, {"llvm-symbolizer", "llvm"}} {
				if other.name == c.skip {
					continue
				}
				if _, err := exec.LookPath(other.name); err != nil {
					t.Logf("%s is not installed (Debian package %s)", other.name, other.pkg)
					continue
				}
				args := []string{"-afiC", "-e", path}
				if other.name == "llvm-symbolizer" {
					args = append(args, "--output-style=GNU")
				}
				count := compare(table, list, ask(t, exec.Command(other.name, args...), list), likeOurs)
				count.log(t, other.name)
				for _, kind := range []string{"another depth of inlining", "another file or line"} {
					if n := count.differ[kind]; n > 0 {
						t.Errorf("%s: %d of %d addresses have %s, such as\n%s", other.name, n, count.addresses, kind, count.samples[kind])
					}
				}
			}
		})
	}
}

// sampled takes at most 40,000 addresses, evenly: all of a small program.
func sampled(list []uint64) []uint64 {
	step := len(list)/40_000 + 1
	var out []uint64
	for i := 0; i < len(list); i += step {
		out = append(out, list[i])
	}
	return out
}

func TestEveryAddressOfADSYMAgreesWithLLVM(t *testing.T) {
	t.Parallel()
	tool(t, "llvm-symbolizer", "llvm")
	const path = "testdata/tiny.dsym"
	table, list := build(t, path), addresses(t, path)
	command := exec.Command("llvm-symbolizer", "-afiC", "--output-style=GNU", "-e", path)
	count := compare(table, list, ask(t, command, list), likeOurs)
	count.log(t, "llvm-symbolizer")
	if count.agree != count.addresses {
		t.Error("addresses differ")
	}
}
