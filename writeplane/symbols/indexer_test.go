package symbols

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/symbolicate"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// An indexer that stood still, and whose child took too long for it, comes to its end
// behind the one that took its place.
func TestAnOvertakenIndexerBlamesNoFile(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	organization, a := id.New(), &Artifact{ID: id.New(), ProjectID: id.New(), StoragePath: "symbols/p/a"}
	for _, row := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO organizations (id, name, tier) VALUES ($1, 'Example', 'pro')`, []any{organization}},
		{`INSERT INTO projects (id, organization_id, name, modules, allowlist, rate_limits, quotas)
			VALUES ($1, $2, 'Demo', '{}', '{}', '{}', '{}')`, []any{a.ProjectID, organization}},
		{`INSERT INTO symbol_artifacts (id, project_id, environment, kind, release, match_key, size_bytes, sha256, uploaded_at, storage_path,
			original_name, debug_ids, warnings) VALUES ($1, $2, 'live', 'js_sourcemap', '1.0', 'a.js', 1, '', now(), $3, '', '{}', '{}')`,
			[]any{a.ID, a.ProjectID, a.StoragePath}},
	} {
		dbtest.Exec(t, db.App, row.sql, row.args...)
	}
	x := NewIndexer(&Module{store: commit.New(db.App, commit.Sinks{})}, func(context.Context, pgx.Tx, *Artifact) error { return nil })
	late := &symbolicate.Fault{Reason: symbolicate.Limit, Text: "reading the file took too long"}
	if err := x.settle(t.Context(), a, indexed{path: indexPath(a.StoragePath), sha256: "sum"}); err != nil {
		t.Fatal(err)
	}
	if err := x.settle(t.Context(), a, indexed{fault: late}); err != nil {
		t.Fatal(err)
	}
	stored, err := one(t.Context(), db.App, a.ID, "")
	if err != nil {
		t.Fatal(err)
	}
	if stored.IndexPath == nil || stored.IndexReason != nil || len(stored.Warnings) != 0 {
		t.Errorf("path %v, reason %v, warnings %q", stored.IndexPath, stored.IndexReason, stored.Warnings)
	}
}
