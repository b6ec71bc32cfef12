package buffer

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication/tally"
	"skerry/replication/up"
)

var crashSeeds = flag.Int("crash-seeds", 60, "how many seeds the crash test tries")

// TestEveryAnsweredOperationSurvivesACrashOnce cuts the power at a random moment, keeps a random part of what was not
// synced, and looks at what a new process finds. Then it does so again with that process.
func TestEveryAnsweredOperationSurvivesACrashOnce(t *testing.T) {
	t.Parallel()
	for seed := range *crashSeeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			h := &history{answered: map[string]bool{}, asked: map[string]bool{}, t: t}
			fs := vfs.NewCrashableMem()
			r := rand.New(rand.NewPCG(uint64(seed), 7))
			for life := range 3 {
				fs = h.liveAndCrash(fs, r, life)
			}
			b := open(t, fs)
			h.check(b)
			must(t, b.Close())
		})
	}
}

type history struct {
	t        *testing.T
	mu       sync.Mutex
	asked    map[string]bool // may be there
	answered map[string]bool // must be there
}

// liveAndCrash runs appenders on fs until a random one of their answers, then returns what the crash left.
func (h *history) liveAndCrash(fs *vfs.MemFS, r *rand.Rand, life int) *vfs.MemFS {
	b := open(h.t, fs)
	h.check(b)
	cut := 1 + r.IntN(60)
	var crashed *vfs.MemFS
	percent, seed := r.IntN(101), r.Uint64()
	var wait sync.WaitGroup
	for w := range 4 {
		wait.Add(1)
		go func() {
			defer wait.Done()
			for i := range 40 {
				ids := []string{fmt.Sprintf("%d/%d/%d/a", life, w, i), fmt.Sprintf("%d/%d/%d/b", life, w, i)}
				h.mu.Lock()
				over := crashed != nil
				if !over {
					h.asked[ids[0]], h.asked[ids[1]] = true, true
				}
				h.mu.Unlock()
				if over {
					return
				}
				if err := store(b, (w+i)%3, ids); err != nil {
					h.t.Error(err)
					return
				}
				h.mu.Lock()
				if crashed == nil {
					h.answered[ids[0]], h.answered[ids[1]] = true, true
					if cut--; cut == 0 {
						crashed = fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: percent, RNG: rand.New(rand.NewPCG(seed, 8))})
					}
				}
				h.mu.Unlock()
			}
		}()
	}
	wait.Wait()
	must(h.t, b.Close())
	return crashed
}

// store writes two events as one block, as two blocks, or through a spool.
func store(b *Buffer, way int, ids []string) error {
	switch way {
	case 0:
		return b.Append(block(up.LaneEvent, ids...))
	case 1:
		return b.Append(block(up.LaneEvent, ids[0]), block(up.LaneEvent, ids[1]))
	}
	s := b.NewSpool()
	for _, id := range ids {
		if err := s.Block(blockOf(up.LaneEvent, projectA, 3000, id)); err != nil {
			return err
		}
	}
	return s.Commit()
}

func (h *history) check(b *Buffer) {
	h.t.Helper()
	found := map[string]int{}
	for _, id := range everything(h.t, b, up.LaneEvent) {
		found[id]++
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.answered {
		if found[id] != 1 {
			h.t.Errorf("%s was answered and is there %d times", id, found[id])
		}
	}
	for id, n := range found {
		if !h.asked[id] || n != 1 {
			h.t.Errorf("%s is there %d times", id, n)
		}
		other := id[:len(id)-1] + string('a'+'b'-id[len(id)-1])
		if found[other] != 1 {
			h.t.Errorf("%s is there without %s of the same request", id, other)
		}
	}
	if got, want := b.Used(projectA, tally.Events, noon), uint64(len(found)); got != want {
		h.t.Errorf("%d events counted, %d there", got, want)
	}
}
