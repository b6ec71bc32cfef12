package buffer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication/up"
)

func TestSecondProcessIsRefused(t *testing.T) {
	t.Parallel()
	for name, fs := range map[string]vfs.FS{"memory": vfs.NewMem(), "disk": vfs.Default} {
		cfg := Config{Dir: t.TempDir() + "/buffer", Edge: "edge-1", FS: fs, Log: quiet()}
		first, err := Open(cfg)
		must(t, err)
		must(t, first.Append(block(up.LaneEvent, "e1")))
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), "in use by another process") {
			t.Errorf("%s: second: %v", name, err)
		}
		must(t, first.Append(block(up.LaneEvent, "e2")))
		must(t, first.Close())
		again, err := Open(cfg)
		must(t, err)
		equal(t, name, everything(t, again, up.LaneEvent), []string{"e1", "e2"})
		if len(again.Status().Damaged) != 0 {
			t.Errorf("%s: set aside %v", name, again.Status().Damaged)
		}
		must(t, again.Close())
	}
}

func TestDamagedStoreIsSetAside(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(name string, data []byte) []byte{
		"manifest flipped": func(n string, d []byte) []byte { return when(strings.HasPrefix(n, "MANIFEST"), flip(d), d) },
		"manifest gone":    func(n string, d []byte) []byte { return when(strings.HasPrefix(n, "MANIFEST"), nil, d) },
		"marker gone":      func(n string, d []byte) []byte { return when(strings.HasPrefix(n, "marker.manifest"), nil, d) },
		"table flipped":    func(n string, d []byte) []byte { return when(strings.HasSuffix(n, ".sst"), flip(d), d) },
		"table gone":       func(n string, d []byte) []byte { return when(strings.HasSuffix(n, ".sst"), nil, d) },
	} {
		fs := vfs.NewMem()
		b := open(t, fs)
		for i := range 2000 {
			must(t, b.Append(blockOf(up.LaneEvent, projectA, 100, fmt.Sprint("e", i))))
		}
		must(t, b.db.Flush())
		must(t, b.Close())
		names, err := fs.List("data/buffer")
		must(t, err)
		for _, n := range names {
			rewrite(t, fs, "data/buffer/"+n, func(d []byte) []byte { return damage(n, d) })
		}
		b = open(t, fs)
		aside := b.Status().Damaged
		if len(aside) != 1 {
			t.Errorf("%s: set aside %v", name, aside)
			continue
		}
		if left, err := fs.List(aside[0]); err != nil || len(left) < len(names)-1 {
			t.Errorf("%s: %d of %d files kept, %v", name, len(left), len(names), err)
		}
		must(t, b.Append(block(up.LaneEvent, "new")))
		equal(t, name, everything(t, b, up.LaneEvent), []string{"new"})
	}
}

func TestDamageFoundWhileRunningIsReportedAndSetAsideAtTheNextStart(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	must(t, b.Append(block(up.LaneEvent, "old")))
	must(t, b.db.Flush())
	b.reportDamage("000006.sst", errors.New("checksum mismatch"))
	b.reportDamage("000006.sst", errors.New("checksum mismatch"))
	if d := b.Status().Damaged; len(d) != 1 || !strings.Contains(d[0], "000006.sst") {
		t.Errorf("status tells %v", d)
	}
	must(t, b.Append(block(up.LaneEvent, "more")))
	must(t, b.Close())
	b = open(t, fs)
	if d := b.Status().Damaged; len(d) != 1 || !strings.Contains(d[0], ".damaged-") {
		t.Errorf("status tells %v", d)
	}
	equal(t, "new store", everything(t, b, up.LaneEvent), nil)
}

func when(is bool, a, b []byte) []byte {
	if is {
		return a
	}
	return b
}

func flip(d []byte) []byte {
	d = bytes.Clone(d)
	for i := range d {
		d[i] ^= 0x55
	}
	return d
}

func rewrite(t *testing.T, fs vfs.FS, path string, change func([]byte) []byte) {
	t.Helper()
	f, err := fs.Open(path)
	must(t, err)
	data, err := io.ReadAll(f)
	must(t, err)
	must(t, f.Close())
	changed := change(data)
	if changed == nil {
		must(t, fs.Remove(path))
		return
	}
	g, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	must(t, err)
	_, err = g.Write(changed)
	must(t, err)
	must(t, g.Close())
}

func TestNewerFormatIsRefusedAndLeftAlone(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	must(t, b.db.Set([]byte{prefixFormat}, u64(format+1), pebble.Sync))
	must(t, b.Close())
	if _, err := Open(b.cfg); !errors.Is(err, errNewerFormat) {
		t.Errorf("got %v", err)
	}
	if names, err := fs.List("data"); err != nil || len(names) != 1 {
		t.Errorf("folder holds %v, %v", names, err)
	}
}

// Pebble has no type for this error, so it is known by its text, which may change with a version of Pebble.
func TestNewerFormatOfPebbleIsRefusedAndLeftAlone(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	b := open(t, fs)
	must(t, b.Close())
	names, err := fs.List(b.cfg.Dir)
	must(t, err)
	i := slices.IndexFunc(names, func(name string) bool { return strings.HasPrefix(name, "marker.format-version.") })
	if i < 0 {
		t.Fatalf("no marker of the format among %v", names)
	}
	newer := strings.TrimSuffix(names[i], path.Ext(names[i])) + ".999"
	must(t, fs.Rename(path.Join(b.cfg.Dir, names[i]), path.Join(b.cfg.Dir, newer)))
	if _, err := Open(b.cfg); !errors.Is(err, errNewerFormat) {
		t.Errorf("got %v", err)
	}
	if names, err := fs.List("data"); err != nil || len(names) != 1 {
		t.Errorf("folder holds %v, %v", names, err)
	}
}
