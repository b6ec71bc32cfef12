// Package down carries documents from the write plane to the edges: the [Publisher] fills
// a lane's stream from the database's documents, the [Follower] keeps an edge's disk
// equal to the stream.
//
// It promises: what was committed reaches every connected edge in position order, whole
// transactions at a time; a publisher that was only paused and comes back cannot disturb
// its successor; a stream that was wiped or cut short and a database that went back in
// time are noticed and answered by a new epoch, which every follower takes over beside
// the state it serves meanwhile.
//
// It does not know Postgres or Pebble: [Ledger] is what it needs of the one, [Disk] of
// the other.
//
// # The stream
//
// A lane has one JetStream stream with one message per subject, so it holds the newest
// version of every document and nothing else. A reader who was away finds gaps in the
// positions where documents have changed again. What lies between two gaps is not a state
// the database ever had; see fold for when it is one again.
//
// # The epoch
//
// A lane's epoch ends when its history cannot be continued. Then all its documents are
// numbered anew, far past every position ever seen, the stream is purged and filled, and
// the marker document comes last. A follower that finds another epoch takes everything
// anew; there is no other recovery.
package down

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"skerry/replication"
)

// EpochJump is how far past every position ever seen a new epoch begins, at least.
// Whatever a lost database or stream may have handed out lately stays below, so no
// revision repeats.
const EpochJump = 1_000_000

// TombstoneAge is how long deletions stay in the stream for readers who were away.
const TombstoneAge = 90 * 24 * time.Hour

// Head is a lane as the database has it.
type Head struct {
	Epoch     replication.Epoch
	Position  replication.Position // highest allotted
	Published replication.Position // highest known to be in the stream
	Seq       uint64               // the stream's sequence of Published
	Unpurged  bool                 // a new epoch has begun and the stream has not been purged for it yet
	Held      bool                 // some document stands at or below Published, so the stream cannot be empty
	Timeline  string               // of the database when the epoch began; empty when an operator declared a restore
	Present   string               // the database's timeline now
}

// History is the part of the database by which a publisher judges whether the stream
// still continues it.
type History interface {
	// Head reads a lane.
	Head(ctx context.Context, lane replication.Lane) (Head, error)
	// Committed finds the token of the transaction whose last position in the lane is p.
	Committed(ctx context.Context, lane replication.Lane, p replication.Position) (replication.Token, bool, error)
	// Count counts the documents at or below p that must be in the stream: all but
	// tombstones at or below the floor.
	Count(ctx context.Context, lane replication.Lane, p replication.Position) (uint64, error)
	// Renew begins a new epoch: every document of the lane, tombstones included, gets a
	// new position, in the old order, at least EpochJump past both the lane's highest and
	// past; the marker gets the last one. The head it returns is Unpurged.
	Renew(ctx context.Context, lane replication.Lane, past replication.Position) (Head, error)
}

// Outbox is the part of the database that a publisher empties.
type Outbox interface {
	// Pending reads the documents after a position, in order, in one snapshot of the
	// database, and sets their Through to the lane's highest position in that snapshot.
	// It returns some at a time, none at the end, and none when the lane is not published
	// just so far, in this epoch.
	Pending(ctx context.Context, lane replication.Lane, epoch replication.Epoch, after replication.Position) ([]replication.Document, error)
	// Published stores how far the stream is. It fails with ErrSuperseded when the lane
	// is in another epoch or further.
	Published(ctx context.Context, lane replication.Lane, epoch replication.Epoch, p replication.Position, seq uint64) error
}

// Graves is the part of the database that holds deletions past their age.
type Graves interface {
	// RaiseFloor puts the marker anew with a floor at the newest published tombstone
	// changed before, if there is one above the present floor. Readers below the floor
	// will take everything anew.
	RaiseFloor(ctx context.Context, lane replication.Lane, epoch replication.Epoch, before time.Time) error
	// Buried lists tombstones at or below the floor, some at a time, once the marker that
	// says so is published.
	Buried(ctx context.Context, lane replication.Lane, epoch replication.Epoch) ([]replication.Document, error)
	// Forget removes tombstones, unless they have changed since, and records of
	// transactions long published.
	Forget(ctx context.Context, lane replication.Lane, tombstones []replication.Document) error
}

// Ledger is all that a publisher needs of the database.
type Ledger interface {
	History
	Outbox
	Graves
}

// Leases make sure that one publisher works at a time. (If two ever do, the stream
// refuses one of them; the lease only keeps that rare.)
type Leases interface {
	// Acquire takes or renews a named lease for a term; false: another holds it.
	Acquire(ctx context.Context, name string, term time.Duration) (bool, error)
	// Release gives it back early.
	Release(ctx context.Context, name string) error
}

// LeaseName is the publisher's lease.
const LeaseName = "publisher"

// ErrSuperseded means that another publisher, or another epoch, has taken over.
var ErrSuperseded = errors.New("superseded by another publisher")

// Heartbeat is what the publisher says on Lane.Heartbeat every second.
type Heartbeat struct {
	Epoch    string               `json:"epoch"`
	Position replication.Position `json:"position"` // published
	Seq      uint64               `json:"seq"`      // the stream's last sequence
	At       time.Time            `json:"at"`
}

// StreamConfig is the configuration of a lane's stream.
func StreamConfig(lane replication.Lane, replicas int) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:              lane.Stream(),
		Description:       "skerry state, lane " + lane.String(),
		Subjects:          []string{lane.Subjects()},
		Retention:         jetstream.LimitsPolicy,
		Discard:           jetstream.DiscardOld,
		MaxMsgsPerSubject: 1,
		MaxMsgs:           -1,
		MaxBytes:          -1,
		MaxMsgSize:        replication.MaxBody + 4<<10,
		Storage:           jetstream.FileStorage,
		Replicas:          max(replicas, 1),
		AllowDirect:       true,
		// Nothing here relies on the server's memory of message ids.
		Duplicates: 100 * time.Millisecond,
	}
}
