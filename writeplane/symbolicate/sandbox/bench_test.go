package sandbox

import (
	"os"
	"syscall"
	"testing"

	"skerry/writeplane/symbolicate"
)

// BenchmarkIndexFile indexes the debug file named by SKERRY_DEBUG_FILE in a child and
// reports the child's peak memory, pages of the mapped file included.
func BenchmarkIndexFile(b *testing.B) {
	path := os.Getenv("SKERRY_DEBUG_FILE")
	if path == "" {
		b.Skip("SKERRY_DEBUG_FILE names no file")
	}
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(info.Size())
	r := New(Config{Command: Self()})
	for b.Loop() {
		out, report, err := r.Build(b.Context(), symbolicate.AndroidNDK, f)
		if err != nil {
			b.Fatal(err, report)
		}
		if form, err := out.Stat(); err == nil {
			b.ReportMetric(float64(form.Size())/1e6, "form-MB")
		}
		_ = out.Close()
	}
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &usage); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(usage.Maxrss)/1e3, "child-peak-MB")
}
