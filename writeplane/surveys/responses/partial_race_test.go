package responses_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
	"skerry/writeplane/surveys/surveystest"
)

// behindLock takes a lock, runs what waits for it, so many waiters at once, and then lets
// end decide what they find behind it.
func behindLock(t *testing.T, w *surveystest.World, lock, end string, waiters ...func()) {
	t.Helper()
	var group sync.WaitGroup
	err := postgres.InTx(t.Context(), w.DB.Owner, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), lock); err != nil {
			return err
		}
		for _, waiter := range waiters {
			group.Go(waiter)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for waiting := 0; waiting < len(waiters); {
			err := w.DB.Owner.QueryRow(ctx, `SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
				WHERE a.datname = current_database() AND NOT l.granted`).Scan(&waiting)
			if err != nil {
				return err
			}
		}
		_, err := tx.Exec(t.Context(), end)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	group.Wait()
}

const (
	lockRow = "SELECT FROM survey_partials FOR UPDATE"
	expire  = "UPDATE survey_partials SET expires_at = now() - interval '1 minute'"
	remove  = "DELETE FROM survey_partials"
)

// A save that is answered is kept, whether the respondent's row goes away beside it by a
// submission, a deletion, or because it had expired.
func TestPartialIsSavedWhileItsRowGoesAway(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	for _, before := range []string{"SELECT", expire} {
		w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"e","answers":{"nps":7}}`)
		dbtest.Exec(t, w.DB.App, before)
		behindLock(t, w, lockRow, remove, func() {
			w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"e","answers":{"text":"hi"}}`)
		})
		if got, want := saved(w, w.Live, "e"), `{"partial":{"answers":{"text":"hi"},"current_question_id":null}}`; got != want {
			t.Errorf("after %s: %s, want %s", before, got, want)
		}
	}
}

// Two saves at once of a respondent whose last one has expired are both kept.
func TestSavesOverAnExpiredPartialFollowEachOther(t *testing.T) {
	t.Parallel()
	w := world(t)
	w.Published(everyKind)
	w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"e","answers":{"csat":1},"current_question_id":"csat"}`)
	dbtest.Exec(t, w.DB.App, expire)
	save := func(answers string) func() {
		return func() {
			w.Must(http.StatusOK, w.Live, "PUT", partial, `{"external_id":"e","answers":`+answers+`}`)
		}
	}
	behindLock(t, w, lockRow, "SELECT", save(`{"nps":7}`), save(`{"text":"hi"}`))
	if got, want := saved(w, w.Live, "e"), `{"partial":{"answers":{"nps":7,"text":"hi"},"current_question_id":null}}`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}
