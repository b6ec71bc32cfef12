package responses

import (
	"testing"
	"time"

	"skerry/writeplane/postgres/dbtest"
)

func TestWhatAClockAheadCallsExpiredStays(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	for _, days := range []int{-8, 6} { // saved by a clock that was right, 15 days and a day ago
		dbtest.Exec(t, db.App, `INSERT INTO survey_partials (project_id, environment, survey_id, external_id, answers, expires_at)
			VALUES (gen_random_uuid(), 'live', 's', 'e', '{}', now() + $1 * interval '1 day')`, days)
	}
	for _, hours := range []int{25, 1} {
		dbtest.Exec(t, db.App, `INSERT INTO survey_idempotency (project_id, environment, key, body_sha256, answer, created_at)
			VALUES (gen_random_uuid(), 'live', 'k', '', '', now() - $1 * interval '1 hour')`, hours)
	}
	for _, ahead := range []time.Duration{0, 30 * 24 * time.Hour} {
		if err := removeExpired(t.Context(), db.App, time.Now().Add(ahead)); err != nil {
			t.Fatal(err)
		}
		if n := dbtest.One[int](t, db.App, `SELECT (SELECT count(*) FROM survey_partials) * 10 + (SELECT count(*) FROM survey_idempotency)`); n != 11 {
			t.Errorf("%s ahead: %d partial responses and %d keys are left, want 1 and 1", ahead, n/10, n%10)
		}
	}
}
