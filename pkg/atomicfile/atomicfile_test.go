package atomicfile

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFileIsReplacedAndPrivate(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path+".new", []byte("left by a crash"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"one, longer than the second", "two"} {
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Fatalf("read %q, %v; want %q", got, err, text)
		}
	}
	fi, err := os.Stat(path)
	if err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; want 0600", fi.Mode(), err)
	}
	if _, err := os.Stat(path + ".new"); !os.IsNotExist(err) {
		t.Errorf("the draft is left: %v", err)
	}
}

func TestFailedWriteLeavesTheOldFile(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "f")
	if err := os.Mkdir(dir, 0o700); err != nil { // a folder cannot be replaced by a file
		t.Fatal(err)
	}
	if err := Write(dir, []byte("x")); err == nil {
		t.Fatal("writing over a folder succeeded")
	}
	if _, err := os.Stat(dir + ".new"); !os.IsNotExist(err) {
		t.Errorf("the draft is left: %v", err)
	}
}
