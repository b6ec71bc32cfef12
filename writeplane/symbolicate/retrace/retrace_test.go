package retrace

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
)

func open(t testing.TB, mapping string) *Table {
	t.Helper()
	index, _, err := Build([]byte(mapping))
	if err != nil {
		t.Fatal(err)
	}
	table, err := Open(index)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// trace retraces "class.method:line" frames and renders each as a line; the frames
// of one chain are joined by " < ".
func trace(table *Table, thrown string, frames ...string) string {
	var in []Frame
	for _, f := range frames {
		name, line, _ := strings.Cut(f, ":")
		dot := strings.LastIndexByte(name, '.')
		n, _ := strconv.ParseInt(line, 10, 64)
		in = append(in, Frame{Class: name[:dot], Method: name[dot+1:], Line: n, File: "SourceFile"})
	}
	var out []string
	for _, r := range table.Stack(thrown, in, 1<<20) {
		switch r.Outcome {
		case NotFound:
			out = append(out, "-")
			continue
		case Synthesized:
			out = append(out, "synthesized")
			continue
		}
		var chain []string
		for _, o := range r.Chain {
			chain = append(chain, fmt.Sprintf("%s.%s(%s:%d)", o.Class, o.Method, o.File, o.Line))
		}
		out = append(out, strings.Join(chain, " < "))
	}
	return strings.Join(out, "\n")
}

// retraced are mappings, obfuscated frames, and what these turn into.
var retraced = []struct{ name, mapping, frames, want string }{
	{"inlining opens into a chain, innermost first", `
shop.Main -> a:
    1:1:void main(java.lang.String[]):101:101 -> a
    2:4:void parse(java.lang.String):94:96 -> a
    2:4:void main(java.lang.String[]):102 -> a
    6:7:void shop.Cart.add(long):80:81 -> a
    6:7:void fill(int):88 -> a
    6:7:void main(java.lang.String[]):102 -> a
`, "a.a:1 a.a:3 a.a:7", `shop.Main.main(Main.java:101)
shop.Main.parse(Main.java:95) < shop.Main.main(Main.java:102)
shop.Cart.add(Cart.java:81) < shop.Main.fill(Main.java:88) < shop.Main.main(Main.java:102)`},
	{"an unknown class is not found, an unknown method gives the class alone", `
shop.Main -> a:
    1:1:void main():5:5 -> a
`, "b.a:1 a.zz:1 a.a:9", "-\nshop.Main.(Main.java:0)\nshop.Main.(Main.java:0)"},
	{"without a line the method is known, its line is not", `
shop.Main -> a:
    1:1:void run():122:122 -> a
    2:2:void run():124:124 -> a
    void one():42:42 -> b
    void many():42:44 -> c
    void kept() -> d
    void zero():0:0 -> e
`, "a.a a.a:0 a.a:2 a.b a.b:7 a.c:1 a.d:9 a.e:8", `shop.Main.run(Main.java:0)
shop.Main.run(Main.java:0)
shop.Main.run(Main.java:124)
shop.Main.one(Main.java:42)
shop.Main.one(Main.java:42)
shop.Main.many(Main.java:0)
shop.Main.kept(Main.java:9)
shop.Main.zero(Main.java:0)`},
	{"a range of zero stands for frames without lines", `
shop.Main -> a:
    0:0:void inner(java.lang.String):42:42 -> a
    0:0:void main(java.lang.String[]):28 -> a
    1:1:void main(java.lang.String[]):153 -> a
`, "a.a a.a:1", "shop.Main.inner(Main.java:42) < shop.Main.main(Main.java:28)\nshop.Main.main(Main.java:153)"},
	{"overloads at one line keep the name and lose the line", `
shop.Main -> a:
    1:1:void load():7:7 -> load
    1:1:void load(java.lang.String):13:13 -> load
    1:1:void load(int):15:15 -> load
`, "a.load:1", "shop.Main.load(Main.java:0)"},
	{"a method with lines is preferred to one without", `
shop.List -> a:
    java.util.List select(java.util.List) -> a
    3:3:void sync():425:425 -> a
    void cancel(java.lang.String[]) -> a
`, "a.a:3 a.a:4", "shop.List.sync(List.java:425)\nshop.List.select(List.java:4)"},
	{"two chains of one method at one line keep the first", `
shop.Main -> a:
    10:10:void lib.In.one(int):10:10 -> z
    10:10:void foo(int):10 -> z
    11:12:void foo(int):11:12 -> z
    10:10:void lib.In.two(int,int):20:20 -> z
    10:10:void bar(int,int):42 -> z
`, "a.z:10 a.z:12", "lib.In.one(In.java:10) < shop.Main.foo(Main.java:10)\nshop.Main.foo(Main.java:12)"},
	{"many lines may map to one", `
shop.Main -> a:
    1:10:void quux():27:27 -> a
    11:15:void quux():42 -> a
    20:29:void wide():5:7 -> b
`, "a.a:8 a.a:13 a.b:29", "shop.Main.quux(Main.java:27)\nshop.Main.quux(Main.java:42)\nshop.Main.wide(Main.java:7)"},
	{"a range that runs backwards says nothing", `
shop.Main -> a:
    5:3:void main(java.lang.String[]) -> main
    2:5:void other(java.lang.String[]):5:2 -> other
`, "a.main:3 a.other:3", "shop.Main.main(Main.java:3)\nshop.Main.other(Main.java:3)"},
	{"source files are said or inferred", `
shop.Main -> a:
# {"id":"sourceFile","fileName":"Start.kt"}
    2:2:void lib.Baz$Quux.inlinee():42:42 -> a
    2:2:void main():102 -> a
shop.UtilKt -> b:
    1:1:void help():3:3 -> a
shop.Outer$Inner -> c:
    1:1:void go():3:3 -> a
shop.L$$ExternalSyntheticLambda0 -> d:
# {"id":"sourceFile","fileName":"R8$$SyntheticClass"}
    1:1:void shop.ComposableSingletons$ScreenKt.lambda_1():42:42 -> a
    2:2:void shop.Main.main():9:9 -> a
`, "a.a:2 b.a:1 c.a:1 d.a:1 d.a:2", `lib.Baz$Quux.inlinee(Baz.kt:42) < shop.Main.main(Start.kt:102)
shop.UtilKt.help(Util.kt:3)
shop.Outer$Inner.go(Outer.java:3)
shop.ComposableSingletons$ScreenKt.lambda_1(Screen.kt:42)
shop.Main.main(Start.kt:9)`},
	{"what the compiler made is removed, alone or from a chain", `
# {"id":"com.android.tools.r8.mapping","version":"2.2"}
shop.Foo -> a:
    5:5:void lambda$main$0():225 -> a
shop.Foo$$Lambda0 -> b:
    void run(shop.Foo) -> a
      # {"id":"com.android.tools.r8.synthesized"}
    4:4:void shop.Foo.lambda$main$1():226 -> c
    4:4:void go(shop.Foo):2 -> c
    # {'id':'com.android.tools.r8.synthesized'}
    5:5:void shop.Foo.lambda$main$2():228 -> c
    5:5:void go(shop.Foo):4 -> c
shop.Made -> c:
# {"id":"com.android.tools.r8.synthesized"}
    void bridge() -> a
    3:3:void shop.Foo.real():9:9 -> b
    3:3:void bridge2():0 -> b
shop.Field -> d:
    int counter -> x
    # {"id":"com.android.tools.r8.synthesized"}
    void stays():7:7 -> x
`, "a.a:5 b.a b.c:4 b.c:5 c.a c.b:3 d.x:1", `shop.Foo.lambda$main$0(Foo.java:225)
synthesized
shop.Foo.lambda$main$1(Foo.java:226)
shop.Foo.lambda$main$2(Foo.java:228)
synthesized
shop.Foo.real(Foo.java:9)
shop.Field.stays(Field.java:7)`},
	{"an outline hands its position to its call site", `
shop.Out -> o:
    1:2:int outline():0 -> a
# {"id":"com.android.tools.r8.outline"}
shop.Some -> b:
    4:4:int lib.Near.caller(int):98:98 -> s
    4:4:int caller(int):24 -> s
    5:5:int caller(int):100:100 -> s
    27:27:int caller(int):0:0 -> s
# {"id":"com.android.tools.r8.outlineCallsite","positions":{"1":4,"2":5},"outline":"Lo;a()I"}
`, "o.a:1 b.s:27 o.a:2 b.s:27 b.s:27", `synthesized
lib.Near.caller(Near.java:98) < shop.Some.caller(Some.java:24)
synthesized
shop.Some.caller(Some.java:100)
shop.Some.caller(Some.java:0)`},
	{"a class written in parts is one class", "shop.Main -> a:\n    1:1:void one():3:3 -> a\nshop.B -> b:\nshop.Main -> a:\n    1:1:void two():4:4 -> b\n",
		"a.a:1 a.b:1", "shop.Main.one(Main.java:3)\nshop.Main.two(Main.java:4)"},
	{"qualified arguments, arrays and Windows line ends are read", "shop.Main -> a:\r\n    1:1:java.util.Map$Entry[] shop.Main.get(java.lang.String[],int[][]):3:3 -> a\r\n",
		"a.a:1", "shop.Main.get(Main.java:3)"},
}

func TestFramesAreRetraced(t *testing.T) {
	t.Parallel()
	for _, c := range retraced {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			table := open(t, c.mapping)
			if got := trace(table, "java.lang.Error", strings.Fields(c.frames)...); got != c.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
			}
		})
	}
}

const rewriting = `
shop.Boom -> e:
shop.Main -> a:
    3:3:java.lang.Object java.util.Objects.requireNonNull(java.lang.Object):5:5 -> a
    3:3:void run():19 -> a
    # {"id":"com.android.tools.r8.rewriteFrame","conditions":["throws(Ljava/lang/NullPointerException;)"],"actions":["removeInnerFrames(1)"]}
    4:4:void lib.In.check():7:7 -> b
    4:4:void go():8 -> b
    # {"id":"com.android.tools.r8.rewriteFrame","conditions":["throws(Lshop/Boom;)"],"actions":["removeInnerFrames(1)"]}
    5:5:void only():9:9 -> c
    # {"id":"com.android.tools.r8.rewriteFrame","conditions":["throws(Lx;)"],"actions":["removeInnerFrames(1)"]}
    # {"id":"com.android.tools.r8.rewriteFrame","conditions":["throws(Ly;)"],"actions":["shuffle(1)"]}
`

func TestRewriteRulesHoldForTheTopFrameOfTheirException(t *testing.T) {
	t.Parallel()
	table := open(t, rewriting)
	whole := "java.util.Objects.requireNonNull(Objects.java:5) < shop.Main.run(Main.java:19)"
	for _, c := range []struct{ thrown, frames, want string }{
		{"java.lang.NullPointerException", "a.a:3 a.a:3", "shop.Main.run(Main.java:19)\n" + whole},
		{"java.lang.IllegalStateException", "a.a:3", whole},
		{"e", "a.b:4", "shop.Main.go(Main.java:8)"},
		{"shop.Boom", "a.b:4", "shop.Main.go(Main.java:8)"},
		{"x", "a.c:5", "synthesized"},
		{"y", "a.c:5", "shop.Main.only(Main.java:9)"},
	} {
		if got := trace(table, c.thrown, strings.Fields(c.frames)...); got != c.want {
			t.Errorf("%s at %s: got %q, want %q", c.thrown, c.frames, got, c.want)
		}
	}
}

func TestIDIsTheHeadersElseTheUUIDOfTheBytes(t *testing.T) {
	t.Parallel()
	const header = "# compiler: R8\n# pg_map_id: 8FCA2D1\n# pg_map_hash: SHA-256 x\na.B -> c:\n"
	if got := ID([]byte(header)); got != "8fca2d1" {
		t.Errorf("header: %q", got)
	}
	// uuid5(uuid5(DNS, "guardsquare.com"), bytes), computed with Python's uuid module.
	if got := ID([]byte("a.B -> c:\n")); got != "7cd64ac9-b346-5240-ac03-975a95ad0ac3" {
		t.Errorf("bytes: %q", got)
	}
	if got := ID([]byte("a.B -> c:\n# pg_map_id: late\n")); got == "late" {
		t.Error("an id outside the header was taken")
	}
}

func TestTextWithoutAMappingIsMalformedAndStrangeLinesAreCounted(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "hello\nworld\n", "\x00\x01", "# pg_map_id: 1\n", strings.Repeat("a", 3<<20)} {
		if _, _, err := Build([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	_, warnings, err := Build([]byte("a.B -> c:\n    nonsense\n    1:1:void x():1:1 -> y\n"))
	if err != nil || len(warnings) != 1 || warnings[0] != "1 of 3 lines are not understood" {
		t.Errorf("%q %v", warnings, err)
	}
}

func TestDamagedLookupFormNeverPanics(t *testing.T) {
	t.Parallel()
	index, _, err := Build([]byte(rewriting))
	if err != nil {
		t.Fatal(err)
	}
	for i := range index {
		for _, flip := range []byte{0x01, 0x80, 0xff} {
			damaged := append([]byte(nil), index...)
			damaged[i] ^= flip
			if table, err := Open(damaged); err == nil {
				trace(table, "e", "a.a:3", "a.b:4", "a.c:5")
			}
		}
	}
}

func FuzzBuild(f *testing.F) {
	f.Add([]byte(rewriting), "a", "a", int64(3))
	f.Add([]byte("o.O -> o:\n 1:2:int x():0 -> a\n# {\"id\":\"com.android.tools.r8.outline\"}\nb.B -> b:\n 1:1:int y():0:0 -> s\n# {\"id\":\"com.android.tools.r8.outlineCallsite\",\"positions\":{\"1\":4}}\n"), "o", "a", int64(1))
	f.Fuzz(func(t *testing.T, data []byte, class, method string, line int64) {
		ID(data)
		index, _, err := Build(data)
		if err != nil {
			return
		}
		table, err := Open(index)
		if err != nil {
			t.Fatal(err)
		}
		table.Stack("e", []Frame{{Class: class, Method: method, Line: line}, {Class: "b", Method: "s", Line: 1}}, 1<<20)
	})
}

func FuzzOpen(f *testing.F) {
	index, _, _ := Build([]byte(rewriting))
	f.Add(index)
	f.Fuzz(func(t *testing.T, index []byte) {
		if table, err := Open(index); err == nil {
			table.Stack("e", []Frame{{Class: "a", Method: "a", Line: 3}, {Class: "a", Method: "b", Line: 4}}, 1<<20)
		}
	})
}

func bigMapping(classes int) []byte {
	var b strings.Builder
	for i := range classes {
		fmt.Fprintf(&b, "com.example.feature%d.SomeView -> a.a%d:\n# {\"id\":\"sourceFile\",\"fileName\":\"SomeView.kt\"}\n", i, i)
		for m := range 10 {
			fmt.Fprintf(&b, "    1:4:void com.example.lib.Helper%d.call(int):%d:%d -> m%d\n    1:4:void method%d(java.lang.String):%d -> m%d\n", m, m*10+1, m*10+4, m, m, m+100, m)
		}
	}
	return []byte(b.String())
}

func BenchmarkBuild(b *testing.B) {
	text := bigMapping(20_000)
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

func BenchmarkFrame(b *testing.B) {
	table := open(b, string(bigMapping(20_000)))
	frames := []Frame{{Class: "a.a12345", Method: "m7", Line: 3}}
	b.ReportAllocs()
	for b.Loop() {
		if r := table.Stack("x", frames, 1<<20); len(r[0].Chain) != 2 {
			b.Fatal(r)
		}
	}
}

func TestWhatOneFrameReadsIsBounded(t *testing.T) {
	t.Parallel()
	const deep = "x.Deep -> a:\n    1:1:void m():7:7 -> b\n"
	table := open(t, deep+strings.Repeat("    1:1:void m():8 -> b\n", 2*maxChain))
	frame := Frame{Class: "a", Method: "b", Line: 1}
	if r := table.Stack("e", []Frame{frame}, 1<<20); len(r[0].Chain) != maxChain {
		t.Errorf("a chain of %d, want %d", len(r[0].Chain), maxChain)
	}
	// A chain of 1000 takes more than 100 KB; the second goes beyond, and what is behind it.
	got := table.Stack("e", []Frame{frame, frame, {Class: "a"}}, 200_000)
	if got[0].Outcome != Found || got[1].Outcome != Excess || got[2].Outcome != Excess {
		t.Errorf("outcomes %d, %d, %d", got[0].Outcome, got[1].Outcome, got[2].Outcome)
	}
	_, warnings, err := Build([]byte(deep + strings.Repeat("    2:2:void m():8 -> b\n", maxLines)))
	if want := "1 of 65538 lines are not understood"; err != nil || len(warnings) != 1 || warnings[0] != want {
		t.Errorf("%q, %v; want %q", warnings, err, want)
	}
	site := `    # {"id":"com.android.tools.r8.outlineCallsite","positions":{"1":2,"3":4}}` + "\n"
	r := reader{done: func(c *class) {
		if said := c.methods["b"][0]; len(said.callsites) != maxSaid/3 {
			t.Errorf("%d call sites, want %d", len(said.callsites), maxSaid/3)
		}
	}}
	r.read([]byte(deep + strings.Repeat(site, maxSaid)))
}
