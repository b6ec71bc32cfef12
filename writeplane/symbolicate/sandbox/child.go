package sandbox

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"skerry/writeplane/symbolicate"
)

// entered is whether this program knows how to be a child; only Enter sets it.
var entered atomic.Bool

// Enter runs a child to its end when the process was started as one, and returns at
// once otherwise. It must be the first thing that main does.
func Enter() {
	entered.Store(true)
	if len(os.Args) < 2 || os.Args[1] != argument {
		return
	}
	if err := child(os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "sandboxed symbols:", err)
		os.Exit(exitBroken)
	}
	os.Exit(0)
}

// child reads its arguments — mode, kind, memory, seconds, output, parent, scratch —
// bounds itself and does the work.
func child(args []string) error {
	if len(args) != 7 {
		return fmt.Errorf("%d arguments", len(args))
	}
	var limits [4]uint64
	for i := range limits {
		n, err := strconv.ParseUint(args[2+i], 10, 63)
		if err != nil {
			return fmt.Errorf("read limit: %w", err)
		}
		limits[i] = n
	}
	if err := confine(limits[0], limits[1], limits[2]); err != nil {
		return err
	}
	go endWith(int(limits[3]))
	report, err := work(args[0], symbolicate.Kind(args[1]), os.Stdin, os.Stdout, args[6])
	if err != nil {
		return err
	}
	out := os.NewFile(3, "report")
	if err := json.NewEncoder(out).Encode(report); err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	return out.Close()
}

// endWith ends the child when its parent is gone: a program that is killed again and
// again, and begins anew, must not leave a child each time. The signal that Linux has
// for it goes by the parent's thread, which Go may end at any time.
func endWith(parent int) {
	for range time.Tick(100 * time.Millisecond) {
		if os.Getppid() != parent {
			os.Exit(exitBroken)
		}
	}
}

// confine sets limits that the process cannot raise again. Memory is bounded as
// private writable pages: the address space that Go reserves is no measure, and the
// artifact itself is mapped from its file.
func confine(memory, seconds, output uint64) error {
	debug.SetMemoryLimit(int64(memory / 8 * 5))
	debug.SetGCPercent(50)
	for _, l := range []struct {
		what     int
		soft     uint64
		hard     uint64
		resource string
	}{
		{unix.RLIMIT_DATA, memory, memory, "memory"},
		{unix.RLIMIT_CPU, seconds, seconds + 1, "processor time"},
		{unix.RLIMIT_FSIZE, max(output, 4<<30), max(output, 4<<30), "output"},
		{unix.RLIMIT_CORE, 0, 0, "core"},
		{unix.RLIMIT_NOFILE, 64, 64, "files"},
	} {
		if err := unix.Setrlimit(l.what, &unix.Rlimit{Cur: l.soft, Max: l.hard}); err != nil {
			return fmt.Errorf("limit %s: %w", l.resource, err)
		}
	}
	return nil
}
