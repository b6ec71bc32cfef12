package dirlock

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestHeldFolderIsRefusedUntilReleased(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "made", "here")
	l, err := Take(dir)
	if err != nil {
		t.Fatal(err)
	}
	var inUse *InUse
	if _, err := Take(dir); !errors.As(err, &inUse) || inUse.PID != os.Getpid() || inUse.Dir != dir {
		t.Fatalf("second Take: %v", err)
	}
	if err := l.Release(); err != nil {
		t.Fatal(err)
	}
	again, err := Take(dir)
	if err != nil {
		t.Fatalf("Take after Release: %v", err)
	}
	if err := again.Release(); err != nil {
		t.Fatal(err)
	}
}
