package commit_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/problem"
	"skerry/replication"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

const project = "0198c000-0000-7000-8000-000000000001"

func flag(key string) replication.Subject { return replication.FlagSubject(project, "live", key) }

type row struct {
	Subject            string
	Position           int64
	TxFirst, TxLast    int64
	Body               []byte
	MatchesCommitToken bool
}

func documents(t *testing.T, db *postgres.DB) []row {
	t.Helper()
	rows, err := db.App.Query(t.Context(), `
		SELECT d.subject, d.position, d.tx_first, d.tx_last, d.body,
		       EXISTS (SELECT FROM commits c WHERE c.lane = d.lane AND c.position = d.tx_last AND c.token = d.commit_token)
		FROM documents d ORDER BY lane, position`)
	if err != nil {
		t.Fatal(err)
	}
	found, err := pgx.CollectRows(rows, pgx.RowToStructByPos[row])
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestTheLastWordOnASubjectStands(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	store := commit.New(db.App, commit.Sinks{})
	err := store.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
		tx.Delete(flag("b"))
		for version, key := range []string{"a", "b", "c", "a"} {
			if err := tx.Put(flag(key), map[string]int{"version": version}); err != nil {
				return err
			}
		}
		tx.Delete(flag("c"))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[replication.Subject]string{flag("a"): `{"version":3}`, flag("b"): `{"version":1}`, flag("c"): ""}
	found := documents(t, db)
	for _, d := range found {
		if body, known := want[replication.Subject(d.Subject)]; known && body == string(d.Body) {
			delete(want, replication.Subject(d.Subject))
		}
	}
	if len(want) > 0 {
		t.Errorf("not as wanted: %v of %+v", want, found)
	}
}

func TestDocumentsOfOneTransactionShareItsBounds(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	store := commit.New(db.App, commit.Sinks{})
	err := store.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
		for _, key := range []string{"b", "a", "c"} {
			if err := tx.Put(flag(key), map[string]int{"version": 1}); err != nil {
				return err
			}
		}
		tx.Delete(flag("c")) // the later word on a subject wins
		return tx.Put(replication.HaltSubject(project, "live", "a"), struct{}{})
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []row{
		{string(flag("a")), 1, 1, 3, []byte(`{"version":1}`), true},
		{string(flag("b")), 2, 1, 3, []byte(`{"version":1}`), true},
		{string(flag("c")), 3, 1, 3, nil, true},
		{string(replication.HaltSubject(project, "live", "a")), 1, 1, 1, []byte(`{}`), true},
	}
	got := documents(t, db)
	if len(got) != len(want) {
		t.Fatalf("%d documents, want %d: %+v", len(got), len(want), got)
	}
	for i := range want {
		if g, w := got[i], want[i]; g.Subject != w.Subject || g.Position != w.Position || g.TxFirst != w.TxFirst ||
			g.TxLast != w.TxLast || !bytes.Equal(g.Body, w.Body) || (g.Body == nil) != (w.Body == nil) || !g.MatchesCommitToken {
			t.Errorf("document %d: %+v, want %+v", i, g, w)
		}
	}
}

func TestConcurrentCommitsLeaveNoGapInPositions(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	store := commit.New(db.App, commit.Sinks{})
	var group sync.WaitGroup
	for worker := range 8 {
		group.Go(func() {
			for i := range 10 {
				err := store.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
					// Opposite orders in different transactions would deadlock if they
					// were written as handed over.
					keys := []string{"x", "y", "z"}
					if worker%2 == 0 {
						keys = []string{"z", "y", "x"}
					}
					for _, key := range keys {
						if err := tx.Put(flag(key), i); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Errorf("commit: %v", err)
				}
			}
		})
	}
	group.Wait()
	var position, commits int64
	err := db.App.QueryRow(t.Context(), `SELECT (SELECT position FROM lanes WHERE lane = 0), (SELECT count(*) FROM commits)`).Scan(&position, &commits)
	if err != nil || position != 240 || commits != 80 {
		t.Fatalf("position %d after %d commits (%v), want 240 after 80", position, commits, err)
	}
	if got := documents(t, db); len(got) != 3 || got[2].Position != 240 || got[0].TxLast != 240 {
		t.Fatalf("documents %+v, want three that end at 240", got)
	}
}

func TestSinksSeeTheTransactionBeforeDocuments(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	var order []string
	store := commit.New(db.App, commit.Sinks{
		Audit: func(tx *postgres.Pipeline, origin commit.Origin, entries []commit.Entry) (func(context.Context) ([]commit.StoredEntry, error), error) {
			for _, e := range entries {
				order = append(order, "lock "+e.OrganizationID+" "+e.Actor.ID+" "+origin.RequestID)
			}
			tx.Later("lock", "SELECT")
			return func(context.Context) ([]commit.StoredEntry, error) {
				order = append(order, "store")
				return []commit.StoredEntry{{OrganizationID: "a", Action: "entry", Body: json.RawMessage(`{}`)}}, nil
			}, nil
		},
		Deliveries: func(ctx context.Context, tx *postgres.Pipeline, events []commit.Event, entries []commit.Entry) (func([]commit.StoredEntry) error, error) {
			order = append(order, fmt.Sprintf("read for %d and %d", len(events), len(entries)))
			var written int
			if err := tx.QueryRow(ctx, "SELECT count(*) FROM documents").Scan(&written); err != nil {
				return nil, err
			}
			if written != 0 {
				t.Error("documents were written before deliveries")
			}
			return func(stored []commit.StoredEntry) error {
				for _, e := range events {
					order = append(order, "deliver "+e.Name)
				}
				for _, e := range stored {
					order = append(order, "deliver "+e.Action)
				}
				return nil
			}, nil
		},
	})
	origin := commit.Origin{Actor: commit.Actor{ID: "u1"}, RequestID: "r1"}
	err := store.InTx(t.Context(), origin, func(tx *commit.Tx) error {
		tx.Emit(commit.Event{Name: "switch.flag.halted"})
		tx.Audit(commit.Entry{OrganizationID: "b"})
		tx.Audit(commit.Entry{OrganizationID: "a", Actor: commit.Actor{ID: "system:x"}})
		return tx.Put(flag("a"), 1)
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "lock a system:x r1,lock b u1 r1,read for 1 and 2,store,deliver switch.flag.halted,deliver entry"
	if got := strings.Join(order, ","); got != want {
		t.Errorf("order %s, want %s", got, want)
	}
}

func TestFaultLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	fault := errors.New("no")
	store := commit.New(db.App, commit.Sinks{})
	err := store.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
		if err := tx.Put(flag("a"), 1); err != nil {
			return err
		}
		return fault
	})
	if !errors.Is(err, fault) || len(documents(t, db)) != 0 {
		t.Fatalf("%v, %d documents; want the fault and none", err, len(documents(t, db)))
	}
}

func TestDocumentOverTheLimitIsTheCallersFault(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	store := commit.New(db.App, commit.Sinks{})
	err := store.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
		return tx.Put(flag("a"), strings.Repeat("x", 512<<10))
	})
	var p *problem.Error
	if !errors.As(err, &p) || p.Kind != problem.Invalid || p.Code != "too_large" {
		t.Fatalf("a body of 512 KiB and two quotes: %v, want 400 too_large", err)
	}
}

// What has many bytes is written before the first lock that others wait for.
func TestDocumentsOfManyBytesAreWrittenBeforeTheLocks(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	waits, body := 0, strings.Repeat("x", 300<<10)
	store := commit.New(db.App, commit.Sinks{
		Audit: func(tx *postgres.Pipeline, _ commit.Origin, _ []commit.Entry) (func(context.Context) ([]commit.StoredEntry, error), error) {
			err := tx.QueryRow(t.Context(), `SELECT count(*) FROM documents WHERE octet_length(body) > 300 << 10`).Scan(&waits)
			if err == nil {
				_, err = db.App.Exec(t.Context(), `SELECT FROM lanes FOR UPDATE NOWAIT`)
			}
			return func(context.Context) ([]commit.StoredEntry, error) { return nil, nil }, err
		},
		Deliveries: func(context.Context, *postgres.Pipeline, []commit.Event, []commit.Entry) (func([]commit.StoredEntry) error, error) {
			return func([]commit.StoredEntry) error { return nil }, nil
		},
	})
	put := func(keys ...string) {
		t.Helper()
		err := store.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
			tx.Audit(commit.Entry{OrganizationID: project, Action: "a"})
			for _, key := range keys {
				if key, deleted := strings.CutPrefix(key, "-"); deleted {
					tx.Delete(flag(key))
				} else if err := tx.Put(flag(key), body+key); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	put("a", "small")
	if waits != 0 {
		t.Errorf("%d documents are written ahead of a small transaction", waits)
	}
	var many []string
	for i := range 60 { // 18 MB: more than a statement has
		many = append(many, fmt.Sprintf("many-%02d", i))
	}
	put(append([]string{"b", "-small", "a"}, many...)...)
	if waits != 62 {
		t.Errorf("%d documents are written when the first lock is taken, want 62", waits)
	}
	keys := map[string]string{}
	for _, key := range append(many, "a", "b", "small") {
		keys[string(flag(key))] = key
	}
	found := documents(t, db)
	for i, d := range found {
		key, want := keys[d.Subject], ""
		if key != "small" {
			want = `"` + body + key + `"`
		}
		if d.Position != int64(3+i) || d.TxFirst != 3 || d.TxLast != 65 || !d.MatchesCommitToken || string(d.Body) != want {
			t.Errorf("document %d: %q at %d of %d to %d, %d bytes, token %v", i, key, d.Position, d.TxFirst, d.TxLast, len(d.Body), d.MatchesCommitToken)
		}
	}
	if len(found) != len(keys) {
		t.Errorf("%d documents, want %d", len(found), len(keys))
	}
}
