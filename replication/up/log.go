package up

import (
	"context"
	"encoding/json"
	"time"
)

// Log is the edge's log of accepted operations, as the shipper needs it. It is
// implemented on the edge's disk. All methods are safe for use by several goroutines.
type Log interface {
	// Pending lists, oldest first, the incarnations that hold operations of the lane
	// which are not yet stored. A shipper drains them in this order: it starts an
	// incarnation only when the one before is stored to its end.
	Pending(lane Lane) []Incarnation
	// Read returns whole blocks of (incarnation, lane), the first being the one that
	// holds number from, until budget bytes are reached; at least one block, however
	// large. ok is false when there is nothing at from yet. Data is the caller's to keep.
	// A number that was freed already gives the first block that is still there. An
	// operation over MaxInlineBytes is uploaded in its turn, so Read can take as long as
	// that does, and fail with it. It begins a batch.
	Read(ctx context.Context, in Incarnation, lane Lane, from uint64, budget int) (b Batch, ok bool, err error)
	// Stored frees everything of (incarnation, lane) below and including the watermark,
	// sooner or later; until then it can be read. A watermark that is older than a former
	// one, or of an unknown incarnation, changes nothing.
	Stored(in Incarnation, lane Lane, watermark uint64) error
	// Appended returns a channel that is closed at the next append to the lane.
	Appended(lane Lane) <-chan struct{}
	// Totals tells the log's state, one entry for each of Lanes.
	Totals() []Totals
}

// Totals is the state of one lane of an edge's log. Received − Pending is what the centre
// confirmed as stored, duplicate, erased or dead.
type Totals struct {
	Lane         Lane
	Log          string // names the log: what an edge accepts on another disk is counted from 0
	Received     uint64 // operations ever accepted by this edge, over all incarnations
	Pending      uint64 // of these, not yet confirmed by the centre
	PendingBytes int64
	OldestAge    time.Duration // age of the oldest pending operation; 0 when there is none
}

// MarshalJSON names the members as GET /api/v1/ingest/lag does.
func (t Totals) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Lane         string  `json:"lane"`
		Received     uint64  `json:"received"`
		Pending      uint64  `json:"pending"`
		PendingBytes int64   `json:"pending_bytes"`
		Oldest       float64 `json:"oldest_age_seconds"`
	}{t.Lane.String(), t.Received, t.Pending, t.PendingBytes, t.OldestAge.Seconds()})
}
