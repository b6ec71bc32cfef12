package postgres_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"skerry/pkg/pgserver/pgtest"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

// older is the number of migrations of an earlier release, whose database is brought up.
const older = 9

// filled is what such a database may hold of everything that later migrations touch.
const filled = `
INSERT INTO organizations (id, name, tier) VALUES ('0198c000-0000-7000-8000-000000000001', 'Example', 'pro');
INSERT INTO audit_entries (organization_id, seq, id, project_id, actor_id, action, resource_type, resource_id, metadata, created_at, retention, hash)
SELECT '0198c000-0000-7000-8000-000000000001', n, gen_random_uuid(), CASE WHEN n % 2 = 0 THEN '0198c000-0000-7000-8000-000000000002'::uuid END,
       'user-1', 'switch.flag.created', 'flag', n, '{}', now(), CASE WHEN n < 50 THEN 'hobby' ELSE 'pro' END, '' FROM generate_series(1, 100) AS n;
INSERT INTO aliases (project_id, environment, alias_id, canonical_id, aliased_at, received_at)
SELECT gen_random_uuid(), n % 2, 'anon', 'user-' || n, now(), now() FROM generate_series(1, 50) AS n;
INSERT INTO insert_ids (project_id, environment, insert_id, received_at)
VALUES ('0198c000-0000-7000-8000-000000000002', 0, 'größe', now()), ('0198c000-0000-7000-8000-000000000002', 1, 'größe', now());
INSERT INTO webhook_subscriptions (id, organization_id, url, events, description, enabled, secret, created_at, updated_at)
VALUES ('0198c000-0000-7000-8000-000000000003', '0198c000-0000-7000-8000-000000000001', 'https://example.com', '{*}', '', true, '', now(), now());
INSERT INTO webhook_messages VALUES ('0198c000-0000-7000-8000-000000000004', '0198c000-0000-7000-8000-000000000001', 'x', '', now());
INSERT INTO webhook_deliveries (message_id, subscription_id, event, status, created_at, updated_at)
VALUES ('0198c000-0000-7000-8000-000000000004', '0198c000-0000-7000-8000-000000000003', 'x', 'pending', now(), now())`

func earlierDatabase(t *testing.T) (url string) {
	t.Helper()
	url = pgtest.NewEmpty(t).URL
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	steps, err := filepath.Glob("migrations/*.sql")
	if err != nil || len(steps) < older {
		t.Fatalf("%d migrations, %v", len(steps), err)
	}
	slices.Sort(steps)
	var text []byte
	for _, step := range steps[:older] {
		sql, err := os.ReadFile(step)
		if err != nil {
			t.Fatal(err)
		}
		text = append(append(text, sql...), ";\n"...)
	}
	text = fmt.Appendf(text, "CREATE TABLE schema_version (version int4 NOT NULL); INSERT INTO schema_version VALUES (%d); %s", older, filled)
	dbtest.Exec(t, conn, string(text), pgx.QueryExecModeSimpleProtocol)
	return url
}

func TestFilledDatabaseOfAnEarlierReleaseIsBroughtUpOnce(t *testing.T) {
	t.Parallel()
	url := earlierDatabase(t)
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			if err := postgres.Migrate(t.Context(), url); err != nil {
				t.Errorf("migrate: %v", err)
			}
		})
	}
	group.Wait()
	db, err := postgres.Open(t.Context(), postgres.Config{URL: url, MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	// One entry more, by the program's own role, is of a kind that is known already.
	_, err = db.App.Exec(t.Context(), `
		INSERT INTO audit_entries (organization_id, seq, id, actor_id, action, resource_type, resource_id, metadata, created_at, retention, hash)
		VALUES ('0198c000-0000-7000-8000-000000000001', 101, gen_random_uuid(), 'user-1', 'switch.flag.created', 'flag', '1', '{}', (SELECT max(created_at) FROM audit_entries), 'pro', '')`)
	if err != nil {
		t.Fatal(err)
	}
	project := uuid.MustParse("0198c000-0000-7000-8000-000000000002")
	digest := func(environment byte) uuid.UUID {
		sum := sha256.Sum256(append(append(project[:], environment), "größe"...))
		return uuid.UUID(sum[:16])
	}
	for what, c := range map[string]struct {
		sql  string
		args []any
		want int
	}{
		"facets: two classes, with a project and without": {"SELECT count(*) FROM audit_facets", nil, 4},
		"entries":                     {"SELECT count(*) FROM audit_entries", nil, 101},
		"aliases of one id":           {"SELECT count(*) FROM aliases WHERE alias_id = 'anon'", nil, 50},
		"insert ids":                  {"SELECT count(*) FROM insert_ids", nil, 2},
		"insert ids by their digests": {"SELECT count(*) FROM insert_ids WHERE digest IN ($1, $2)", []any{digest(0), digest(1)}, 2},
		"deliveries":                  {"SELECT count(*) FROM webhook_deliveries d JOIN webhook_messages m ON m.id = d.message_id", nil, 1},
	} {
		if got := dbtest.One[int](t, db.App, c.sql, c.args...); got != c.want {
			t.Errorf("%s: %d; want %d", what, got, c.want)
		}
	}
}
