// Package commit is the transaction in which modules meet.
//
// A module that changes something does not write audit entries, webhook deliveries
// or documents itself: it hands them to the Tx it works in. When its function
// returns, they are flushed last and always in the same order: the audit chains,
// deliveries, then documents lane by lane. So no two mutations can deadlock over them,
// the contended rows (a chain's head, a lane) are locked last and for one round trip
// only, and a change, its trace and its effects are stored together or not at all.
//
// Positions are allotted under the lane's row lock, which is held to the commit:
// position order is commit order. A plain sequence would not do: a follower that has
// seen 8 would skip a 7 that commits later.
package commit

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/problem"
	"skerry/replication"
	"skerry/writeplane/postgres"
)

// Channel is what the publisher listens on.
const Channel = "skerry_state"

// Actor is who changes something: a user's id and email, or a pseudo-actor such as
// "system:halt-webhook" without one.
type Actor struct{ ID, Email string }

// Origin is where a mutation comes from; it becomes the audit entry's metadata.
type Origin struct {
	Actor     Actor
	RequestID string
	IP        string
	UserAgent string
}

// Entry is one audit entry to be written (specification, Audit entry). Before and
// After are the bare resource as the API shows it, nil where there is none; secrets
// must not be in them.
type Entry struct {
	OrganizationID string
	ProjectID      string // empty: the organization's own
	Actor          Actor  // zero: the transaction's Origin.Actor
	Action         string
	ResourceType   string
	ResourceID     string
	Before, After  any
	Metadata       map[string]any // joins request_id, ip and user_agent of the Origin
}

// Event is one outbound webhook event to be delivered to whoever subscribed
// (specification, Events). Data is the envelope's `data`.
type Event struct {
	Name           string
	OrganizationID string
	ProjectID      string
	Environment    string // empty where the event has none
	Data           any
}

// StoredEntry is an entry as the audit module stored it, for the webhook stream of
// audit entries.
type StoredEntry struct {
	OrganizationID string
	ProjectID      string
	Action         string
	ResourceID     string
	Body           json.RawMessage // the entry as the API shows it
}

// Sinks are the modules that keep what a transaction hands over. Each writes inside
// the given transaction and nowhere else, and leaves what it writes to travel with
// the rest of the flush (postgres.Pipeline). Both read before they write, and what
// they read travels together.
type Sinks struct {
	// Audit queues the locking of the entries' chains, which travels with the next
	// statement, and returns the function that stores the entries once the locks are
	// held.
	Audit func(tx *postgres.Pipeline, origin Origin, entries []Entry) (store func(context.Context) ([]StoredEntry, error), err error)
	// Deliveries sends what is queued and reads who subscribes to the events and entries.
	// It returns the function that queues the deliveries.
	Deliveries func(ctx context.Context, tx *postgres.Pipeline, events []Event, entries []Entry) (queue func([]StoredEntry) error, err error)
}

// Store opens transactions.
type Store struct {
	pool  *pgxpool.Pool
	sinks Sinks
}

// New returns a Store on the application's pool.
func New(pool *pgxpool.Pool, sinks Sinks) *Store { return &Store{pool: pool, sinks: sinks} }

// Pool is the application's pool, for reads outside any mutation.
func (s *Store) Pool() *pgxpool.Pool { return s.pool }

// Tx is a transaction that collects what has to be flushed with it.
type Tx struct {
	*postgres.Pipeline
	Origin Origin

	entries   []Entry
	events    []Event
	documents [replication.Lanes][]document
	places    map[replication.Subject]int // of documents in their lane
}

type document struct {
	subject replication.Subject
	body    []byte
}

// InTx runs fn and flushes what it handed over; everything is committed together or
// nothing is.
func (s *Store) InTx(ctx context.Context, origin Origin, fn func(tx *Tx) error) error {
	return postgres.InPipeline(ctx, s.pool, func(pipeline *postgres.Pipeline) error {
		tx := &Tx{Pipeline: pipeline, Origin: origin}
		if err := fn(tx); err != nil {
			return err
		}
		return s.flush(ctx, tx)
	})
}

// Audit hands over one audit entry.
func (tx *Tx) Audit(e Entry) {
	if e.Actor == (Actor{}) {
		e.Actor = tx.Origin.Actor
	}
	tx.entries = append(tx.entries, e)
}

// Emit hands over one outbound event.
func (tx *Tx) Emit(e Event) { tx.events = append(tx.events, e) }

// Put hands over a document: body is marshalled as JSON. The lane is the subject's
// own. A second Put or Delete of the subject in one transaction replaces the first.
// The error is a 400 too_large when the body is larger than a document may be.
func (tx *Tx) Put(subject replication.Subject, body any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("marshal document %s: %w", subject, err)
	}
	if len(raw) > replication.MaxBody {
		return problem.Newf(problem.Invalid, "too_large",
			"what edges have to know of it takes %d bytes; at most %d are possible", len(raw), replication.MaxBody)
	}
	tx.put(subject, raw)
	return nil
}

// Delete hands over a tombstone.
func (tx *Tx) Delete(subject replication.Subject) { tx.put(subject, nil) }

func (tx *Tx) put(subject replication.Subject, body []byte) {
	lane := &tx.documents[subject.Lane()]
	if i, given := tx.places[subject]; given {
		(*lane)[i].body = body
		return
	}
	if tx.places == nil {
		tx.places = map[replication.Subject]int{}
	}
	tx.places[subject] = len(*lane)
	*lane = append(*lane, document{subject, body})
}

// flush hands everything over in the one order. What was left for later is sent when the
// chains are locked, and then nothing until COMMIT, with which the rest travels. Only
// documents of many bytes are written before that: see writeAhead.
func (s *Store) flush(ctx context.Context, tx *Tx) error {
	ahead := [replication.Lanes]bool{}
	for lane := range tx.documents {
		var err error
		if ahead[lane], err = writeAhead(ctx, tx, replication.Lane(lane), tx.documents[lane]); err != nil {
			return fmt.Errorf("write %s documents ahead: %w", replication.Lane(lane), err)
		}
	}
	if len(tx.events)+len(tx.entries) > 0 {
		if err := s.flushTrace(ctx, tx); err != nil {
			return err
		}
	}
	for lane := range tx.documents {
		if err := flushLane(tx, replication.Lane(lane), tx.documents[lane], ahead[lane]); err != nil {
			return fmt.Errorf("write %s documents: %w", replication.Lane(lane), err)
		}
	}
	return nil
}

// flushTrace stores entries and queues deliveries. Subscriptions are read when the chains
// are held: their own changes are entries too, so what an entry's place in the chain says
// of a subscription before it is what is delivered.
func (s *Store) flushTrace(ctx context.Context, tx *Tx) error {
	store := func(context.Context) ([]StoredEntry, error) { return nil, nil }
	if len(tx.entries) > 0 {
		// Chain heads are locked in the organizations' order.
		slices.SortStableFunc(tx.entries, func(a, b Entry) int { return cmp.Compare(a.OrganizationID, b.OrganizationID) })
		var err error
		if store, err = s.sinks.Audit(tx.Pipeline, tx.Origin, tx.entries); err != nil {
			return fmt.Errorf("append audit entries: %w", err)
		}
	}
	queue, err := s.sinks.Deliveries(ctx, tx.Pipeline, tx.events, tx.entries)
	if err != nil {
		return fmt.Errorf("read subscriptions: %w", err)
	}
	stored, err := store(ctx)
	if err != nil {
		return fmt.Errorf("append audit entries: %w", err)
	}
	if err := queue(stored); err != nil {
		return fmt.Errorf("enqueue deliveries: %w", err)
	}
	return nil
}

// flushLaneSQL writes a lane's documents in one statement: the row lock on the lane,
// the positions, the documents in order of subject, the commit's token, the wake-up.
const flushLaneSQL = `
WITH head AS (
	UPDATE lanes SET position = position + cardinality($2::text[]) WHERE lane = $1 RETURNING position
), written AS (
	INSERT INTO documents (subject, lane, position, tx_first, tx_last, commit_token, body, changed_at)
	SELECT d.subject, $1, head.position - cardinality($2::text[]) + d.ordinal,
	       head.position - cardinality($2::text[]) + 1, head.position, $4, d.body, $5
	FROM head, unnest($2::text[], $3::bytea[]) WITH ORDINALITY AS d (subject, body, ordinal)
	ORDER BY d.ordinal
	ON CONFLICT (subject) DO UPDATE SET
		position = excluded.position, tx_first = excluded.tx_first, tx_last = excluded.tx_last,
		commit_token = excluded.commit_token, body = excluded.body, changed_at = excluded.changed_at
), recorded AS (
	INSERT INTO commits (lane, position, token, at) SELECT $1, head.position, $4, $5 FROM head
)
SELECT pg_notify('` + Channel + `', '')`

func flushLane(tx *Tx, lane replication.Lane, documents []document, ahead bool) error {
	if len(documents) == 0 {
		return nil
	}
	sortDocuments(documents)
	subjects := make([]string, len(documents))
	bodies := make([][]byte, len(documents))
	for i, d := range documents {
		// A subject that the stream would not take could never be published, and one of
		// no known kind would be seen by nobody.
		if _, err := d.subject.Parse(); err != nil {
			return err
		}
		subjects[i], bodies[i] = string(d.subject), d.body
	}
	token := make([]byte, replication.TokenLen)
	_, _ = rand.Read(token) // never fails, it ends the process instead
	if ahead {
		tx.Later(fmt.Sprintf("number %s documents", lane), numberLaneSQL, int16(lane), subjects, token, time.Now())
		return nil
	}
	tx.Later(fmt.Sprintf("write %s documents", lane), flushLaneSQL, int16(lane), subjects, bodies, token, time.Now())
	return nil
}

func sortDocuments(documents []document) {
	slices.SortFunc(documents, func(a, b document) int { return cmp.Compare(a.subject, b.subject) })
}

const (
	// manyBytes of documents are not written under the locks: a cohort of a million members
	// has 200 MB, and whoever changes anything would wait for those.
	manyBytes = 1 << 20
	// aheadBytes bounds what a statement of writeAhead has.
	aheadBytes = 8 << 20
)

// writeAhead writes the lane's documents without their places, when they have many bytes;
// done tells whether it did. Nobody sees them before they are numbered: it is the same
// transaction. Their rows are locked before the lane, unlike those of flushLane; whoever
// else writes these subjects waits already, for the row of what they are documents of.
func writeAhead(ctx context.Context, tx *Tx, lane replication.Lane, documents []document) (done bool, err error) {
	total := 0
	for _, d := range documents {
		total += len(d.body)
	}
	if total <= manyBytes {
		return false, nil
	}
	sortDocuments(documents)
	for len(documents) > 0 {
		var subjects []string
		var bodies [][]byte
		for size := 0; len(documents) > 0 && (size == 0 || size+len(documents[0].body) <= aheadBytes); documents = documents[1:] {
			subjects, bodies = append(subjects, string(documents[0].subject)), append(bodies, documents[0].body)
			size += len(documents[0].body)
		}
		if _, err := tx.Exec(ctx, writeAheadSQL, int16(lane), subjects, bodies); err != nil {
			return false, err
		}
	}
	return true, nil
}

const writeAheadSQL = `
INSERT INTO documents (subject, lane, position, tx_first, tx_last, commit_token, body, changed_at)
SELECT d.subject, $1, 0, 0, 0, '', d.body, now() FROM unnest($2::text[], $3::bytea[]) AS d (subject, body)
ON CONFLICT (subject) DO UPDATE SET body = excluded.body`

// numberLaneSQL is flushLaneSQL for documents whose bodies are written. They stay where
// they are: an update of the other columns does not copy them.
const numberLaneSQL = `
WITH head AS (
	UPDATE lanes SET position = position + cardinality($2::text[]) WHERE lane = $1 RETURNING position
), numbered AS (
	UPDATE documents d SET
		position = head.position - cardinality($2::text[]) + n.ordinal,
		tx_first = head.position - cardinality($2::text[]) + 1, tx_last = head.position, commit_token = $3, changed_at = $4
	FROM head, unnest($2::text[]) WITH ORDINALITY AS n (subject, ordinal)
	WHERE d.subject = n.subject
), recorded AS (
	INSERT INTO commits (lane, position, token, at) SELECT $1, head.position, $3, $4 FROM head
)
SELECT pg_notify('` + Channel + `', '')`
