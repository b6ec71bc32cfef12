package writeplane

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/replication/up"
	"skerry/writeplane/audit"
	"skerry/writeplane/commit"
	"skerry/writeplane/identity"
	"skerry/writeplane/ingest"
	"skerry/writeplane/postgres"
)

// meanwhile does something once, behind the first query that contains a text.
type meanwhile struct {
	behind string
	do     func()
	once   sync.Once
}

type sqlKey struct{}

func (m *meanwhile) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, sqlKey{}, q.SQL)
}

func (m *meanwhile) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if sql, _ := ctx.Value(sqlKey{}).(string); strings.Contains(sql, m.behind) {
		m.once.Do(m.do)
	}
}

// A person is linked to another, and the history is rewritten, between the two questions that an answer is made of.
func TestAnAnswerAboutAPersonIsOfOneMoment(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/api/v1/events?distinct_id=user", "/api/v1/persons/user?", "/api/v1/persons/user/conflicts?", "/api/v1/persons/alone/conflicts?"} {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			r := newReceived(t)
			r.send(t, up.LaneEvent, start, tracked("first", "user", start), tracked("second", "device", start), tracked("third", "alone", start))
			r.send(t, up.LaneAlias, start, up.Operation{AliasID: []byte("device"), DistinctID: []byte("user"), Timestamp: start.UnixMicro()})
			r.send(t, up.LaneAlias, start, up.Operation{AliasID: []byte("device"), DistinctID: []byte("bob"), Timestamp: start.UnixMicro()})
			ask := func(pool *pgxpool.Pool) exchange {
				store, err := ingest.NewStore(ingest.Config{}, &postgres.DB{App: pool, Owner: r.db.Owner}, r.blobs, nil)
				if err != nil {
					t.Fatal(err)
				}
				commits := commit.New(pool, commit.Sinks{Audit: audit.Append, Deliveries: noDeliveries})
				server := r.serve(t, HandlerConfig{}, Routes(Modules{Ingest: ingest.New(store, r.access), Persons: identity.New(commits, r.access)})...)
				return call(t, server, "GET", path+"&project_id="+r.founding.ProjectID, "", bearer(r.tokens["viewer"])...)
			}
			want := ask(r.db.App)
			linked := &meanwhile{behind: "WITH root AS", do: func() {
				for _, id := range []string{"user", "alone"} {
					r.send(t, up.LaneAlias, start, up.Operation{AliasID: []byte(id), DistinctID: []byte("account"), Timestamp: start.UnixMicro()})
				}
				if err := r.worker.Work(t.Context()); err != nil {
					t.Error(err)
				}
			}}
			config := r.db.App.Config()
			config.ConnConfig.Tracer = linked
			pool, err := pgxpool.NewWithConfig(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			defer pool.Close()
			got := ask(pool)
			if want.status != 200 || got.status != 200 || got.body != want.body {
				t.Errorf("%d %s\nwant %d %s", got.status, got.body, want.status, want.body)
			}
			linked.once.Do(func() { t.Error("nothing happened meanwhile") })
		})
	}
}
