package edgenode

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A start on a full disk fails at once and says why; it does not wait for space with its
// address taken.
func TestStartOnAFullDiskIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := unix.Mount("edgenode-test", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "size=8m,mode=0700"); err != nil {
		t.Skip("no file system can be mounted here: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	_, err := New(Config{ID: "e", Data: dir, Listen: "127.0.0.1:0", NATS: "nats://127.0.0.1:1", WritePlane: "http://127.0.0.1:1"})
	if err == nil || !strings.Contains(err.Error(), "the disk of "+dir+" is full") {
		t.Fatalf("%v", err)
	}
}
