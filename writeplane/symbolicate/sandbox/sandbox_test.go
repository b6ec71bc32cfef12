package sandbox

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skerry/writeplane/symbolicate"
)

func TestMain(m *testing.M) {
	Enter()
	goleak.VerifyTestMain(m)
}

func file(t testing.TB, data []byte) *os.File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "artifact")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func fixture(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", "native", "testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func isolated(t testing.TB) *Runner {
	return New(Config{Command: Self(), Scratch: t.TempDir()})
}

func TestChildFindsWhatTheParserFinds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		kind symbolicate.Kind
		data []byte
		ids  []string
	}{
		{symbolicate.AndroidNDK, fixture(t, "tiny.so"), []string{"0123456789abcdef0123456789abcdef01234567", "67452301-ab89-efcd-0123-456789abcdef"}},
		{symbolicate.DSYM, fixture(t, "tiny.dsym"), []string{"4c4c449b-5555-3144-a1ce-229b6d50d126"}},
		{symbolicate.SourceMap, []byte(`{"version":3,"debugId":"ABC","sources":["a"],"mappings":"AAAA"}`), []string{"abc"}},
		{symbolicate.AndroidMapping, []byte("# pg_map_id: 77\na.B -> c:\n"), []string{"77"}},
	} {
		f := file(t, c.data)
		for name, r := range map[string]*Runner{"child": isolated(t), "in process": New(Config{Scratch: t.TempDir()})} {
			report, err := r.Identify(t.Context(), c.kind, f)
			if err != nil || !slices.Equal(report.DebugIDs, c.ids) || len(report.Warnings) > 0 {
				t.Errorf("%s %s: %+v %v", name, c.kind, report, err)
			}
			out, _, err := r.Build(t.Context(), c.kind, f)
			if err != nil {
				t.Errorf("%s %s: %v", name, c.kind, err)
				continue
			}
			index, err := io.ReadAll(out)
			_ = out.Close()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := symbolicate.Open(c.kind, index); err != nil {
				t.Errorf("%s %s: %v", name, c.kind, err)
			}
		}
	}
}

// compressedELF is a shared object whose debug information is a zlib stream of
// size zeros, and whose header claims some size.
func compressedELF(t testing.TB, size, claim int64) []byte {
	t.Helper()
	so := fixture(t, "tiny.so")
	packed := bytes.NewBuffer(append([]byte{0x78, 0x9c}, zeros(t, nil, size)...)) // the checksum is never reached
	head := make([]byte, 24)                                                      // Chdr64: type zlib, size, alignment
	binary.LittleEndian.PutUint32(head, 1)
	binary.LittleEndian.PutUint64(head[8:], uint64(claim))
	binary.LittleEndian.PutUint64(head[16:], 1)
	at := uint64(len(so))
	so = append(append(so, head...), packed.Bytes()...)
	sections := binary.LittleEndian.Uint64(so[40:])
	for i := range uint64(binary.LittleEndian.Uint16(so[60:])) {
		section := so[sections+64*i:]
		names := so[sections+64*uint64(binary.LittleEndian.Uint16(so[62:])):]
		name := so[binary.LittleEndian.Uint64(names[24:])+uint64(binary.LittleEndian.Uint32(section)):]
		if bytes.HasPrefix(name, []byte(".debug_info\x00")) {
			binary.LittleEndian.PutUint64(section[8:], 0x800) // compressed
			binary.LittleEndian.PutUint64(section[24:], at)
			binary.LittleEndian.PutUint64(section[32:], uint64(24+packed.Len()))
		}
	}
	return so
}

// zeros is a deflate stream of head and then about size zeros. Its blocks are made
// once and repeated, for a compressor would take seconds.
func zeros(t testing.TB, head []byte, size int64) []byte {
	t.Helper()
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	write := func(p []byte) []byte {
		from := out.Len()
		if _, err := w.Write(p); err != nil {
			t.Fatal(err)
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		return bytes.Clone(out.Bytes()[from:])
	}
	const block = 1 << 20
	write(append(head, make([]byte, block-len(head))...))
	again := write(make([]byte, block))
	return append(out.Bytes(), bytes.Repeat(again, int(size/block))...)
}

// zipOfZeros is a zip whose one entry begins like an ELF file.
func zipOfZeros(t testing.TB, size int64) []byte {
	t.Helper()
	packed := zeros(t, []byte("\x7fELF"), size)
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	entry, err := w.CreateRaw(&zip.FileHeader{
		Name: "App.dSYM/App", Method: zip.Deflate, CompressedSize64: uint64(len(packed)), UncompressedSize64: uint64(size),
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := entry.Write(packed); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestHostileFilesCostTheChildAndBecomeAReason(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		kind   symbolicate.Kind
		data   []byte
		config Config
		reason string
	}{
		{"900 MB inflated from one section", symbolicate.AndroidNDK, compressedELF(t, 900<<20, 900<<20), Config{}, symbolicate.Limit},
		{"a section that claims 4 GB", symbolicate.AndroidNDK, compressedELF(t, 1<<20, 4<<30), Config{}, ""}, // symbols remain
		{"a zip that takes longer than it may", symbolicate.DSYM, zipOfZeros(t, 3<<30), Config{Processor: time.Second}, symbolicate.Limit},
		{"a zip of an empty ELF", symbolicate.DSYM, zipOfZeros(t, 1<<20), Config{}, symbolicate.Malformed},
		{"source index 2^31", symbolicate.SourceMap, []byte(`{"version":3,"sources":["a"],"mappings":"AggggggEAA"}`), Config{}, symbolicate.Malformed},
		{"nesting of a million", symbolicate.SourceMap, []byte(`{"a":` + strings.Repeat("[", 1_000_000)), Config{}, symbolicate.Malformed},
		{"a lookup form larger than allowed", symbolicate.AndroidNDK, fixture(t, "tiny.so"), Config{Output: 100}, symbolicate.Limit},
		{"an empty file", symbolicate.AndroidNDK, nil, Config{}, symbolicate.Malformed},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.config.Command, c.config.Scratch = Self(), t.TempDir()
			r := New(c.config)
			out, _, err := r.Build(t.Context(), c.kind, file(t, c.data))
			var fault *symbolicate.Fault
			switch {
			case c.reason == "" && err != nil:
				t.Fatal(err)
			case c.reason == "":
				_ = out.Close()
			case !errors.As(err, &fault) || fault.Reason != c.reason:
				t.Fatalf("got %v, want %s", err, c.reason)
			}
			// The next child works as ever.
			if _, err := New(Config{Command: Self()}).Identify(t.Context(), symbolicate.DSYM, file(t, fixture(t, "tiny.dsym"))); err != nil {
				t.Error(err)
			}
			if left, _ := os.ReadDir(c.config.Scratch); len(left) > 0 {
				t.Errorf("scratch holds %d files", len(left))
			}
		})
	}
}

func TestCanceledCallEndsItsChild(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	f := file(t, zipOfZeros(t, 3<<30))
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, _, err := isolated(t).Build(ctx, symbolicate.DSYM, f); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestProgramThatIsNoSandboxIsNotBlamedOnTheFile(t *testing.T) {
	t.Parallel()
	r := New(Config{Command: []string{"/does/not/exist"}})
	_, err := r.Identify(t.Context(), symbolicate.DSYM, file(t, nil))
	var fault *symbolicate.Fault
	if err == nil || errors.As(err, &fault) {
		t.Errorf("got %v", err)
	}
}

func TestChildThatSomebodyStopsIsNotBlamedOnTheFile(t *testing.T) {
	t.Parallel()
	for signal, blamed := range map[string]bool{"TERM": false, "INT": false, "HUP": false, "XCPU": true, "KILL": true} {
		r := New(Config{Command: []string{"/bin/sh", "-c", "kill -" + signal + " $$"}})
		_, err := r.Identify(t.Context(), symbolicate.DSYM, file(t, nil))
		var fault *symbolicate.Fault
		if err == nil || errors.As(err, &fault) != blamed {
			t.Errorf("%s: got %v", signal, err)
		}
	}
}

func TestUploadsAreIdentifiedWhileLargeFilesAreIndexed(t *testing.T) {
	t.Parallel()
	begun := filepath.Join(t.TempDir(), "begun")
	if err := syscall.Mkfifo(begun, 0o600); err != nil {
		t.Fatal(err)
	}
	// Its first argument is the mode; descriptor 3 takes the report.
	const child = `if [ "$1" = build ]; then echo > "$0"; exec sleep 60; fi; echo '{"debug_ids":["a"]}' >&3`
	r := New(Config{Command: []string{"/bin/sh", "-c", child, begun}, Parallel: 1})
	ctx, cancel := context.WithCancel(t.Context())
	built := make(chan error, 1)
	f := file(t, nil)
	go func() {
		_, _, err := r.Build(ctx, symbolicate.DSYM, f)
		built <- err
	}()
	if _, err := os.ReadFile(begun); err != nil { // until the child has written
		t.Fatal(err)
	}
	soon, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	if report, err := r.Identify(soon, symbolicate.DSYM, f); err != nil || len(report.DebugIDs) != 1 {
		t.Errorf("%+v, %v", report, err)
	}
	cancel()
	if err := <-built; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestChildEndsWithItsParent(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	// The shell stands for a process that indexes a file and is killed meanwhile.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	parent := exec.Command("/bin/sh", "-c", `"$@" $$ "$0" <&4 & echo begun >&3; wait`,
		t.TempDir(), self, argument, modeBuild, string(symbolicate.DSYM), "700000000", "60", "1000000000")
	parent.ExtraFiles = []*os.File{writer, file(t, zipOfZeros(t, 3<<30))}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	begun := make([]byte, len("begun\n"))
	if _, err := io.ReadFull(reader, begun); err != nil {
		t.Fatal(err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait()
	if report, err := io.ReadAll(reader); err != nil || len(report) > 0 { // until the child is gone
		t.Errorf("the child went on to its end: %s, %v", report, err)
	}
}
