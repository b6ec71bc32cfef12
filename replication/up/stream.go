package up

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// # Streams
//
// Each lane has a work queue of its own, not one for all: a stream that is full refuses
// new messages of every subject, so hours of events would otherwise shut the aliases out.
//
//	INGEST         ingest.event.<edge>
//	INGEST_ALIAS   ingest.alias.<edge>
//	INGEST_PEOPLE  ingest.people.<edge>
//	INGEST_CRASH   ingest.crash.<edge>
//
// Beside them run two kinds of unstored messages, both JSON:
//
//	ingest.hello.<edge>    from the edge, every second and at connect: see hello
//	ingest.stored.<edge>   to the edge: see announcement
//
// Whatever of these is lost is said again: the next hello is answered with the watermark
// as it then is.

// Stream is the name of the lane's stream.
func (l Lane) Stream() string {
	if l == LaneEvent {
		return "INGEST"
	}
	return "INGEST_" + strings.ToUpper(l.String())
}

// StreamLimits bounds the streams between edges and centre.
type StreamLimits struct {
	// MaxBytes bounds the stream of events; the other lanes get an eighth of it each. 0
	// means 2 GiB.
	MaxBytes int64
	// Replicas is how many servers of a NATS cluster keep each message. 0 means 1.
	Replicas int
}

const defaultStreamBytes = 2 << 30

// streamConfig is the configuration of a lane's stream: a work queue that refuses what is
// new when it is full, where JetStream's default would drop what is oldest.
func streamConfig(lane Lane, limits StreamLimits) jetstream.StreamConfig {
	limit := limits.MaxBytes
	if limit == 0 {
		limit = defaultStreamBytes
	}
	if lane != LaneEvent {
		limit = max(limit/8, 4*MaxMessageBytes)
	}
	return jetstream.StreamConfig{
		Name:        lane.Stream(),
		Description: "skerry ingestion, lane " + lane.String(),
		Subjects:    []string{Subject(lane, "*")},
		Retention:   jetstream.WorkQueuePolicy,
		Discard:     jetstream.DiscardNew,
		MaxBytes:    limit,
		MaxMsgSize:  MaxMessageBytes + 1<<10,
		Storage:     jetstream.FileStorage,
		Replicas:    max(limits.Replicas, 1),
		// Nothing relies on the duplicate window, and its memory is not free.
		Duplicates: 100 * time.Millisecond,
	}
}

const (
	helloSubjects  = "ingest.hello.*"
	maxEdgeIDBytes = 64
	maxLogBytes    = 2 * maxEdgeIDBytes
)

func helloSubject(edge string) string  { return "ingest.hello." + edge }
func storedSubject(edge string) string { return "ingest.stored." + edge }

// ValidEdge reports whether id can name an edge: 1 to 64 of [A-Za-z0-9_-], one token of
// a subject.
func ValidEdge(id string) bool {
	if id == "" || len(id) > maxEdgeIDBytes {
		return false
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

// hello is what an edge says of itself: that it is there, what its log holds, and how far
// each lane is sent.
type hello struct {
	Lanes []laneHello `json:"lanes"`
}

// laneHello is one lane in a hello.
type laneHello struct {
	Lane         string `json:"lane"`
	Log          string `json:"log,omitempty"`
	Received     uint64 `json:"received"`
	Pending      uint64 `json:"pending"`
	PendingBytes int64  `json:"pending_bytes"`
	OldestMS     int64  `json:"oldest_ms"`
	// Incarnation (hex) and Ordinal are of what the shipper drains now; empty when it has
	// nothing to send.
	Incarnation string `json:"incarnation,omitempty"`
	Ordinal     uint64 `json:"ordinal,omitempty"`
	// Shipped is the highest number that the stream has acknowledged, 0 while anything
	// sent is not acknowledged.
	Shipped uint64 `json:"shipped,omitempty"`
	// Freed is the highest number of the incarnation that the edge is known to have
	// freed: it cannot be sent again.
	Freed uint64 `json:"freed,omitempty"`
	// Turn counts the shipper's rewinds: an answer that repeats it is known to be younger
	// than the last of them.
	Turn uint64 `json:"turn,omitempty"`
}

// announcement tells an edge how far one lane of one incarnation is stored, and what
// is missing.
type announcement struct {
	Lane        string `json:"lane"`
	Incarnation string `json:"incarnation"`
	Ordinal     uint64 `json:"ordinal"`
	Stored      uint64 `json:"stored"`
	// Want is the number that has to come next, when something past it has come or
	// nothing is left in the stream.
	Want uint64 `json:"want,omitempty"`
	// Seen is the stream's sequence of the message that came past Want. A shipper that
	// has sent Want again behind that sequence need not do so once more. It is 0 in an
	// answer to a hello.
	Seen uint64 `json:"seen,omitempty"`
	// Turn repeats the hello that is answered.
	Turn uint64 `json:"turn,omitempty"`
}

func decodeHello(data []byte) (hello, error) {
	var h hello
	if err := json.Unmarshal(data, &h); err != nil {
		return hello{}, corrupt("hello: %v", err)
	}
	if len(h.Lanes) > len(Lanes) {
		return hello{}, corrupt("hello of %d lanes", len(h.Lanes))
	}
	for _, l := range h.Lanes {
		if _, ok := ParseLane(l.Lane); !ok {
			return hello{}, corrupt("hello of lane %q", l.Lane)
		}
		if _, err := parseIncarnation(l.Incarnation, l.Ordinal); l.Incarnation != "" && err != nil {
			return hello{}, err
		}
		if l.Received > math.MaxInt64 || l.Pending > l.Received || l.PendingBytes < 0 || l.OldestMS < 0 ||
			l.OldestMS > math.MaxInt64/int64(time.Millisecond) || len(l.Log) > maxLogBytes || l.Shipped > math.MaxInt64 || l.Freed > math.MaxInt64 {
			return hello{}, corrupt("hello of lane %s with impossible totals", l.Lane)
		}
	}
	return h, nil
}

func decodeAnnouncement(data []byte) (a announcement, lane Lane, in Incarnation, err error) {
	if err := json.Unmarshal(data, &a); err != nil {
		return a, 0, in, corrupt("announcement: %v", err)
	}
	lane, ok := ParseLane(a.Lane)
	if !ok {
		return a, 0, in, corrupt("announcement of lane %q", a.Lane)
	}
	if in, err = parseIncarnation(a.Incarnation, a.Ordinal); err != nil {
		return a, 0, in, err
	}
	if a.Want != 0 && a.Want <= a.Stored {
		return a, 0, in, corrupt("announcement wants %d and has %d", a.Want, a.Stored)
	}
	return a, lane, in, nil
}

func parseIncarnation(id string, ordinal uint64) (in Incarnation, err error) {
	raw, err := hex.DecodeString(id)
	if err != nil || len(raw) != len(in.ID) || ordinal > math.MaxInt64 {
		return in, corrupt("incarnation %q", id)
	}
	copy(in.ID[:], raw)
	in.Ordinal = ordinal
	return in, nil
}

func mustMarshal(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("BUG: a message does not marshal: " + err.Error())
	}
	return b
}

// missingStream tells whether err means that the stream is not there (yet, or any more).
func missingStream(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrNoStreamResponse)
}
