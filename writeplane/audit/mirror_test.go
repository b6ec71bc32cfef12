package audit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"skerry/writeplane/commit"
	"skerry/writeplane/postgres/dbtest"
)

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

func (brokenMirror) Write(context.Context, Batch) error { return errAway }

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
	dbtest.Exec(t, tr.db.Owner, `UPDATE audit_mirrored SET seq = 0, at = 'epoch'`)
	copyAll(t, whole)
	if count := dbtest.One[int](t, tr.db.Owner, `SELECT count(*) FROM skerry_audit_mirror.entries`); count != 3 {
		t.Errorf("%d entries in the mirror", count)
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
	dbtest.Exec(t, tr.db.App, `INSERT INTO audit_mirrored VALUES ($1, 0, '2000-01-01')`, tr.organization)
}

func TestChainsThatTheMirrorRefusesKeepNoOtherBack(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	_, mirror, _ := tr.mirrored(t)
	picky := &pickyMirror{Mirror: mirror}
	for range 4 {
		other := tr.another(t, "pro")
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
	dbtest.Exec(t, tr.db.App, `INSERT INTO audit_mirrored SELECT organization_id, 0, 'epoch' FROM audit_chains WHERE seq = 7`)
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
	quiet := tr.another(t, "pro")
	quiet.logMany(t, 3)
	_, mirror, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	dbtest.Exec(t, tr.db.Owner, `DROP SCHEMA skerry_audit_mirror CASCADE`)
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
	other := tr.another(t, "pro")
	other.logMany(t, 1)
	_, mirror, mirrorer := tr.mirrored(t)
	copyAll(t, mirrorer)
	dbtest.Exec(t, tr.db.Owner, `DROP TABLE skerry_audit_mirror.reached`)
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

// inMirror is how many entries of the organization the mirror has.
func (tr *trail) inMirror(t testing.TB) int {
	t.Helper()
	return dbtest.One[int](t, tr.db.Owner, `SELECT count(*) FROM skerry_audit_mirror.entries WHERE organization_id = $1`, tr.organization)
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
	if count := dbtest.One[int](t, tr.db.Owner, `SELECT count(*) FROM skerry_audit_mirror.entries`); count != 2 {
		t.Errorf("%d entries in the mirror", count)
	}
	if got := seqs(t, log, Query{OrganizationID: tr.organization}); !slices.Equal(got, []int64{3, 2, 1}) {
		t.Errorf("what is older than the mirror reads the authoritative store: %v", got)
	}
}
