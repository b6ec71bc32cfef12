package ingest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"skerry/pkg/event"
	"skerry/replication/up"
	"skerry/writeplane/identity"
	"skerry/writeplane/postgres/dbtest"
)

func TestABatchThatComesTwiceIsStoredOnce(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	one := batch(life1, up.LaneEvent, 1, in(projectA, noon, track("a", "u1"), track("b", "u1")))
	two := batch(life1, up.LaneEvent, 2, in(projectA, noon, track("b", "u1"), track("c", "u1"))) // overlaps
	for range 2 {
		outcome, err := b.Store.Store(t.Context(), "e1", []up.Batch{one, two})
		if err != nil || outcome != (up.Outcome{Taken: 2, Stored: 3}) {
			t.Fatalf("outcome %+v, %v", outcome, err)
		}
	}
	b.expect(t, []string{"a|u1|-|-", "b|u1|-|-", "c|u1|-|-"}, eventsSQL)
	if got := b.books(t, "e1", up.LaneEvent); got != "3 0 0 0" {
		t.Errorf("books %s", got)
	}
}

func TestAGapStopsTheLaneAndIncarnationsCountApart(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	outcome, err := b.Store.Store(t.Context(), "e1", []up.Batch{
		batch(life1, up.LaneEvent, 1, in(projectA, noon, track("a", "u1"))),
		batch(life1, up.LaneEvent, 3, in(projectA, noon, track("c", "u1"))),
	})
	if err != nil || outcome != (up.Outcome{Taken: 1, Stored: 1}) {
		t.Fatalf("outcome %+v, %v", outcome, err)
	}
	outcome, err = b.Store.Store(t.Context(), "e1", []up.Batch{batch(life2, up.LaneEvent, 1, in(projectA, noon, track("d", "u1")))})
	if err != nil || outcome != (up.Outcome{Taken: 1, Stored: 1}) {
		t.Fatalf("outcome %+v, %v", outcome, err)
	}
	b.expect(t, []string{"a|u1|-|-", "d|u1|-|-"}, eventsSQL)
}

func TestARetiredEdgesGapIsPassedOverAndFilledWhenItReturns(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	first := batch(life1, up.LaneEvent, 1, in(projectA, noon, track("a", "u1")))
	missing := batch(life1, up.LaneEvent, 2, in(projectA, noon, track("b", "u1"), track("c", "u1")))
	last := batch(life1, up.LaneEvent, 4, in(projectA, noon, track("d", "u1")))
	dbtest.Exec(t, b.db.App, `INSERT INTO ingest_retired (edge) VALUES ('e1')`)
	outcome, err := b.Store.Store(t.Context(), "e1", []up.Batch{first, last})
	if err != nil || outcome != (up.Outcome{Taken: 2, Stored: 1}) {
		t.Fatalf("passing over: outcome %+v, %v", outcome, err)
	}
	b.expect(t, []string{"a|u1|-|-", "d|u1|-|-"}, eventsSQL)
	// The edge is back with its disk: it is asked for number 2 and sends all from there.
	outcome, err = b.Store.Store(t.Context(), "e1", []up.Batch{missing, last})
	if err != nil || outcome != (up.Outcome{Taken: 2, Stored: 4}) {
		t.Fatalf("filling: outcome %+v, %v", outcome, err)
	}
	b.expect(t, []string{"a|u1|-|-", "b|u1|-|-", "c|u1|-|-", "d|u1|-|-"}, eventsSQL)
	b.expect(t, nil, `SELECT 'gap' FROM ingest_gaps`)
}

func TestABatchThatCannotBeDecodedCountsAsMissing(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	good := batch(life1, up.LaneEvent, 1, in(projectA, noon, track("a", "u1")))
	bad := batch(life1, up.LaneEvent, 2, in(projectA, noon, track("b", "u1")))
	bad.Data[len(bad.Data)-9] ^= 0xff
	bad.Data = bad.Data[:len(bad.Data)-3]
	outcome, err := b.Store.Store(t.Context(), "e1", []up.Batch{good, bad})
	if err != nil || outcome != (up.Outcome{Taken: 1, Stored: 1}) {
		t.Fatalf("outcome %+v, %v", outcome, err)
	}
	b.expect(t, []string{"a|u1|-|-"}, eventsSQL)
}

func TestPropertiesComeBackAsSent(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	deep := strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200)
	sent := []string{
		`{"a": 1e999, "b": 9223372036854775808, "c":0.10}`,
		`{"a":1,"a":2}`,
		`{"k":"\u00e9 <é>"}`,
		deep,
		`{"x":"` + strings.Repeat("y", 3<<20) + `"}`,
	}
	var ops []up.Operation
	for _, p := range sent {
		ops = append(ops, track("e", "u", properties(p)))
	}
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, ops...))
	b.expect(t, sent, `SELECT properties::text FROM events ORDER BY number`)
}

func TestRowsThatPostgresRefusesGoToTheDeadLettersAlone(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	var ops []up.Operation
	for i := range 100 {
		switch {
		case i%40 == 7:
			ops = append(ops, track("bad json", "u", properties(`{"a":`)))
		case i == 50:
			ops = append(ops, track("bad text", "u\xff", properties(`{}`)))
		default:
			ops = append(ops, track("good", "u"))
		}
	}
	b.send(t, "e1", up.LaneAlias, in(projectA, noon, alias("device-1", "other"))) // so ids are looked up
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, ops...))
	b.expect(t, []string{"96"}, `SELECT count(*)::text FROM events`)
	b.expect(t, []string{"48", "51", "8", "88"}, `SELECT number::text FROM dead_letters ORDER BY number::text`)
	b.expect(t, []string{`{"event_name":"bad json","distinct_id":"u","timestamp":"` + noon.Format(time.RFC3339Nano) + `","properties":{"a":}`},
		`SELECT convert_from(payload, 'UTF8') FROM dead_letters WHERE number = 8`)
	b.expect(t, []string{"refused_22021", "refused_22p02"}, `SELECT DISTINCT reason FROM dead_letters ORDER BY reason`)
	if got := b.books(t, "e1", up.LaneEvent); got != "96 0 0 4" {
		t.Errorf("books %s", got)
	}
}

func TestUnstorableOperationsKeepTheirBytes(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	raw := `{"event_name":"e","distinct_id":"u1","properties":{"a":"\u0000"}}`
	b.send(t, "e1", up.LaneEvent, in(projectA, noon,
		up.Operation{Unstorable: up.ReasonNUL, DistinctID: []byte("u1"), Raw: []byte(raw)}, track("e", "u1")))
	b.send(t, "e1", up.LanePeople, in(projectA, noon,
		up.Operation{Unstorable: up.ReasonSurrogate, DistinctID: []byte("u1"), Raw: []byte(`{"distinct_id":"u1","properties":{"a":"\ud800"}}`)}))
	b.expect(t, []string{"1 nul_character " + raw}, `SELECT concat_ws(' ', number, reason, convert_from(payload, 'UTF8')) FROM dead_letters WHERE lane = 3`)
	b.expect(t, []string{"lone_surrogate"}, `SELECT reason FROM dead_letters WHERE lane = 2`)
	b.expect(t, []string{"2"}, `SELECT number::text FROM events`)
}

func TestPayloadsInTheBlobStoreBecomeRowsOrDeadLetters(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{MaxRowBytes: 4 << 20})
	put := func(key string, payload []byte) *up.Reference {
		w, err := b.blobs.Create(t.Context(), key, "application/json")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(payload); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return &up.Reference{Key: key, Size: int64(len(payload)), SHA256: sha256.Sum256(payload)}
	}
	props := `{"x":"` + strings.Repeat("y", 3<<20) + `"}`
	payload := `{"properties":` + props + `}`
	fits := put("ingest/e1/1", []byte(payload))
	fits.Properties = up.Span{Offset: 14, Length: int64(len(props))}
	large := put("ingest/e1/2", []byte(`{"properties":{}}`))
	large.Properties = up.Span{Offset: 0, Length: 5 << 20}
	large.Size = 6 << 20
	gone := &up.Reference{Key: "ingest/e1/3", Size: 10, Properties: up.Span{Offset: 1, Length: 2}}
	event := func(ref *up.Reference) up.Operation {
		return up.Operation{EventName: []byte("e"), DistinctID: []byte("u"), Timestamp: noon.UnixMicro(), Ref: ref}
	}
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, event(fits), event(large), event(gone), track("plain", "u")))
	b.send(t, "e1", up.LanePeople, in(projectA, noon, up.Operation{DistinctID: []byte("u"), Ref: large}))
	b.expect(t, []string{props, `{"n": 1}`}, `SELECT properties::text FROM events ORDER BY number`)
	b.expect(t, []string{"2 2 profile_too_large", "3 2 too_large", "3 3 payload_missing"},
		`SELECT concat_ws(' ', lane, CASE WHEN lane = 2 THEN 2 ELSE number END, reason) FROM dead_letters ORDER BY lane, number`)
	if _, err := b.blobs.Open(t.Context(), "ingest/e1/1"); err == nil {
		t.Error("a payload that lies in a row was kept")
	}
	if r, err := b.blobs.Open(t.Context(), "ingest/e1/2"); err != nil {
		t.Errorf("a dead letter's payload: %v", err)
	} else {
		_ = r.Close()
	}
}

func TestASecondInsertIDWithinSevenDaysIsADuplicate(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	day := 24 * time.Hour
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("first", "u", insertID("i")), track("same request", "u", insertID("i"))))
	b.send(t, "e2", up.LaneEvent, in(projectA, noon.Add(-6*day), track("other edge, earlier", "u", insertID("i"))))
	b.send(t, "e2", up.LaneEvent, in(projectB, noon, track("other project", "u", insertID("i"))))
	b.send(t, "e2", up.LaneEvent, request{projectA, up.Test, noon, []up.Operation{track("other environment", "u", insertID("i"))}})
	b.send(t, "e2", up.LaneEvent, in(projectA, noon.Add(-8*day), track("eight days before", "u", insertID("i"))))
	b.expect(t, []string{"eight days before", "first", "other environment", "other project"}, `SELECT event_name FROM events ORDER BY event_name`)
	if got := b.books(t, "e1", up.LaneEvent) + ", " + b.books(t, "e2", up.LaneEvent); got != "1 1 0 0, 3 1 0 0" {
		t.Errorf("books %s", got)
	}
}

func TestInsertIDsAreForgottenAfterTheWindow(t *testing.T) {
	t.Parallel()
	const daysOldSQL = `SELECT extract(day FROM now() - received_at)::text FROM insert_ids ORDER BY received_at`
	b := newBundle(t, Config{})
	old, young := time.Now().Add(-9*24*time.Hour), time.Now().Add(-6*24*time.Hour)
	b.send(t, "e1", up.LaneEvent, in(projectA, old, track("e", "u", insertID("old"))), in(projectA, young, track("e", "u", insertID("young"))))
	if err := b.Report(t.Context(), "e9", []up.Totals{{Lane: up.LaneEvent, Received: 1, Pending: 1, OldestAge: 3 * 24 * time.Hour}}); err != nil {
		t.Fatal(err)
	}
	if err := b.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.expect(t, []string{"9", "6"}, daysOldSQL) // an edge still holds events of that time
	if err := b.Report(t.Context(), "e9", []up.Totals{{Lane: up.LaneEvent, Received: 1}}); err != nil {
		t.Fatal(err)
	}
	if err := b.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.expect(t, []string{"6"}, daysOldSQL)
}

func TestEventsOfAnAliasAreStoredUnderThePerson(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	b.send(t, "e1", up.LaneAlias, in(projectA, noon, alias("anon1", "u1")))
	b.send(t, "e1", up.LaneEvent, in(projectA, noon,
		track("a", "anon1"), track("b", "anon1", anon("anon1")), track("c", "anon1", anon("other")), track("d", "u1", anon("anon1"))))
	b.send(t, "e1", up.LaneEvent, in(projectB, noon, track("e", "anon1")))
	b.expect(t, []string{"a|u1|anon1|-", "b|u1|anon1|-", "c|u1|anon1|other", "d|u1|anon1|-", "e|anon1|-|-"}, eventsSQL)
}

func TestAMissingDayIsMadeAndAFarOneGoesToTheDefaultPartition(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{RetentionDays: 30})
	b.send(t, "e1", up.LaneEvent,
		in(projectA, noon.AddDate(0, 0, -20), track("twenty days ago", "u")),
		in(projectA, time.Unix(0, 0), track("a clock that stands", "u")),
		in(projectA, noon.AddDate(3, 0, 0), track("years ahead", "u")))
	b.expect(t, []string{partitionOf(noon.AddDate(0, 0, -20)) + " twenty days ago", "events_default a clock that stands", "events_default years ahead"},
		`SELECT tableoid::regclass::text || ' ' || event_name FROM events ORDER BY 1`)
}

// A lane ends when its lease is lost; the process lives on.
func TestADayThatWasGivenUpIsTriedAgain(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	day := map[time.Time]bool{dayOf(noon).AddDate(0, 0, -20): true}
	ended, end := context.WithCancel(t.Context())
	end()
	b.days.ensure(ended, day)
	b.days.ensure(t.Context(), day)
	b.expect(t, []string{"true"}, `SELECT (to_regclass($1) IS NOT NULL)::text`, partitionOf(dayOf(noon).AddDate(0, 0, -20)))
}

func TestRowsInTheDefaultPartitionMoveWhenTheirDayIsMade(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	b.days.mu.Lock()
	b.days.known = map[time.Time]time.Time{dayOf(noon): noon.AddDate(1, 0, 0)} // as after a failure
	b.days.mu.Unlock()
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("a", "u")))
	b.expect(t, []string{"events_default"}, `SELECT tableoid::regclass::text FROM events`)
	if err := b.days.create(t.Context(), dayOf(noon)); err != nil {
		t.Fatal(err)
	}
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("b", "u")))
	b.expect(t, []string{partitionOf(noon) + " a", partitionOf(noon) + " b"}, `SELECT tableoid::regclass::text || ' ' || event_name FROM events ORDER BY 1`)
}

func TestDaysPastRetentionAreDropped(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	b.send(t, "e1", up.LaneEvent, in(projectA, noon.AddDate(0, 0, -40), track("old", "u")), in(projectA, noon, track("new", "u")),
		in(projectA, time.Unix(0, 0), track("ancient", "u")))
	b.days.retention = 30
	// A clock that runs ahead alone drops nothing that is young.
	if err := b.maintainAt(t.Context(), time.Now().AddDate(1, 0, 0)); err != nil {
		t.Fatal(err)
	}
	b.expect(t, []string{"new"}, `SELECT event_name FROM events`)
	if err := b.Maintain(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.expect(t, []string{"new"}, `SELECT event_name FROM events`)
	b.expect(t, []string{"0"}, `SELECT count(*)::text FROM pg_class WHERE relname = $1`, partitionOf(noon.AddDate(0, 0, -40)))
	b.expect(t, []string{"1"}, `SELECT count(*)::text FROM pg_class WHERE relname = $1`, partitionOf(noon.AddDate(0, 0, 2)))
}

func TestCrashesGoToTheirModuleAndBadOnesToTheDeadLetters(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	b.send(t, "e1", up.LaneCrash, in(projectA, noon,
		up.Operation{ID: [16]byte{1}, Raw: []byte(`{"a":1}`)}, up.Operation{ID: [16]byte{2}, Raw: []byte(`refuse me`)}))
	b.expect(t, []string{`crash 01000000-0000-0000-0000-000000000000`}, `SELECT name FROM installation WHERE name LIKE 'crash %'`)
	b.expect(t, []string{`malformed refuse me \x02000000000000000000000000000000`},
		`SELECT concat_ws(' ', reason, convert_from(payload, 'UTF8'), extra::text) FROM dead_letters`)
}

func TestPostgresItselfIsNeverTakenForARow(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"57P01", "53100", "53300", "40001", "40P01", "55P03", "08006", "42501", "42P01", "XX000", "25006"} {
		if reason, yes := refused(&pgconn.PgError{Severity: "ERROR", Code: code}, false); yes {
			t.Errorf("%s counts as a refused row: %s", code, reason)
		}
	}
	if _, yes := refused(&pgconn.PgError{Severity: "FATAL", Code: "22000"}, true); yes {
		t.Error("a connection that ends counts as a refused row")
	}
	if _, yes := refused(errors.New("connection reset"), true); yes {
		t.Error("a broken connection counts as a refused row")
	}
	if reason, yes := refused(&pgconn.PgError{Severity: "ERROR", Code: "22P02"}, false); !yes || reason != "refused_22p02" {
		t.Errorf("22P02: %q %v", reason, yes)
	}
}

func TestAFailingStoreTakesNothing(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	one := batch(life1, up.LaneCrash, 1, in(projectA, noon, up.Operation{ID: [16]byte{1}, Raw: []byte(`{}`)}))
	b.crashes = func(context.Context, pgx.Tx, []CrashRow) ([]BadCrash, error) {
		return nil, &pgconn.PgError{Severity: "ERROR", Code: "53100"}
	}
	if _, err := b.Store.Store(t.Context(), "e1", []up.Batch{one}); err == nil {
		t.Fatal("no error from a full disk")
	}
	b.crashes = keepCrashes
	if outcome, err := b.Store.Store(t.Context(), "e1", []up.Batch{one}); err != nil || outcome.Stored != 1 {
		t.Fatalf("outcome %+v, %v", outcome, err)
	}
	if got := b.books(t, "e1", up.LaneCrash); got != "1 0 0 0" {
		t.Errorf("books %s", got)
	}
}

func TestARowThatMakesPostgresFailAgainAndAgainIsIsolated(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	one := batch(life1, up.LaneCrash, 1, in(projectA, noon,
		up.Operation{ID: [16]byte{1}, Raw: []byte(`{}`)}, up.Operation{ID: [16]byte{2}, Raw: []byte(`poison`)}))
	b.crashes = func(ctx context.Context, tx pgx.Tx, rows []CrashRow) ([]BadCrash, error) {
		for _, r := range rows {
			if bytes.Equal(r.Record, []byte("poison")) {
				return nil, &pgconn.PgError{Severity: "ERROR", Code: "XX000"}
			}
		}
		return keepCrashes(ctx, tx, rows)
	}
	tries := 0
	for ; tries < 20; tries++ {
		if _, err := b.Store.Store(t.Context(), "e1", []up.Batch{one}); err == nil {
			break
		}
	}
	if tries != patience {
		t.Errorf("isolated after %d tries, want %d", tries, patience)
	}
	b.expect(t, []string{"refused_xx000 poison"}, `SELECT reason || ' ' || convert_from(payload, 'UTF8') FROM dead_letters`)
	if got := b.books(t, "e1", up.LaneCrash); got != "1 0 0 1" {
		t.Errorf("books %s", got)
	}
}

func TestManyLanesAtOnceDoNotDeadlock(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	errs := make(chan error)
	const edges = 4
	for e := range edges {
		go func() {
			var err error
			for n := uint64(0); n < 10 && err == nil; n++ {
				var ops []up.Operation
				for i := range 20 {
					// The same ids in opposite orders.
					id := i
					if e%2 == 1 {
						id = 19 - i
					}
					ops = append(ops, track("e", "u", insertID(fmt.Sprintf("i%d-%d", n, id))))
				}
				_, err = b.Store.Store(t.Context(), fmt.Sprint("e", e), []up.Batch{batch(life1, up.LaneEvent, n*20+1, in(projectA, noon, ops...))})
			}
			errs <- err
		}()
	}
	for range edges {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	b.expect(t, []string{"200"}, `SELECT count(*)::text FROM events`)
	b.expect(t, []string{"800 200 600"}, `SELECT concat_ws(' ', sum(stored + duplicate + erased + dead), sum(stored), sum(duplicate)) FROM ingest_cursors`)
}

func TestALostPartIsNotedAndPassed(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	if err := b.Lost(t.Context(), "e1", up.LaneEvent, life1, 50); err != nil {
		t.Fatal(err)
	}
	outcome, err := b.Store.Store(t.Context(), "e1", []up.Batch{batch(life1, up.LaneEvent, 51, in(projectA, noon, track("e", "u")))})
	if err != nil || outcome != (up.Outcome{Taken: 1, Stored: 51}) {
		t.Fatalf("outcome %+v, %v", outcome, err)
	}
	b.expect(t, []string{"1 50 f"}, `SELECT concat_ws(' ', first_number, last_number, CASE WHEN may_return THEN 't' ELSE 'f' END) FROM ingest_gaps`)
}

// A database restored from before, an edge retired meanwhile, and back with a disk from which it has freed some of that.
func TestWhatAReturnedEdgeHasFreedOfItsGapIsGivenUp(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	one := func(first uint64, names ...string) up.Batch {
		var ops []up.Operation
		for _, name := range names {
			ops = append(ops, track(name, "u"))
		}
		return batch(life1, up.LaneEvent, first, in(projectA, noon, ops...))
	}
	dbtest.Exec(t, b.db.App, `INSERT INTO ingest_retired (edge) VALUES ('e1')`)
	outcome, err := b.Store.Store(t.Context(), "e1", []up.Batch{one(1, "a"), one(5, "e"), one(8, "h")})
	if err != nil || outcome != (up.Outcome{Taken: 3, Stored: 1}) {
		t.Fatalf("passing over: outcome %+v, %v", outcome, err)
	}
	if err := b.Lost(t.Context(), "e1", up.LaneEvent, life1, 3); err != nil { // of 2 to 4 and 6 to 7
		t.Fatal(err)
	}
	outcome, err = b.Store.Store(t.Context(), "e1", []up.Batch{one(4, "d", "e", "f")})
	if err != nil || outcome != (up.Outcome{Taken: 1, Stored: 6}) {
		t.Fatalf("filling: outcome %+v, %v", outcome, err)
	}
	if err := b.Lost(t.Context(), "e1", up.LaneEvent, life1, 10); err != nil {
		t.Fatal(err)
	}
	if stored, err := b.Stored(t.Context(), "e1", up.LaneEvent, life1); err != nil || stored != 10 {
		t.Errorf("stored %d, %v", stored, err)
	}
	b.expect(t, []string{"2 3 f", "7 7 f", "9 10 f"},
		`SELECT concat_ws(' ', first_number, last_number, CASE WHEN may_return THEN 't' ELSE 'f' END) FROM ingest_gaps ORDER BY first_number`)
	b.expect(t, []string{"a", "d", "e", "f", "h"}, `SELECT event_name FROM events ORDER BY event_name`)
}

// A new disk has often taken more than the lost one ever had before it is heard of: the centre was away.
func TestTheBooksOfANewDiskBeginAtNothing(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	report := func(log string, received, pending uint64) {
		t.Helper()
		if err := b.Report(t.Context(), "e1", []up.Totals{{Lane: up.LaneEvent, Log: log, Received: received, Pending: pending}}); err != nil {
			t.Fatal(err)
		}
	}
	books := func(received, pending int64) {
		t.Helper()
		edges, err := b.Lag(t.Context())
		if err != nil || len(edges) != 1 || len(edges[0].Lanes) != 1 {
			t.Fatal(edges, err)
		}
		if l := edges[0].Lanes[0]; l.Received != received || l.Pending != pending {
			t.Errorf("%d received, %d pending; want %d and %d", l.Received, l.Pending, received, pending)
		}
	}
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("a", "u1"), track("b", "u1"), track("c", "u1")))
	report("e1.a", 3, 0)
	books(3, 0)
	report("e1.a", 4, 1)
	books(4, 1)
	report("e1.b", 5, 5) // and the fourth is lost with its disk
	books(8, 5)
	report("e1.b", 7, 7)
	books(10, 7)
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("d", "u1")))
	books(10, 6)
	report("e1.a", 2, 2) // an older copy of the first disk
	books(6, 2)
}

func TestAChangeOfAProfileThatCannotBeReadHoldsNothingUp(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	change := func(raw string) up.Operation { return up.Operation{DistinctID: []byte("u1"), Properties: []byte(raw)} }
	rng := rand.New(rand.NewPCG(1, 1))
	long := make([]byte, 9000) // of letters that do not compress: no index entry can hold them
	for i := range long {
		long[i] = byte('A' + rng.IntN(58))
		if long[i] == '\\' {
			long[i] = 'a'
		}
	}
	b.send(t, "e1", up.LanePeople, in(projectA, noon, change(`[]`), change(`{"good":1}`), change(`{"`+string(long)+`":1}`)))
	b.expect(t, []string{"good 1"}, `SELECT name || ' ' || value::text FROM profile_values`)
	b.expect(t, []string{"malformed_properties", "property_name_too_long"}, `SELECT reason FROM dead_letters ORDER BY reason`)
	if got := b.books(t, "e1", up.LanePeople); got != "1 0 0 2" {
		t.Errorf("books %s", got)
	}
}

// An id may have any number of blanks around its 200 characters; no index holds them all.
func TestIDsLongerThanAnIndexHoldGoToTheDeadLetters(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	blanks := []rune("\t\n\v\f\r \u0085\u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000")
	long := []byte("u1")
	for rng := rand.New(rand.NewPCG(1, 1)); len(long) < 10_000; {
		long = utf8.AppendRune(long, blanks[rng.IntN(len(blanks))])
	}
	if event.Garbage(long) {
		t.Fatal("an edge would not take the id")
	}
	unstorable := track("unstorable", string(long))
	unstorable.Unstorable, unstorable.Raw = up.ReasonNUL, []byte(`{"event_name":"\u0000"}`)
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("before", "u1"), track("long", string(long)), unstorable, track("behind", "u1")))
	b.send(t, "e1", up.LanePeople, in(projectA, noon, up.Operation{DistinctID: long, Properties: []byte(`{"a":1}`)}))
	b.send(t, "e1", up.LaneAlias, in(projectA, noon, alias("device-1", string(long)), alias(string(long), "u1"), alias("device-2", "u1")))
	b.expect(t, []string{"before", "behind"}, `SELECT event_name FROM events ORDER BY number`)
	b.expect(t, []string{"device-2"}, `SELECT alias_id FROM aliases`)
	b.expect(t, []string{"1 1 member_too_long", "1 2 member_too_long", "2 1 member_too_long", "3 2 member_too_long", "3 3 nul_character"},
		`SELECT concat_ws(' ', lane, number, reason) FROM dead_letters ORDER BY lane, number`)
}

// A row that PostgreSQL refuses is looked for by halving its batch: whoever may send many holds everybody up. So what can
// be stored at all fits into every index, also two of it into one.
func TestTheLongestIDsAndNamesFitIntoEveryIndex(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	rng := rand.New(rand.NewPCG(1, 1))
	longest := func() string {
		text := make([]byte, identity.MaxIDBytes)
		for i := range text {
			text[i] = byte('a' + rng.IntN(26)) // hard to compress
		}
		return string(text)
	}
	device, user, other, name := longest(), longest(), longest(), longest()
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("e", device)))
	for _, id := range []string{device, user} {
		b.send(t, "e1", up.LanePeople, in(projectA, noon, up.Operation{DistinctID: []byte(id), Properties: fmt.Appendf(nil, `{"%s":1}`, name)}))
	}
	b.send(t, "e1", up.LaneAlias, in(projectA, noon, alias(device, user), alias(device, other), alias(user, other)))
	b.send(t, "e1", up.LaneEvent, in(projectA, noon, track("f", device)))
	b.expect(t, []string{"2 2 1 1 0"}, `SELECT concat_ws(' ', (SELECT count(*) FROM events), (SELECT count(*) FROM aliases),
		(SELECT count(*) FROM identity_conflicts), (SELECT count(*) FROM profile_values), (SELECT count(*) FROM dead_letters))`)
}

// An edge that comes back after years meets the erasures of all that time.
func TestWhatWasErasedIsDroppedAmongManyErasures(t *testing.T) {
	t.Parallel()
	b := newBundle(t, Config{})
	const many = 12_000
	dbtest.Exec(t, b.db.App, `
		INSERT INTO erasures (project_id, environment, id_hash, erased_at, done_at)
		SELECT $1, 1, sha256(convert_to('gone-' || i, 'UTF8')), $2, now() FROM generate_series(1, $3::int) i`, projectA, noon, many)
	b.send(t, "e1", up.LaneEvent,
		in(projectA, noon.Add(-time.Second), track("a", "gone-1"), track("b", "here"), track("c", "gone-12000")),
		in(projectA, noon.Add(time.Second), track("d", "gone-2")),
		in(projectB, noon.Add(-time.Second), track("e", "gone-3")))
	b.send(t, "e1", up.LaneAlias, in(projectA, noon.Add(-time.Second), alias("gone-4", "here"), alias("device-1", "gone-5"), alias("device-2", "here")))
	b.expect(t, []string{"b", "d", "e"}, `SELECT event_name FROM events ORDER BY number`)
	b.expect(t, []string{"device-2"}, `SELECT alias_id FROM aliases`)
	scope := identity.Scope{Project: projectA, Environment: up.Live}
	asked := func() []identity.ID {
		return []identity.ID{{Scope: scope, Text: "gone-7"}, {Scope: scope, Text: "here"}}
	}
	found, err := identity.ErasedSince(t.Context(), b.db.App, []identity.Scope{scope}, noon.Add(-time.Hour), asked)
	if err != nil || len(found[scope]) != 1 || !found.Has(scope, []byte("gone-7"), noon) {
		t.Errorf("%d erasures for two ids: %v", len(found[scope]), err)
	}
}
