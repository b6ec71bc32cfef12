package native

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func zipped(t testing.TB, files ...any) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for i := 0; i < len(files); i += 2 {
		f, err := w.Create(files[i].(string))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write(files[i+1].([]byte)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// fatOf wraps images into a fat file.
func fatOf(images ...[]byte) []byte {
	const first = 4096
	head := binary.BigEndian.AppendUint32([]byte{0xca, 0xfe, 0xba, 0xbe}, uint32(len(images)))
	body, at := []byte{}, uint32(first)
	for i, img := range images {
		for _, n := range []uint32{0x01000007, uint32(i), at, uint32(len(img)), 12} {
			head = binary.BigEndian.AppendUint32(head, n)
		}
		body = append(body, img...)
		at += uint32(len(img))
	}
	return append(append(head, make([]byte, first-len(head))...), body...)
}

// show renders a lookup as "function file:line:column < caller …".
func show(img *Image, address uint64) string {
	chain, ok := img.Lookup(address)
	if !ok {
		return "-"
	}
	var parts []string
	for _, p := range chain {
		parts = append(parts, fmt.Sprintf("%s %s:%d:%d", p.Function, p.File, p.Line, p.Column))
	}
	return strings.Join(parts, " < ")
}

const (
	elfBuildID = "0123456789abcdef0123456789abcdef01234567"
	elfUUID    = "67452301-ab89-efcd-0123-456789abcdef"
	dsymUUID   = "4c4c449b-5555-3144-a1ce-229b6d50d126"
)

func TestDebugIDsOfEveryKindOfFile(t *testing.T) {
	t.Parallel()
	so, dsym := fixture(t, "tiny.so"), fixture(t, "tiny.dsym")
	for name, c := range map[string]struct {
		data []byte
		want []string
	}{
		"ELF: build id and its UUID form": {so, []string{elfBuildID, elfUUID}},
		"Mach-O":                          {dsym, []string{dsymUUID}},
		"fat Mach-O":                      {fatOf(dsym, dsym), []string{dsymUUID, dsymUUID}},
		"zipped dSYM bundle as macOS packs it": {zipped(t,
			"App.dSYM/", []byte{}, "App.dSYM/Contents/Info.plist", []byte("<plist/>"),
			"__MACOSX/App.dSYM/Contents/Resources/DWARF/._App", []byte("\x00\x05\x16\x07"),
			"__MACOSX/App", so, "App.dSYM/Contents/Resources/DWARF/._App", so,
			"App.dSYM/Contents/Resources/DWARF/App", dsym), []string{dsymUUID}},
		"zip of several libraries, whatever their paths": {zipped(t,
			"../../etc/libone.so", so, "/abs/Two.class", []byte("\xca\xfe\xba\xbe\x00\x00\x00\x41rest"),
			"c:\\lib\\libtwo.dylib", dsym), []string{elfBuildID, elfUUID, dsymUUID}},
		"build id only in the section": {without(t, so, "segments"), []string{elfBuildID, elfUUID}},
	} {
		ids, warnings, err := Identify(c.data, t.TempDir())
		if err != nil || len(warnings) > 0 || !slices.Equal(ids, c.want) {
			t.Errorf("%s: %v %v %v", name, ids, warnings, err)
		}
	}
}

// without damages the way to the build id: the program headers' type, or the note.
func without(t testing.TB, so []byte, what string) []byte {
	t.Helper()
	out := slices.Clone(so)
	at := binary.LittleEndian.Uint64(out[32:])
	for i := range uint64(binary.LittleEndian.Uint16(out[56:])) {
		if p := out[at+56*i:]; binary.LittleEndian.Uint32(p) == 4 { // PT_NOTE
			binary.LittleEndian.PutUint32(p, 0)
		}
	}
	if what == "segments" {
		return out
	}
	i := bytes.Index(out, []byte("GNU\x00\x01\x23\x45\x67"))
	out[i-4] = 9 // another type of note
	return out
}

func TestELFWithoutBuildIDIsKnownByItsText(t *testing.T) {
	t.Parallel()
	so := without(t, fixture(t, "tiny.so"), "notes")
	ids, _, err := Identify(so, t.TempDir())
	if err != nil || len(ids) != 1 {
		t.Fatalf("%v %v", ids, err)
	}
	// Fold .text (0x1020, 45 bytes at offset 0x1020) by hand and swap the first fields.
	var u [16]byte
	for i, b := range so[0x1020:0x104d] {
		u[i%16] ^= b
	}
	want := fmt.Sprintf("%02x%02x%02x%02x-%02x%02x-%02x%02x-%x-%x", u[3], u[2], u[1], u[0], u[5], u[4], u[7], u[6], u[8:10], u[10:])
	if ids[0] != want {
		t.Errorf("got %s, want %s", ids[0], want)
	}
}

func TestAddressesBecomeFunctionsWithTheirInlinedCalls(t *testing.T) {
	t.Parallel()
	for file, want := range map[string]map[uint64]string{
		"tiny.so": {
			0x1020: "helper /src/tiny.c:4:12",
			0x102e: "twice /src/tiny.c:1:47 < helper /src/tiny.c:5:10",
			0x1031: "twice /src/tiny.c:1:47 < helper /src/tiny.c:5:10",
			0x103f: "entry /src/tiny.c:8:18",
			0x104c: "entry /src/tiny.c:8:49",
			0x104d: "-", 0x101f: "-", 0: "-", 1<<64 - 1: "-",
		},
		"tiny.dsym": {0x330: "helper /src/tiny.c:4:21", 0x398: "twice /src/tiny.c:1:47 < helper /src/tiny.c:5:10"},
	} {
		img := build(t, "testdata/"+file).Images()[0]
		for address, want := range want {
			if got := show(img, address); got != want {
				t.Errorf("%s 0x%x: got %q, want %q", file, address, got, want)
			}
		}
	}
}

func TestAddressOfAProcessIsTakenRelativeToItsImage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ segment, address, base, want uint64 }{
		{0, 0x7f001020, 0x7f000000, 0x1020},
		{0x100000000, 0x104000330, 0x104000000, 0x100000330},
		{0x400040, 0x400100, 0x400000, 0x400100}, // maps begin at the page
		{0x400040, 0x500100, 0x500040, 0x400100}, // or the sender names the segment itself
		{0x200000, 0x56001234, 0x56000000, 0x201234},
	} {
		img := &Image{segment: c.segment}
		if got, ok := img.FileAddress(c.address, c.base); !ok || got != c.want {
			t.Errorf("%+v: got 0x%x", c, got)
		}
	}
	if _, ok := (&Image{}).FileAddress(0x100, 0x200); ok {
		t.Error("an address below its image was taken")
	}
}

func TestSymbolTableServesWhereDebugInformationIsMissing(t *testing.T) {
	t.Parallel()
	so := fixture(t, "tiny.so")
	stripped := bytes.ReplaceAll(so, []byte(".debug_info"), []byte(".absent_one"))
	table, _ := buildBytes(t, stripped)
	for address, want := range map[uint64]string{0x102e: "helper :0:0", 0x104c: "entry :0:0", 0x104d: "-"} {
		if got := show(table.Images()[0], address); got != want {
			t.Errorf("0x%x: got %q, want %q", address, got, want)
		}
	}
}

func TestImagesOfABundleAreFoundByIDWithoutRegardToCase(t *testing.T) {
	t.Parallel()
	table, _ := buildBytes(t, zipped(t, "a.so", fixture(t, "tiny.so"), "b", fixture(t, "tiny.dsym")))
	for id, want := range map[string]string{strings.ToUpper(elfBuildID): "elf", elfUUID: "elf", strings.ToUpper(dsymUUID): "macho"} {
		img, ok := table.ByID(id)
		if !ok || (want == "elf") != (img.base == 0x1020 || img.base == 0x1000) {
			t.Errorf("%s: %v %v", id, img, ok)
		}
	}
	if _, ok := table.ByID("nothing"); ok {
		t.Error("an unknown id was found")
	}
}

func TestNamesAreDemangled(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"_ZN4shop4Cart3addENS_4ItemE": "shop::Cart::add(shop::Item)",
		"_ZN3std3sys9backtrace28__rust_begin_short_backtrace17h0123456789abcdefE":                              "std::sys::backtrace::__rust_begin_short_backtrace",
		"_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b740aa94f1d3aE": "<Test + 'static as foo::Bar<Test>>::bar",
		"_RNvC6_123foo3bar":          "123foo::bar",
		"main":                       "main",
		"":                           "",
		"_ZN":                        "_ZN",
		strings.Repeat("_Z", 20_000): strings.Repeat("_Z", 20_000),
	} {
		if got := Demangle(in); got != want {
			t.Errorf("%.60s: got %.80q, want %.80q", in, got, want)
		}
	}
}

func TestWhatIsNoDebugFileIsRefusedWithAReason(t *testing.T) {
	t.Parallel()
	so := fixture(t, "tiny.so")
	bomb := zipped(t, "zeros", make([]byte, 8<<20)) // nothing in it looks like an image
	for name, data := range map[string][]byte{
		"empty": {}, "text": []byte("hello, this is text"), "ELF magic alone": so[:4], "half an ELF header": so[:40],
		"an ELF that ends before its sections": so[:2000], "Mach-O magic alone": {0xcf, 0xfa, 0xed, 0xfe},
		"Java class":                   []byte("\xca\xfe\xba\xbe\x00\x00\x00\x41aaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
		"fat file that points outside": append([]byte("\xca\xfe\xba\xbe\x00\x00\x00\x01"), bytes.Repeat([]byte{0xff}, 40)...),
		"zip without images":           bomb, "zip cut off": zipped(t, "a.so", so)[:1000], "zip magic alone": []byte("PK\x03\x04"),
	} {
		var index bytes.Buffer
		_, err := Build(data, t.TempDir(), &index)
		if !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: Build: %v", name, err)
		}
		if _, _, err := Identify(data, t.TempDir()); err == nil && name != "an ELF that ends before its sections" {
			t.Errorf("%s: identified", name)
		}
	}
}

// Every byte of the fixtures is damaged once in each of a few ways: whatever comes
// of it, nothing panics, and what opens answers.
func TestDamagedFilesNeverPanic(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	scratch := t.TempDir()
	for _, name := range []string{"tiny.so", "tiny.dsym"} {
		data := fixture(t, name)
		for range 3_000 {
			damaged := slices.Clone(data)
			for range 1 + random.IntN(4) {
				damaged[random.IntN(len(damaged))] = byte(random.IntN(256))
			}
			if random.IntN(4) == 0 {
				damaged = damaged[:random.IntN(len(damaged))]
			}
			tryAll(t, damaged, scratch)
		}
	}
}

func tryAll(t testing.TB, data []byte, scratch string) {
	_, _, _ = Identify(data, scratch)
	var index bytes.Buffer
	if _, err := Build(data, scratch, &index); err != nil {
		return
	}
	table, err := Open(index.Bytes())
	if err != nil {
		t.Fatalf("own lookup form does not open: %v", err)
	}
	for _, img := range table.Images() {
		for a := img.base; a < img.base+64; a++ {
			img.Lookup(a)
		}
	}
}

func TestDamagedLookupFormNeverPanics(t *testing.T) {
	t.Parallel()
	var index bytes.Buffer
	if _, err := Build(fixture(t, "tiny.so"), t.TempDir(), &index); err != nil {
		t.Fatal(err)
	}
	for i := range index.Bytes() {
		for _, flip := range []byte{0x01, 0x80, 0xff} {
			damaged := slices.Clone(index.Bytes())
			damaged[i] ^= flip
			if table, err := Open(damaged); err == nil {
				for _, img := range table.Images() {
					for a := uint64(0x1000); a < 0x1060; a++ {
						img.Lookup(a)
					}
				}
			}
		}
	}
}

func FuzzBuild(f *testing.F) {
	f.Add(fixture(f, "tiny.so"))
	f.Add(fixture(f, "tiny.dsym"))
	f.Add(fatOf(fixture(f, "tiny.dsym")))
	f.Add(zipped(f, "a", fixture(f, "tiny.so")))
	f.Fuzz(func(t *testing.T, data []byte) { tryAll(t, data, t.TempDir()) })
}

func FuzzOpen(f *testing.F) {
	var index bytes.Buffer
	_, _ = Build(fixture(f, "tiny.so"), f.TempDir(), &index)
	f.Add(index.Bytes(), uint64(0x102e))
	f.Fuzz(func(t *testing.T, index []byte, address uint64) {
		if table, err := Open(index); err == nil {
			for _, img := range table.Images() {
				img.Lookup(address)
				img.Lookup(img.base)
			}
		}
	})
}

func FuzzDemangle(f *testing.F) {
	f.Add("_ZN4shop4Cart3addENS_4ItemE")
	f.Add("_ZN3a$u7b$1b17h0123456789abcdefE")
	f.Add("_RNCNCNvC1a1b0s_0")
	f.Add("_RINvC1a1fDG0_INtC1b1TRL1_eRL0_eEp6OutputFUKCAhj3_EuEL_TuB0_EKVC1cTca_Re61_EKan5_NvC1au8_xthlqEB2_")
	f.Fuzz(func(t *testing.T, name string) { Demangle(name) })
}

type broken struct{ err error }

func (b broken) Read([]byte) (int, error)  { return 0, b.err }
func (b broken) Write([]byte) (int, error) { return 0, b.err }

func TestAFullDiskIsNotBlamedOnTheZip(t *testing.T) {
	t.Parallel()
	full := broken{errors.New("no space left on device")}
	for _, c := range []struct {
		what  string
		to    io.Writer
		from  io.Reader
		fault error
	}{
		{"the disk is full", full, strings.NewReader("1234"), nil},
		{"the entry is damaged", io.Discard, full, ErrMalformed},
		{"the entry is too long", io.Discard, strings.NewReader("12345"), ErrLimit},
	} {
		_, err := spill(c.to, c.from, 4)
		if err == nil || errors.Is(err, ErrMalformed) != (c.fault == ErrMalformed) || errors.Is(err, ErrLimit) != (c.fault == ErrLimit) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	if n, err := spill(io.Discard, strings.NewReader("1234"), 4); n != 4 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
}
