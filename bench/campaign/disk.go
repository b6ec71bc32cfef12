package campaign

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// A small disk is a file system in memory, mounted for the data of one edge. Only root
// may mount; without it the fault is left out.
const (
	smallDisk = 768 << 20
	// eventReserve is what events must leave free of it (--reserve-bytes).
	eventReserve = 256 << 20
	// Left free by a fault: too little for events, and with fullest too little for
	// state as well, which stops at 128 MiB.
	full, fullest = 200 << 20, 100 << 20
)

// fill fills the disk of an edge until only left bytes are free, and expects events to be
// refused and reads to go on.
func fill(l *ledger, e *edge, left int64) action {
	ballast := filepath.Join(e.data, "ballast")
	return action{kind: "disk full", target: e.id,
		do: func() error { return occupy(ballast, left) },
		during: func(ctx context.Context) string {
			return l.refused(ctx, e)
		},
		undo: func(ctx context.Context) error {
			if err := os.Remove(ballast); err != nil {
				return fmt.Errorf("empty the disk: %w", err)
			}
			return eventually(ctx, func() error { // and events are taken again
				if ended(e.Done()) {
					return nil // another fault's business
				}
				return l.probe(ctx, e)
			})
		}}
}

// probe sends one event.
func (l *ledger) probe(ctx context.Context, e *edge) error {
	number := l.events.Add(1)
	return l.send(ctx, e, "/api/v1/track", event(number), span{number, 1})
}

// refused waits for an edge to answer events with 503 while it answers reads. It
// returns what was otherwise. A fault that comes in between is no fault of the edge's.
func (l *ledger) refused(ctx context.Context, e *edge) string {
	const soon = 5 * time.Second
	until := time.Now().Add(soon)
	for {
		err := l.probe(ctx, e)
		if e.shaken.Load() || ctx.Err() != nil || err != nil && strings.Contains(err.Error(), "503") {
			return ""
		}
		if time.Now().After(until) {
			return fmt.Sprintf("an edge whose disk is full answered an event after %s with %v, not with 503", soon, err)
		}
		sleep(ctx, 20*time.Millisecond)
	}
}
