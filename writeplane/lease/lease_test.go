package lease

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

// A holder that waits for a database that is gone would not notice that another one, at the next database, has the lease.
func TestAnAnswerThatCannotComeInTimeIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	link := dbtest.NewLink(t, dbtest.New(t).App.Config().ConnString())
	pool, err := pgxpool.New(t.Context(), link.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := New(pool, "a")
	if held, err := s.Acquire(t.Context(), "x", time.Minute); !held || err != nil {
		t.Fatal(held, err)
	}
	link.Hold(true)
	if held, err := s.Acquire(t.Context(), "x", 50*time.Millisecond); held || err == nil {
		t.Errorf("a silent database: held %t, %v", held, err)
	}
	link.Release()
}
