// Package ingest is the final store of what edges send: events, people, aliases,
// crashes (supplement §3).
//
// Promised: an operation that an edge has accepted is stored exactly once, or counted
// as a duplicate (insert_id) or as erased, or stands in the dead letters with its bytes
// and a reason; and for every edge and lane, at every moment, received = stored +
// duplicate + erased + dead + pending. A failure of Postgres is never taken for a fault
// of a row, and a faulty row never holds up what is behind it.
//
// Not promised: any order between lanes, and uniqueness of insert_ids that are further
// than seven days apart.
package ingest

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"skerry/replication/up"
	"skerry/writeplane/blobs"
	"skerry/writeplane/postgres"
)

// CrashRow is one accepted crash report, as the edge recorded it.
type CrashRow struct {
	ID, ProjectID, Environment string
	ReceivedAt                 time.Time
	Record                     []byte
}

// BadCrash is a row that cannot be stored.
type BadCrash struct {
	Index  int // into the rows given
	Reason string
}

// Crashes stores crash reports inside the transaction. An id that is stored already is
// skipped. err is the database's own failure.
type Crashes func(ctx context.Context, tx pgx.Tx, rows []CrashRow) (bad []BadCrash, err error)

// Config says how events are kept. The zero value is fine.
type Config struct {
	// RetentionDays is how many days of events are kept, by day of receipt. 0 keeps them
	// for ever.
	RetentionDays int
	// MaxRowBytes bounds what a single event's properties may weigh in a row; beyond,
	// the event goes to the dead letters. 0 means 128 MiB.
	MaxRowBytes int64
}

// Validate names the first field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.RetentionDays < 0:
		return fmt.Errorf("ingest: RetentionDays %d is negative", c.RetentionDays)
	case c.MaxRowBytes < 0 || c.MaxRowBytes > 512<<20:
		return fmt.Errorf("ingest: MaxRowBytes %d is not between 0 and 512 MiB", c.MaxRowBytes)
	}
	return nil
}

const (
	defaultMaxRowBytes = 128 << 20
	// insertIDWindow is within how long a second event of an insert_id is a duplicate.
	insertIDWindow = 7 * 24 * time.Hour
	// patience is how often the same fault inside Postgres may stop a batch before its
	// rows are tried one by one.
	patience = 5
)

// Store takes batches from edges. It implements up.Sink.
type Store struct {
	config  Config
	db      *postgres.DB
	crashes Crashes
	blobs   *blobs.Store
	days    days

	mu      sync.Mutex
	strikes map[laneKey]int // consecutive faults inside Postgres
}

type laneKey struct {
	edge string
	lane up.Lane
}

// NewStore returns a Store. Without crashes, the crash lanes stay with their edges.
func NewStore(config Config, db *postgres.DB, blobs *blobs.Store, crashes Crashes) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	if config.MaxRowBytes == 0 {
		config.MaxRowBytes = defaultMaxRowBytes
	}
	return &Store{config: config, db: db, crashes: crashes, blobs: blobs,
		days: days{owner: db.Owner, retention: config.RetentionDays}, strikes: map[laneKey]int{}}, nil
}

// refused tells whether Postgres means the row by its error, and not itself: data
// exceptions, violated constraints, and values beyond its limits. lenient adds what
// Postgres calls its own faults, for a row that causes one again and again.
func refused(err error, lenient bool) (reason string, yes bool) {
	var pgErr *pgconn.PgError
	if !errors.As(err, &pgErr) || pgErr.Severity != "ERROR" {
		return "", false
	}
	switch class := pgErr.Code[:2]; {
	case class == "22" || class == "23" || pgErr.Code == "54000" || pgErr.Code == "54001" || pgErr.Code == "54011":
	case lenient && ownFault(pgErr):
	default:
		return "", false
	}
	return "refused_" + strings.ToLower(pgErr.Code), true
}

// ownFault reports whether Postgres calls an error its own: internal, or out of memory.
// A row can be the cause all the same.
func ownFault(e *pgconn.PgError) bool { return strings.HasPrefix(e.Code, "XX") || e.Code == "53200" }

// lenient tells whether a lane has met so many faults of Postgres' own in a row that it is
// time to look for a row that causes them.
func (s *Store) lenient(key laneKey) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.strikes[key] >= patience
}

// strike notes how a try of a lane ended: it counts Postgres' own faults, and any other end
// forgets them.
func (s *Store) strike(key laneKey, err error) {
	var pgErr *pgconn.PgError
	s.mu.Lock()
	defer s.mu.Unlock()
	if errors.As(err, &pgErr) && pgErr.Severity == "ERROR" && ownFault(pgErr) {
		s.strikes[key]++
		return
	}
	delete(s.strikes, key)
}

// isolate runs store over the rows, each time over those from one up to another, in a
// savepoint. When Postgres refuses a row, it halves until each refused one is alone, and
// those die. The load's other rows are stored.
func (s *Store) isolate(ctx context.Context, tx pgx.Tx, l *load, rows []*row, store func(ctx context.Context, tx pgx.Tx, from, to int) error) error {
	lenient := s.lenient(laneKey{l.edge, l.lane})
	var try func(from, to int) error
	try = func(from, to int) error {
		if from == to {
			return nil
		}
		err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { return store(ctx, tx, from, to) })
		if err == nil {
			return nil
		}
		reason, yes := refused(err, lenient)
		if !yes {
			return err
		}
		if to-from == 1 {
			rows[from].die(reason)
			return nil
		}
		middle := from + (to-from)/2
		if err := try(from, middle); err != nil {
			return err
		}
		return try(middle, to)
	}
	return try(0, len(rows))
}
