package store

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication"
)

// TestWhatWasServedSurvivesAKill lets both lanes change while others read, and again and again looks what would be left
// if the machine stopped now, with everything gone that was not synced, or some of it. No position may be left behind that
// anybody had been served before: read from the disk, or heard of by the views.
func TestWhatWasServedSurvivesAKill(t *testing.T) {
	t.Parallel()
	for name, kept := range map[string]int{"nothing unsynced is left": 0, "half of it is left": 50} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fs := vfs.NewCrashableMem()
			var heard served
			s, err := Open(quiet(Config{Dir: "d", FS: fs, MemTable: 64 << 10}), func(c Change) {
				for i := range c.Documents {
					heard.note(c.Lane, c.Documents[i].Position)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			fill(t, s, 20)
			root, err := fs.OpenDir("/") // the folder of the folder is not the matter here
			if err != nil {
				t.Fatal(err)
			}
			if err := root.Sync(); err != nil {
				t.Fatal(err)
			}
			var working sync.WaitGroup
			stop := make(chan struct{})
			for lane := range replication.Lanes {
				working.Go(func() {
					for i := 20; i < 400; i++ {
						change(t, s, lane, i)
					}
				})
			}
			var reading sync.WaitGroup
			reading.Go(func() { readUntil(t, s, stop, &heard) })
			random := rand.New(rand.NewPCG(1, uint64(kept)))
			for n := range 15 {
				if err := afterKill(fs, &heard, kept, random); err != nil {
					t.Errorf("kill %d: %v", n, err)
					break
				}
			}
			working.Wait()
			close(stop)
			reading.Wait()
			if err := afterKill(fs, &heard, kept, random); err != nil {
				t.Error(err)
			}
			if at := heard.now(); at != [replication.Lanes]replication.Position{400, 400} {
				t.Errorf("at the end %v was served", at)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// readUntil reads how far the lanes are, again and again, until stop is closed.
func readUntil(t *testing.T, s *Store, stop <-chan struct{}, heard *served) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		err := s.Read(func(look *Snapshot) error {
			for lane := range replication.Lanes {
				heard.note(lane, look.Position(lane))
			}
			return nil
		})
		if err != nil {
			t.Error(err)
			return
		}
	}
}

// served is the highest position of each lane that anybody was served.
type served struct {
	mu sync.Mutex
	at [replication.Lanes]replication.Position
}

func (s *served) note(lane replication.Lane, p replication.Position) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at[lane] = max(s.at[lane], p)
}

func (s *served) now() [replication.Lanes]replication.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// afterKill opens what a crash would leave.
func afterKill(fs *vfs.MemFS, heard *served, kept int, random *rand.Rand) error {
	before := heard.now()
	left := fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: kept, RNG: random})
	s, err := Open(quiet(Config{Dir: "d", FS: left}), discard)
	if err != nil {
		return err
	}
	for lane, want := range before {
		c, ok := s.Cursor(replication.Lane(lane))
		if !ok || c.Position < want {
			err = fmt.Errorf("the %s lane had been served at %d and is at %d (%v), damage %+v", replication.Lane(lane), want, c.Position, ok, s.Damage())
		}
	}
	if closing := s.Close(); err == nil {
		err = closing
	}
	return err
}
