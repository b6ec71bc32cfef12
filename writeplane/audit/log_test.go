package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// logAt stores entries as Append does, but at other times: one per time given.
func (tr *trail) logAt(t testing.TB, times ...time.Time) {
	t.Helper()
	for _, at := range times {
		if _, err := tr.db.Owner.Exec(t.Context(), `SELECT audit_make_month($1)`, at); err != nil {
			t.Fatal(err)
		}
	}
	err := postgres.InPipeline(t.Context(), tr.db.App, func(tx *postgres.Pipeline) error {
		chain := &run{organizationID: tr.organization}
		if err := chain.begin(t.Context(), tx); err != nil {
			return err
		}
		chain.noteClass(tx)
		tx.Later("move the beginning", `UPDATE audit_chains SET begun_at = least(begun_at, $2) WHERE organization_id = $1`,
			tr.organization, times[0].UTC().Truncate(time.Millisecond))
		for _, at := range times {
			e, err := draft(commit.Origin{}, commit.Entry{OrganizationID: tr.organization, ProjectID: tr.project, Actor: commit.Actor{ID: "user-1"}, Action: "switch.flag.created",
				ResourceType: "flag", ResourceID: fmt.Sprint(chain.end.seq + 1)})
			if err != nil {
				return err
			}
			chain.end.take(&e, at.UTC().Truncate(time.Millisecond))
			insert(tx, &e)
		}
		chain.move(tx)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (tr *trail) mirrored(t testing.TB) (*Log, *PostgresMirror, *Mirrorer) {
	t.Helper()
	mirror := NewPostgresMirror(tr.db.Owner)
	return NewLog(tr.db.App, mirror), mirror, NewMirrorer(tr.db.App, mirror, prometheus.NewRegistry())
}

func copyAll(t testing.TB, m *Mirrorer) {
	t.Helper()
	for {
		more, err := m.Round(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			return
		}
	}
}

func seqs(t testing.TB, l *Log, q Query) []int64 {
	t.Helper()
	out := []int64{}
	if err := l.Read(t.Context(), q, func(e *Entry) error { out = append(out, e.Seq); return nil }); err != nil {
		t.Fatal(err)
	}
	return out
}

func days(n float64) time.Time { return time.Now().Add(-time.Duration(n * 24 * float64(time.Hour))) }

func TestRangeThatStraddlesThirtyDaysIsOneList(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "enterprise")
	tr.logAt(t, days(2000), days(1000), days(700), days(400), days(100), days(40), days(31), days(29), days(3), days(0))
	log, _, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	// What each store answers for can be told apart by taking it away from the other.
	if _, err := tr.db.Owner.Exec(t.Context(), `DELETE FROM skerry_audit_mirror.entries WHERE seq IN (1, 2, 8, 9, 10)`); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.db.Owner.Exec(t.Context(), `DELETE FROM audit_entries WHERE seq IN (3, 4, 5, 6, 7)`); err != nil {
		t.Fatal(err)
	}
	all := []int64{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}
	q := Query{OrganizationID: tr.organization}
	if got := seqs(t, log, q); !slices.Equal(got, all) {
		t.Errorf("newest first: %v", got)
	}
	q.Ascending = true
	slices.Reverse(all)
	if got := seqs(t, log, q); !slices.Equal(got, all) {
		t.Errorf("oldest first: %v", got)
	}
	for _, ascending := range []bool{false, true} {
		for limit := 1; limit <= 4; limit++ {
			q := Query{OrganizationID: tr.organization, Limit: limit, Ascending: ascending}
			var paged []int64
			for {
				var last *Position
				count := 0
				err := log.Read(t.Context(), q, func(e *Entry) error {
					paged, last, count = append(paged, e.Seq), &Position{e.CreatedAt, e.Seq}, count+1
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if count < limit {
					break
				}
				q.After = last
			}
			want := slices.Clone(all)
			if !ascending {
				slices.Reverse(want)
			}
			if !slices.Equal(paged, want) {
				t.Errorf("pages of %d, ascending %v: %v", limit, ascending, paged)
			}
		}
	}
	for _, c := range []struct {
		since, until time.Time
		want         []int64
	}{
		{days(50), days(1), []int64{9, 8, 7, 6}},
		{days(39), time.Time{}, []int64{10, 9, 8, 7}},
		{time.Time{}, days(500), []int64{3, 2, 1}},
		{days(35), days(35), []int64{}},
	} {
		for _, limit := range []int{0, 100} {
			if got := seqs(t, log, Query{OrganizationID: tr.organization, Since: c.since, Until: c.until, Limit: limit}); !slices.Equal(got, c.want) {
				t.Errorf("%v to %v, limit %d: %v, want %v", c.since, c.until, limit, got, c.want)
			}
		}
	}
}

func TestSinceIsInclusiveAndUntilExclusive(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	base := days(1).Truncate(time.Second)
	tr.logAt(t, base, base.Add(time.Millisecond), base.Add(time.Millisecond), base.Add(2*time.Millisecond))
	log := NewLog(tr.db.App, nil)
	got := seqs(t, log, Query{OrganizationID: tr.organization, Since: base.Add(time.Millisecond), Until: base.Add(2 * time.Millisecond)})
	if !slices.Equal(got, []int64{3, 2}) {
		t.Error(got)
	}
}

func counted(t testing.TB, c prometheus.Counter) float64 {
	t.Helper()
	var metric dto.Metric
	if err := c.Write(&metric); err != nil {
		t.Fatal(err)
	}
	return metric.GetCounter().GetValue()
}

// brokenMirror is a mirror whose database is away.
type brokenMirror struct{ Mirror }

var errAway = errors.New("away")

func (brokenMirror) Write(context.Context, Batch) error                    { return errAway }
func (brokenMirror) Read(context.Context, Query, func(*Entry) error) error { return errAway }
func (brokenMirror) Find(context.Context, string, string) (Entry, bool, error) {
	return Entry{}, false, errAway
}

func TestMirrorThatFailsIsCountedRepairedLaterAndNotMissed(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "enterprise")
	tr.logAt(t, days(100), days(50), days(1))
	_, mirror, _ := tr.mirrored(t)
	registry := prometheus.NewRegistry()
	failing := NewMirrorer(tr.db.App, brokenMirror{mirror}, registry)
	if _, err := failing.Round(t.Context()); !errors.Is(err, errAway) {
		t.Fatal(err)
	}
	if got := counted(t, failing.failures); got != 1 {
		t.Errorf("%v failures counted", got)
	}
	want := []int64{3, 2, 1}
	// Nothing is mirrored yet: the authoritative store answers for the old range too.
	log := NewLog(tr.db.App, mirror)
	if got := seqs(t, log, Query{OrganizationID: tr.organization}); !slices.Equal(got, want) {
		t.Errorf("before the repair: %v", got)
	}
	whole := NewMirrorer(tr.db.App, mirror, prometheus.NewRegistry())
	copyAll(t, whole)
	if got := counted(t, whole.copied); got != 3 {
		t.Errorf("%v entries copied", got)
	}
	// And when it cannot be read.
	if got := seqs(t, NewLog(tr.db.App, brokenMirror{mirror}), Query{OrganizationID: tr.organization}); !slices.Equal(got, want) {
		t.Errorf("unreadable: %v", got)
	}
	// Copying again what is there already changes nothing.
	if _, err := tr.db.Owner.Exec(t.Context(), `UPDATE audit_mirrored SET seq = 0, at = 'epoch'`); err != nil {
		t.Fatal(err)
	}
	copyAll(t, whole)
	var count int
	if err := tr.db.Owner.QueryRow(t.Context(), `SELECT count(*) FROM skerry_audit_mirror.entries`).Scan(&count); err != nil || count != 3 {
		t.Errorf("%d entries in the mirror, %v", count, err)
	}
}

// pickyMirror refuses the entries of some organizations and notes the sizes of batches.
type pickyMirror struct {
	Mirror
	refused []string
	batches []int
}

func (m *pickyMirror) Write(ctx context.Context, b Batch) error {
	if slices.Contains(m.refused, b.OrganizationID) {
		return errors.New("no such character here")
	}
	m.batches = append(m.batches, len(b.Entries))
	return m.Mirror.Write(ctx, b)
}

// mirrorLast lets the organization come last in a round: the others' cursors stand further back.
func (tr *trail) mirrorLast(t testing.TB) {
	t.Helper()
	if _, err := tr.db.App.Exec(t.Context(), `INSERT INTO audit_mirrored VALUES ($1, 0, '2000-01-01')`, tr.organization); err != nil {
		t.Fatal(err)
	}
}

func TestChainsThatTheMirrorRefusesKeepNoOtherBack(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	_, mirror, _ := tr.mirrored(t)
	picky := &pickyMirror{Mirror: mirror}
	for range 4 {
		other := &trail{db: tr.db, commits: tr.commits}
		other.organization, other.project = tr.found(t, "pro")
		other.logMany(t, 1)
		picky.refused = append(picky.refused, other.organization)
	}
	tr.logMany(t, 1)
	tr.mirrorLast(t)
	if _, err := NewMirrorer(tr.db.App, picky, prometheus.NewRegistry()).Round(t.Context()); err == nil {
		t.Fatal("nothing was refused")
	}
	if !slices.Equal(picky.batches, []int{1}) {
		t.Errorf("batches %v, want the one entry that the mirror takes", picky.batches)
	}
}

// Filling a mirror anew, when retention has taken all that some organizations ever did.
func TestChainsWithoutEntriesKeepNoOtherBack(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	_, err := tr.db.App.Exec(t.Context(), `
		WITH gone AS (INSERT INTO organizations (id, name, tier) SELECT gen_random_uuid(), 'Gone', 'hobby' FROM generate_series(1, $1) RETURNING id)
		INSERT INTO audit_chains (organization_id, seq, hash, at, begun_at, classes)
		SELECT id, 7, '', now() - interval '200 days', now() - interval '300 days', '{hobby}' FROM gone`, mirrorRound)
	if err != nil {
		t.Fatal(err)
	}
	tr.logMany(t, 1)
	if _, err := tr.db.App.Exec(t.Context(), `INSERT INTO audit_mirrored SELECT organization_id, 0, 'epoch' FROM audit_chains WHERE seq = 7`); err != nil {
		t.Fatal(err)
	}
	tr.mirrorLast(t)
	_, _, mirrorer := tr.mirrored(t)
	for range 2 {
		if _, err := mirrorer.Round(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := counted(t, mirrorer.copied); got != 1 {
		t.Errorf("%v entries copied, want 1", got)
	}
	if more, err := mirrorer.Round(t.Context()); more || err != nil {
		t.Errorf("more %v, %v; want nothing left", more, err)
	}
}

// The cursor's transaction waits while a batch travels, and the server ends one that waits too long.
func TestBatchForTheMirrorIsBoundedInBytes(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	_, mirror, _ := tr.mirrored(t)
	picky := &pickyMirror{Mirror: mirror}
	large := map[string]string{"text": strings.Repeat("x", 3<<20)}
	for range 5 {
		tr.log(t, commit.Entry{OrganizationID: tr.organization, ProjectID: tr.project, Action: "switch.flag.updated", ResourceType: "flag", ResourceID: "f", After: large})
	}
	tr.log(t, commit.Entry{OrganizationID: tr.organization, Action: "x", ResourceType: "x", ResourceID: "x", After: map[string]string{"text": strings.Repeat("x", 9<<20)}})
	tr.logMany(t, 3)
	copyAll(t, NewMirrorer(tr.db.App, picky, prometheus.NewRegistry()))
	if want := []int{2, 2, 1, 1, 3}; !slices.Equal(picky.batches, want) {
		t.Errorf("batches %v, want %v", picky.batches, want)
	}
}

// silentMirror takes whatever is asked and never answers, as a frozen machine does.
type silentMirror struct{ Mirror }

func silence(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

func (silentMirror) Write(ctx context.Context, _ Batch) error { return silence(ctx) }
func (silentMirror) Reached(ctx context.Context) (map[string]Position, error) {
	return nil, silence(ctx)
}
func (silentMirror) Keep(ctx context.Context, _ time.Time) error { return silence(ctx) }
func (silentMirror) Read(ctx context.Context, _ Query, _ func(*Entry) error) error {
	return silence(ctx)
}
func (silentMirror) Find(ctx context.Context, _, _ string) (Entry, bool, error) {
	return Entry{}, false, silence(ctx)
}

func TestMirrorThatFallsSilentHoldsNothingUp(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logAt(t, days(100), days(50), days(1))
	_, _, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	log := NewLog(tr.db.App, silentMirror{})
	log.patience = time.Millisecond
	if got := seqs(t, log, Query{OrganizationID: tr.organization, Limit: 10}); !slices.Equal(got, []int64{3, 2, 1}) {
		t.Errorf("a list: %v", got)
	}
	if _, ok, err := log.Find(t.Context(), tr.organization, idAt(days(60))); ok || err != nil {
		t.Errorf("an entry: %v, %v", ok, err)
	}
	tr.logMany(t, 1)
	writer := NewMirrorer(tr.db.App, silentMirror{}, prometheus.NewRegistry())
	writer.patience = time.Millisecond
	if _, err := writer.Round(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a copy: %v", err)
	}
	keeper := NewKeeper(tr.db.Owner, silentMirror{})
	keeper.patience = time.Millisecond
	keeper.now = func() time.Time { return time.Now().AddDate(2, 0, 0) }
	if err := keeper.Keep(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("retention: %v", err)
	}
	// What the mirror has is not known: nothing is dropped. Months to come are made all the same.
	var left, made int
	err := tr.db.App.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM audit_entries), (SELECT count(*) FROM pg_class WHERE relname = 'audit_entries_pro_' || to_char(now() + interval '2 years', 'YYYYMM'))`).Scan(&left, &made)
	if err != nil || left != 4 || made != 1 {
		t.Errorf("%d entries are left of 4, %d months made of 1, %v", left, made, err)
	}
}

// A mirror that is empty though it was written, be it lost or another one.
func TestMirrorThatIsAnotherOneIsFilledAnew(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logMany(t, 2)
	quiet := &trail{db: tr.db, commits: tr.commits}
	quiet.organization, quiet.project = tr.found(t, "pro")
	quiet.logMany(t, 3)
	_, mirror, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	if _, err := tr.db.Owner.Exec(t.Context(), `DROP SCHEMA skerry_audit_mirror CASCADE`); err != nil {
		t.Fatal(err)
	}
	// A chain that is written to shows it at once, after the first failure.
	tr.logMany(t, 1)
	if _, err := mirrorer.Round(t.Context()); err == nil {
		t.Fatal("written into nothing")
	}
	copyAll(t, mirrorer)
	if got := tr.inMirror(t); got != 3 {
		t.Errorf("%d entries of the chain that goes on, want 3", got)
	}
	// One that is not, when retention looks next; until then none of its entries is dropped.
	if err := NewKeeper(tr.db.Owner, mirror).Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	copyAll(t, mirrorer)
	if got := quiet.inMirror(t); got != 3 {
		t.Errorf("%d entries of the chain that rests, want 3", got)
	}
	if more, err := mirrorer.Round(t.Context()); more || err != nil {
		t.Errorf("more %v, %v; want nothing left", more, err)
	}
}

func TestMirrorRestoredToAnEarlierTimeIsCompleted(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logMany(t, 5)
	_, _, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	_, err := tr.db.Owner.Exec(t.Context(), `DELETE FROM skerry_audit_mirror.entries WHERE seq > 2;
		UPDATE skerry_audit_mirror.reached SET (seq, at) = (SELECT seq, created_at FROM skerry_audit_mirror.entries WHERE seq = 2)`, pgx.QueryExecModeSimpleProtocol)
	if err != nil {
		t.Fatal(err)
	}
	tr.logMany(t, 1)
	copyAll(t, mirrorer)
	if got := tr.inMirror(t); got != 6 {
		t.Errorf("%d entries, want 6", got)
	}
}

// The entries of a mirror that an earlier release made count as reached.
func TestMirrorOfAnEarlierReleaseIsNotCopiedAgain(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logMany(t, 2)
	other := &trail{db: tr.db, commits: tr.commits}
	other.organization, other.project = tr.found(t, "pro")
	other.logMany(t, 1)
	_, mirror, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	if _, err := tr.db.Owner.Exec(t.Context(), `DROP TABLE skerry_audit_mirror.reached`); err != nil {
		t.Fatal(err)
	}
	upgraded := NewPostgresMirror(tr.db.Owner)
	if err := NewKeeper(tr.db.Owner, upgraded).Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	reached, err := mirror.Reached(t.Context())
	if err != nil || len(reached) != 2 || reached[tr.organization].Seq != 2 || reached[other.organization].Seq != 1 {
		t.Errorf("%v, %v", reached, err)
	}
	copyAll(t, mirrorer)
	if got := counted(t, mirrorer.copied); got != 3 {
		t.Errorf("%v entries copied, want 3 and none of them again", got)
	}
}

func (tr *trail) inMirror(t testing.TB) (count int) {
	t.Helper()
	if err := tr.db.Owner.QueryRow(t.Context(), `SELECT count(*) FROM skerry_audit_mirror.entries WHERE organization_id = $1`, tr.organization).Scan(&count); err != nil {
		t.Fatal(err)
	}
	return count
}

func TestRetentionDropsMonthsAndLeavesAnchors(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "hobby")
	tr.logAt(t, days(400), days(399), days(200), days(1))
	// Upgraded for a while: entries of two classes along one chain.
	if _, err := tr.db.App.Exec(t.Context(), `UPDATE organizations SET tier = 'pro'`); err != nil {
		t.Fatal(err)
	}
	tr.logAt(t, days(1), days(0.5))
	other := &trail{db: tr.db, commits: tr.commits}
	other.organization, other.project = tr.found(t, "enterprise")
	other.logAt(t, days(400), days(1))

	log, mirror, mirrorer := tr.mirrored(t)
	keeper := NewKeeper(tr.db.Owner, mirror)
	if err := keeper.Keep(t.Context()); !errors.Is(err, errUnmirrored) {
		t.Fatalf("a month was dropped before the mirror had it: %v", err)
	}
	copyAll(t, mirrorer)
	for range 2 {
		if err := keeper.Keep(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stored := func(organization string) []int64 {
		rows, err := tr.db.App.Query(t.Context(), `SELECT seq FROM audit_entries WHERE organization_id = $1 ORDER BY seq`, organization)
		if err != nil {
			t.Fatal(err)
		}
		got, err := pgx.CollectRows(rows, pgx.RowTo[int64])
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := stored(tr.organization); !slices.Equal(got, []int64{4, 5, 6}) {
		t.Errorf("hobby keeps 90 days: %v", got)
	}
	if got := stored(other.organization); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("enterprise keeps 7 years: %v", got)
	}
	for _, organization := range []string{tr.organization, other.organization} {
		if verdict, err := log.Verify(t.Context(), organization); err != nil || !verdict.OK {
			t.Errorf("%+v, %v", verdict, err)
		}
	}
	// The mirror keeps two years on every tier.
	if got := seqs(t, log, Query{OrganizationID: tr.organization}); !slices.Equal(got, []int64{6, 5, 4, 3, 2, 1}) {
		t.Errorf("with the mirror: %v", got)
	}
	// The chain goes on over the gap, and the gap hides nothing.
	tr.logMany(t, 1)
	if verdict, _ := log.Verify(t.Context(), tr.organization); !verdict.OK || verdict.Entries != 4 {
		t.Errorf("%+v", verdict)
	}
	if _, err := tr.db.Owner.Exec(t.Context(), `DELETE FROM audit_entries WHERE organization_id = $1 AND seq = 4`, tr.organization); err != nil {
		t.Fatal(err)
	}
	if verdict, _ := log.Verify(t.Context(), tr.organization); verdict.OK || *verdict.FirstBrokenSeq != 4 {
		t.Errorf("an entry right behind the anchors is gone: %+v", verdict)
	}
}

// A process whose clock runs ahead would drop for good what is still to be kept.
func TestClockThatRunsAheadAloneDropsNothing(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logAt(t, days(100), days(1))
	_, mirror, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	keeper := NewKeeper(tr.db.Owner, mirror)
	keeper.now = func() time.Time { return time.Now().AddDate(9, 0, 0) }
	if err := keeper.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left int
	if err := tr.db.App.QueryRow(t.Context(), `SELECT count(*) FROM audit_entries`).Scan(&left); err != nil || left != 2 || tr.inMirror(t) != 2 {
		t.Errorf("%d entries of 2 are left and %d in the mirror, %v", left, tr.inMirror(t), err)
	}
}

// Every process of the plane keeps, and they may well do so at once.
func TestKeepersThatMeetDoNotFail(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "hobby")
	tr.logAt(t, days(400), days(350), days(300), days(250), days(1))
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if err := NewKeeper(tr.db.Owner, nil).Keep(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	// Whoever came late left it to the first: what is over goes now.
	if err := NewKeeper(tr.db.Owner, nil).Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	var left, anchored int
	err := tr.db.Owner.QueryRow(t.Context(), `SELECT (SELECT count(*) FROM audit_entries), (SELECT sum(last_seq - first_seq + 1) FROM audit_anchors)`).Scan(&left, &anchored)
	if err != nil || left != 1 || anchored != 4 {
		t.Errorf("%d entries are left and %d anchored, %v; want 1 and 4", left, anchored, err)
	}
}

// Mutations queue behind whoever waits for a reader to change the partitions.
func TestKeeperDoesNotWaitLongForAReader(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	reader, err := tr.db.App.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := reader.Exec(t.Context(), `SELECT FROM audit_entries LIMIT 1`); err != nil {
		t.Fatal(err)
	}
	keeper := NewKeeper(tr.db.Owner, nil)
	keeper.now = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	begun := time.Now()
	var refused *pgconn.PgError
	if err := keeper.MakeMonths(t.Context()); !errors.As(err, &refused) || refused.Code != "55P03" || time.Since(begun) > 6*time.Second {
		t.Errorf("after %s: %v; want it given up well before the 10 s for which mutations wait", time.Since(begun), err)
	}
	if err := reader.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := keeper.MakeMonths(t.Context()); err != nil {
		t.Error(err)
	}
}

// What a transaction sees of rows stands still while it runs; which partitions there are does not.
func TestMonthThatIsDroppedDuringAVerifyIsNoBreak(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "hobby")
	tr.logAt(t, days(400), days(1))
	keeper := NewKeeper(tr.db.Owner, nil)
	held, err := tr.db.Owner.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.WithoutCancel(t.Context())) }()
	if _, err := held.Exec(t.Context(), `LOCK TABLE audit_chains IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	verified := make(chan Verdict, 1)
	go func() {
		verdict, err := NewLog(tr.db.App, nil).Verify(t.Context(), tr.organization)
		if err != nil {
			t.Error(err)
		}
		verified <- verdict
	}()
	await(t, func() bool { // it has begun and waits for the chain's head
		var waiting bool
		err := tr.db.Owner.QueryRow(t.Context(), `
			SELECT EXISTS (SELECT FROM pg_locks JOIN pg_database d ON d.oid = database
			               WHERE relation = 'audit_chains'::regclass AND NOT granted AND datname = current_database())`).Scan(&waiting)
		return err == nil && waiting
	})
	_ = keeper.Keep(t.Context()) // drops the month now, or finds it in use
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if verdict := <-verified; !verdict.OK {
		t.Errorf("%+v, first broken %d", verdict, *verdict.FirstBrokenSeq)
	}
	if err := keeper.Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if verdict, err := NewLog(tr.db.App, nil).Verify(t.Context(), tr.organization); err != nil || !verdict.OK || verdict.Entries != 1 {
		t.Errorf("afterwards: %+v, %v", verdict, err)
	}
}

func TestMirrorDropsWhatIsOlderThanTwoYears(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "enterprise")
	tr.logAt(t, days(1000), days(600), days(1))
	log, mirror, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	if err := NewKeeper(tr.db.Owner, mirror).Keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	var count int
	if err := tr.db.Owner.QueryRow(t.Context(), `SELECT count(*) FROM skerry_audit_mirror.entries`).Scan(&count); err != nil || count != 2 {
		t.Errorf("%d entries in the mirror, %v", count, err)
	}
	if got := seqs(t, log, Query{OrganizationID: tr.organization}); !slices.Equal(got, []int64{3, 2, 1}) {
		t.Errorf("what is older than the mirror reads the authoritative store: %v", got)
	}
}

func TestVerifyNamesTheFirstBrokenEntry(t *testing.T) {
	t.Parallel()
	seven := func(n int64) *int64 { return &n }
	for name, c := range map[string]struct {
		tamper string
		first  *int64
		left   int64
	}{
		"untouched":                {`SELECT 1`, nil, 7},
		"an action altered":        {`UPDATE audit_entries SET action = 'x' WHERE seq = 3`, seven(3), 7},
		"a snapshot altered":       {`UPDATE audit_entries SET after = '{"n":4.0}' WHERE seq = 4`, seven(4), 7},
		"an actor removed":         {`UPDATE audit_entries SET actor_email = NULL WHERE seq = 2`, seven(2), 7},
		"a project changed":        {`UPDATE audit_entries SET project_id = NULL WHERE seq = 5`, seven(5), 7},
		"an id changed":            {`UPDATE audit_entries SET id = gen_random_uuid() WHERE seq = 5`, seven(5), 7},
		"a time moved":             {`UPDATE audit_entries SET created_at = created_at + interval '1 microsecond' WHERE seq = 7`, seven(7), 7},
		"a class changed":          {`UPDATE audit_entries SET retention = 'hobby' WHERE seq = 6`, seven(6), 7},
		"the hash rewritten":       {`UPDATE audit_entries SET hash = '\x00' WHERE seq = 6`, seven(6), 7},
		"the first deleted":        {`DELETE FROM audit_entries WHERE seq = 1`, seven(1), 6},
		"a middle one deleted":     {`DELETE FROM audit_entries WHERE seq = 4`, seven(4), 6},
		"the tail deleted":         {`DELETE FROM audit_entries WHERE seq >= 6`, seven(6), 5},
		"all deleted":              {`DELETE FROM audit_entries`, seven(1), 0},
		"two exchanged":            {`UPDATE audit_entries SET seq = CASE seq WHEN 2 THEN 5 ELSE 2 END WHERE seq IN (2, 5)`, seven(2), 7},
		"times exchanged":          {`UPDATE audit_entries a SET created_at = b.created_at FROM audit_entries b WHERE (a.seq, b.seq) IN ((3, 6), (6, 3))`, seven(3), 7},
		"one copied":               {`INSERT INTO audit_entries SELECT * FROM audit_entries WHERE seq = 3`, seven(3), 8},
		"one added at the end":     {`INSERT INTO audit_entries SELECT organization_id, 8, id, project_id, actor_id, actor_email, action, resource_type, resource_id, before, after, metadata, created_at + interval '1 second', retention, hash FROM audit_entries WHERE seq = 7`, seven(8), 8},
		"tail and head taken back": {`WITH d AS (DELETE FROM audit_entries WHERE seq = 7) UPDATE audit_chains SET seq = 6`, seven(6), 6},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrail(t, "pro")
			start := days(2).Truncate(time.Second)
			var times []time.Time
			for i := range 7 {
				times = append(times, start.Add(time.Duration(i)*time.Minute))
			}
			tr.logAt(t, times...)
			if name == "an actor removed" || name == "a snapshot altered" {
				tr = newTrail(t, "pro")
				tr.logMany(t, 7) // with email and snapshots, at times of their own
			}
			if _, err := tr.db.Owner.Exec(t.Context(), c.tamper); err != nil {
				t.Fatal(err)
			}
			got, err := NewLog(tr.db.App, nil).Verify(t.Context(), tr.organization)
			if err != nil {
				t.Fatal(err)
			}
			if got.Entries != c.left || got.OK != (c.first == nil) || (c.first != nil && (got.FirstBrokenSeq == nil || *got.FirstBrokenSeq != *c.first)) {
				first := "none"
				if got.FirstBrokenSeq != nil {
					first = fmt.Sprint(*got.FirstBrokenSeq)
				}
				t.Errorf("ok %v, %d entries, first broken %s; want %v", got.OK, got.Entries, first, c.first)
			}
		})
	}
}

func TestFiltersNarrowTheList(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.log(t, commit.Entry{ProjectID: tr.project, Action: "switch.flag.created", ResourceType: "flag", ResourceID: "1"},
		commit.Entry{Action: "member.invited", ResourceType: "member", ResourceID: "2"},
		commit.Entry{ProjectID: tr.project, Action: "switch.flag.halted", ResourceType: "flag", ResourceID: "3", Actor: commit.Actor{ID: "system:halt-webhook"}},
		commit.Entry{ProjectID: tr.project, Action: "switchboard.made", ResourceType: "switchboard", ResourceID: "4"})
	log := NewLog(tr.db.App, nil)
	for name, c := range map[string]struct {
		q    Query
		want []int64
	}{
		"project":       {Query{Projects: []string{tr.project}}, []int64{4, 3, 1}},
		"projects":      {Query{Projects: []string{tr.project, tr.organization}}, []int64{4, 3, 1}},
		"actor":         {Query{ActorID: "system:halt-webhook"}, []int64{3}},
		"action":        {Query{Action: ParsePattern("switch.flag.created")}, []int64{1}},
		"prefix":        {Query{Action: ParsePattern("switch.*")}, []int64{3, 1}},
		"no wildcard":   {Query{Action: ParsePattern("switch.%")}, []int64{}},
		"everything":    {Query{Action: ParsePattern("*")}, []int64{4, 3, 2, 1}},
		"type":          {Query{ResourceType: ParsePattern("flag")}, []int64{3, 1}},
		"type prefix":   {Query{ResourceType: ParsePattern("switch*")}, []int64{4}},
		"all of them":   {Query{Projects: []string{tr.project}, ActorID: "user-1", Action: ParsePattern("switch.*"), ResourceType: ParsePattern("flag")}, []int64{1}},
		"injected text": {Query{Action: ParsePattern("' OR 1=1 --")}, []int64{}},
	} {
		c.q.OrganizationID = tr.organization
		if got := seqs(t, log, c.q); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
