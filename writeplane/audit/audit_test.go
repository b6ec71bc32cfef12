package audit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/gowebpki/jcs"
	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// trail is a database with one organization whose mutations are logged.
type trail struct {
	db           *postgres.DB
	commits      *commit.Store
	organization string
	project      string
}

func noDeliveries(ctx context.Context, tx *postgres.Pipeline, _ []commit.Event, _ []commit.Entry) (func([]commit.StoredEntry) error, error) {
	return func([]commit.StoredEntry) error { return nil }, tx.Settle(ctx)
}

func newTrail(t testing.TB, tier string) *trail {
	t.Helper()
	db := dbtest.New(t)
	tr := &trail{db: db, commits: commit.New(db.App, commit.Sinks{Audit: Append, Deliveries: noDeliveries})}
	tr.organization, tr.project = tr.found(t, tier)
	return tr
}

// another is a second organization in the same database.
func (tr *trail) another(t testing.TB, tier string) *trail {
	t.Helper()
	other := &trail{db: tr.db, commits: tr.commits}
	other.organization, other.project = other.found(t, tier)
	return other
}

func (tr *trail) found(t testing.TB, tier string) (organization, project string) {
	t.Helper()
	organization, project = id.New(), id.New()
	_, err := tr.db.App.Exec(t.Context(), `INSERT INTO organizations (id, name, tier) VALUES ($1, 'Example', $2)`, organization, tier)
	if err != nil {
		t.Fatal(err)
	}
	_, err = tr.db.App.Exec(t.Context(), `
		INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas) VALUES ($1, $2, 'Demo', '{}', '{}', '{}', '{}')`, project, organization)
	if err != nil {
		t.Fatal(err)
	}
	return organization, project
}

func (tr *trail) log(t testing.TB, entries ...commit.Entry) {
	t.Helper()
	origin := commit.Origin{Actor: commit.Actor{ID: "user-1", Email: "one@example.com"}, RequestID: "req-1", IP: "192.0.2.7", UserAgent: "curl/8"}
	err := tr.commits.InTx(t.Context(), origin, func(tx *commit.Tx) error {
		for _, entry := range entries {
			if entry.OrganizationID == "" {
				entry.OrganizationID = tr.organization
			}
			tx.Audit(entry)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (tr *trail) logMany(t testing.TB, n int) {
	t.Helper()
	for i := range n {
		tr.log(t, commit.Entry{ProjectID: tr.project, Action: "switch.flag.created", ResourceType: "flag", ResourceID: fmt.Sprint(i + 1), After: map[string]any{"n": i + 1}})
	}
}

// The chain, computed by a reader who knows the documentation alone: the row as
// Postgres gives it out, canonicalized by a library.
func TestHashIsOfThePreviousHashAndEveryStoredColumn(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.log(t, commit.Entry{Action: "project.created", ResourceType: "project", ResourceID: "p",
		After: map[string]any{"name": "Grüße \u2028 <b> \x07 \U0001F600", "limit": 1e21, "small": 0.000001, "ratio": 0.1, "zero": 0, "big": json.Number("9007199254740993"), "huge": json.Number("1e999")}})
	tr.log(t, commit.Entry{ProjectID: tr.project, Action: "switch.flag.halted", ResourceType: "flag", ResourceID: "f", Actor: commit.Actor{ID: "system:halt-webhook"},
		Before: map[string]any{"a": nil}, After: []any{1, "two"}, Metadata: map[string]any{"evidence_url": "https://example.com/?a=1&b=2"}})
	tr.logMany(t, 3)

	rows, err := tr.db.Owner.Query(t.Context(), `
		SELECT (to_jsonb(e) - 'hash' - 'before' - 'after' - 'metadata' - 'created_at')::text, e.before::text, e.after::text, e.metadata::text,
		       to_char(e.created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), e.hash
		FROM audit_entries e ORDER BY seq`)
	if err != nil {
		t.Fatal(err)
	}
	previous := make([]byte, 32)
	var columns, metadata, created string
	var before, after *string
	var hash []byte
	count := 0
	_, err = pgx.ForEachRow(rows, []any{&columns, &before, &after, &metadata, &created, &hash}, func() error {
		var row map[string]any
		if err := json.Unmarshal([]byte(columns), &row); err != nil {
			return err
		}
		row["created_at"] = created
		row["metadata"] = json.RawMessage(metadata)
		row["before"], row["after"] = nil, nil
		if before != nil {
			row["before"] = json.RawMessage(*before)
		}
		if after != nil {
			row["after"] = json.RawMessage(*after)
		}
		raw, err := json.Marshal(row)
		if err != nil {
			return err
		}
		canonical, err := jcs.Transform(raw)
		if err != nil {
			return err
		}
		want := sha256.Sum256(append(previous[:32:32], canonical...))
		if hex.EncodeToString(hash) != hex.EncodeToString(want[:]) {
			t.Errorf("entry %v: hash %x, want %x over\n%s", row["seq"], hash, want, canonical)
		}
		previous = append([]byte(nil), hash...)
		count++
		return nil
	})
	if err != nil || count != 5 {
		t.Fatalf("%d rows, %v", count, err)
	}
}

func TestEntryCarriesWhereItCameFrom(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.log(t, commit.Entry{ProjectID: tr.project, Action: "switch.flag.halted", ResourceType: "flag", ResourceID: "f-1",
		After: map[string]any{"key": "k"}, Metadata: map[string]any{"evidence_url": "https://example.com/graph"}})
	var metadata, actor, email string
	err := tr.db.App.QueryRow(t.Context(), `SELECT metadata::text, actor_id, actor_email FROM audit_entries`).Scan(&metadata, &actor, &email)
	if err != nil {
		t.Fatal(err)
	}
	if metadata != `{"evidence_url":"https://example.com/graph","ip":"192.0.2.7","request_id":"req-1","user_agent":"curl/8"}` || actor != "user-1" || email != "one@example.com" {
		t.Errorf("%s by %s %s", metadata, actor, email)
	}
}

func TestSecretsAreTakenOut(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	secrets := []string{"sk_live_0123456789abcdefghijklmnopqrstuv", "sk_deploy_0123456789abcdefghijklmnopqrstuv",
		"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJ4In0.c2lnbmF0dXJl", "hunter2"}
	tr.log(t, commit.Entry{Action: "switch.flag.halted", ResourceType: "flag", ResourceID: secrets[0],
		Before:   map[string]any{"url": "https://example.com/hook?key=" + secrets[0], "nested": []any{map[string]any{"deep": secrets[2]}}},
		After:    map[string]any{"reason": "leaked " + secrets[1] + " on a page", "Password": "hunter2", "prefix": "sk_live_0123"},
		Metadata: map[string]any{"note": "Bearer " + secrets[3]}})
	all := dbtest.One[string](t, tr.db.Owner, `SELECT to_jsonb(e)::text FROM audit_entries e`)
	for _, secret := range secrets {
		if strings.Contains(all, secret) {
			t.Errorf("%s is logged: %s", secret, all)
		}
	}
	if !strings.Contains(all, "sk_live_0123") || !strings.Contains(all, "https://example.com/hook?key=[redacted]") {
		t.Errorf("more than the secrets is gone: %s", all)
	}
}

func TestTheProgramsRoleCanOnlyAddAndRead(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logMany(t, 1)
	partition := dbtest.One[string](t, tr.db.Owner, `SELECT tableoid::regclass::text FROM audit_entries`)
	for _, statement := range []string{
		`UPDATE audit_entries SET action = 'x'`, `DELETE FROM audit_entries`, `TRUNCATE audit_entries`, `DROP TABLE audit_entries`,
		`UPDATE ` + partition + ` SET action = 'x'`, `DELETE FROM ` + partition, `DROP TABLE ` + partition,
		`INSERT INTO audit_anchors VALUES ('` + tr.organization + `', 1, 1, '\x00', now())`, `DELETE FROM audit_chains`,
	} {
		if _, err := tr.db.App.Exec(t.Context(), statement); err == nil {
			t.Errorf("%s was allowed", statement)
		}
	}
}

func TestConcurrentMutationsMakeOneChainEach(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	other, _ := tr.found(t, "hobby")
	var wg sync.WaitGroup
	const writers, each = 6, 15
	for range writers {
		wg.Go(func() {
			for range each {
				// Both organizations in one transaction, given in the order that would deadlock.
				tr.log(t, commit.Entry{OrganizationID: other, Action: "a.b", ResourceType: "r", ResourceID: "x"},
					commit.Entry{Action: "a.b", ResourceType: "r", ResourceID: "y"})
			}
		})
	}
	wg.Wait()
	var count, distinct, last int64
	err := tr.db.App.QueryRow(t.Context(), `SELECT count(*), count(DISTINCT seq), max(seq) FROM audit_entries WHERE organization_id = $1`, other).Scan(&count, &distinct, &last)
	if err != nil || count != writers*each || distinct != writers*each || last != writers*each {
		t.Fatalf("%d entries, %d numbers up to %d, %v", count, distinct, last, err)
	}
}

func TestRolledBackMutationLeavesNoEntryAndNoGap(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	tr.logMany(t, 1)
	err := tr.commits.InTx(t.Context(), commit.Origin{}, func(tx *commit.Tx) error {
		tx.Audit(commit.Entry{OrganizationID: tr.organization, Action: "a.b", ResourceType: "r", ResourceID: "x"})
		_, err := tx.Exec(t.Context(), `SELECT 1/0`)
		return err
	})
	if err == nil {
		t.Fatal("the mutation went through")
	}
	tr.logMany(t, 1)
	var last, count int64
	if err := tr.db.App.QueryRow(t.Context(), `SELECT max(seq), count(*) FROM audit_entries`).Scan(&last, &count); err != nil || last != 2 || count != 2 {
		t.Fatalf("%d entries up to %d, %v", count, last, err)
	}
}

func FuzzCanonicalJSONIsWhatTheLibraryMakes(f *testing.F) {
	for _, seed := range []string{`{"b":1,"a":[true,null,"x"]}`, `"\u0000\u001f\u2028\ud83d\ude00"`, `[1e-7,1E21,-0,0.1,123456789012]`, `{"\ufb33":1,"\ud83d\ude00":2,"€":3}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var v any
		if json.Unmarshal(text, &v) != nil || v == nil {
			t.Skip()
		}
		got, err := canonicalJSON(v)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(got), redacted) {
			t.Skip()
		}
		again, err := jcs.Transform(append(append([]byte(`[`), got...), ']'))
		if err != nil {
			t.Fatalf("the library refuses %q: %v", got, err)
		}
		if string(again) != "["+string(got)+"]" {
			t.Errorf("%q, the library says %q", got, again)
		}
	})
}
