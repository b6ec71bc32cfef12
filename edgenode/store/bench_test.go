package store

import (
	"fmt"
	"testing"

	"skerry/replication"
	"skerry/replication/down"
)

// BenchmarkBacklog applies 100,000 changes as a follower does that was away: 256 at a time, each batch synced before it
// is served.
func BenchmarkBacklog(b *testing.B) {
	const changes, together = 100_000, 256
	s, err := Open(quiet(Config{Dir: b.TempDir()}), discard)
	if err != nil {
		b.Fatal(err)
	}
	fill(b, s, together)
	at := replication.Position(together)
	for b.Loop() {
		for n := 0; n < changes; n += together {
			documents := make([]replication.Document, together)
			for i := range documents {
				at++
				documents[i] = replication.Document{Subject: replication.FlagSubject(project, "live", fmt.Sprint("f", n+i)), Position: at, Body: make([]byte, 300)}
			}
			if err := s.Apply(replication.Normal, documents, down.Cursor{Epoch: replication.Epoch{1}, Seq: uint64(at), Position: at}); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
}
