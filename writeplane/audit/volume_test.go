package audit

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"skerry/writeplane/postgres/dbtest"
)

func TestExportOfManyEntriesHoldsLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 60 MB")
	}
	tr := newTrail(t, "pro")
	tr.logMany(t, 1)
	fill(t, tr, 30_000, strings.Repeat("x", 2000))
	p := newPress(t, tr, nil)
	row := p.request(t, filters{}, nil)
	above := heapDuring(t, func() {
		if err := p.work(t, row); err != nil {
			t.Fatal(err)
		}
	})
	row = p.read(t, row)
	t.Logf("%d rows, %d MiB; heap at most %d MiB above the start, garbage included", *row.RowCount, *row.SizeBytes>>20, above>>20)
	if *row.SizeBytes < 60<<20 || above > 64<<20 {
		t.Errorf("%d bytes exported, heap up to %d MiB more", *row.SizeBytes, above>>20)
	}
}

func TestVerifyOfManyEntriesHoldsLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 60 MB")
	}
	tr := newTrail(t, "pro")
	tr.logMany(t, 1)
	fill(t, tr, 30_000, strings.Repeat("x", 2000))
	above := heapDuring(t, func() {
		verdict, err := NewLog(tr.db.App, nil).Verify(t.Context(), tr.organization)
		if err != nil || verdict.Entries != 30_001 {
			t.Errorf("%+v, %v; want 30001 entries", verdict, err)
		}
	})
	t.Logf("heap at most %d MiB above the start, garbage included", above>>20)
	if above > 32<<20 {
		t.Errorf("heap up to %d MiB more for 60 MB of entries", above>>20)
	}
}

// heapDuring is by how much the heap grew at most while fn ran, garbage included.
func heapDuring(t *testing.T, fn func()) uint64 {
	t.Helper()
	stop, highest := make(chan struct{}), make(chan uint64, 1)
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	go func() {
		var top uint64
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				top = max(top, now.HeapAlloc)
			case <-stop:
				highest <- top
				return
			}
		}
	}()
	func() {
		defer close(stop) // also when fn ends the test
		fn()
	}()
	top := <-highest
	return top - min(top, before.HeapAlloc)
}

// fill adds entries of the last days to the log by SQL, without hashes, for volume.
func fill(t testing.TB, tr *trail, n int, text string) { fillOver(t, tr, n, 5*24*time.Hour, text) }

func fillOver(t testing.TB, tr *trail, n int, span time.Duration, text string) {
	t.Helper()
	for at := time.Now().Add(-span - 32*24*time.Hour); at.Before(time.Now()); at = at.AddDate(0, 0, 27) {
		dbtest.Exec(t, tr.db.Owner, `SELECT audit_make_month($1)`, at)
	}
	_, err := tr.db.Owner.Exec(t.Context(), `UPDATE audit_chains SET begun_at = $2 WHERE organization_id = $1`, tr.organization, time.Now().Add(-span-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	_, err = tr.db.Owner.Exec(t.Context(), `
		INSERT INTO audit_entries (organization_id, seq, id, project_id, actor_id, actor_email, action, resource_type, resource_id, before, after, metadata, created_at, retention, hash)
		SELECT $1, 1 + n, gen_random_uuid(), $2, 'user-' || n % 100, NULL, 'switch.flag.' || (ARRAY['created','updated','halted','unhalted'])[1 + n % 4], 'flag', n::text,
		       NULL, to_json($4::text), '{}', date_trunc('milliseconds', now() - make_interval(secs => ($3 - n) * $5)), 'pro', '\x00'
		FROM generate_series(1, $3) AS n`, tr.organization, tr.project, n, text, span.Seconds()/float64(n))
	if err != nil {
		t.Fatal(err)
	}
}
