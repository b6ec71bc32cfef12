package writeplane

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/access"
	"skerry/writeplane/cohorts"
	"skerry/writeplane/flags"
	"skerry/writeplane/remoteconfig"
	"skerry/writeplane/surveys"
)

// leaving is a plane in which projects are deleted while something of theirs is changed.
type leaving struct {
	*plane
	t      *testing.T
	server *httptest.Server
}

func newLeaving(t *testing.T) *leaving {
	l := &leaving{plane: newPlane(t), t: t}
	l.server = l.serve(t, HandlerConfig{}, Routes(Modules{
		Access: access.NewModule(l.commits, l.access), Flags: flags.New(l.commits, l.access), RemoteConfig: remoteconfig.New(l.commits, l.access),
		Cohorts: cohorts.New(l.commits, l.access), Surveys: surveys.New(l.commits, l.access),
	})...)
	return l
}

// must calls as owner and returns a member of the answer.
func (l *leaving) must(method, path, body string, wanted ...string) string {
	l.t.Helper()
	got, decoded := (&managed{l.plane, l.server}).as(l.t, "owner", method, path, body)
	if got.status >= 300 {
		l.t.Fatalf("%s %s: %d %s", method, path, got.status, got.body)
	}
	text, _ := member(decoded, wanted...).(string)
	return text
}

// resources are what the changes below find in a project.
type resources struct{ project, key, flag, item, survey string }

func (l *leaving) fill() (r resources) {
	l.t.Helper()
	r.project = l.must("POST", "/api/v1/projects", `{"name":"leaves"}`, "project", "id")
	in := "?project_id=" + r.project
	r.key = l.must("POST", "/api/v1/projects/"+r.project+"/api-keys", `{"name":"k","environment":"live"}`, "secret")
	r.flag = l.must("POST", "/api/v1/switch/flags"+in, checkoutFlag, "flag", "id")
	r.item = l.must("POST", "/api/v1/config/items"+in, `{"environment":"live","key":"limit","type":"int","default_value":"1"}`, "item", "id")
	r.survey = l.must("POST", "/api/v1/pulse/surveys"+in, survey("first"), "survey", "id")
	l.must("POST", "/api/v1/cohorts"+in, `{"name":"beta","members":["a"]}`)
	return r
}

func survey(slug string) string {
	return fmt.Sprintf(`{"name":"S","slug":%q,"kind":"nps","questions":[{"kind":"nps","prompt":"?","required":true,"order_index":0}]}`, slug)
}

// changes of a project's resources, each of which edges hear of.
var changes = map[string]func(r resources) (method, path, body string){
	"a new flag": func(r resources) (string, string, string) {
		return "POST", "/api/v1/switch/flags?project_id=" + r.project, strings.ReplaceAll(checkoutFlag, "checkout", "other")
	},
	"a flag": func(r resources) (string, string, string) {
		return "PATCH", "/api/v1/switch/flags/" + r.flag, `{"enabled":false}`
	},
	"a halt": func(r resources) (string, string, string) {
		return "POST", "/api/switch/halt-webhook", `{"flag_key":"checkout","reason":"r"}`
	},
	"a new item": func(r resources) (string, string, string) {
		return "POST", "/api/v1/config/items?project_id=" + r.project, `{"environment":"live","key":"other","type":"int","default_value":"1"}`
	},
	"an item": func(r resources) (string, string, string) {
		return "PATCH", "/api/v1/config/items/" + r.item, `{"default_value":"2"}`
	},
	"a new cohort": func(r resources) (string, string, string) {
		return "POST", "/api/v1/cohorts?project_id=" + r.project, `{"name":"other","members":["b"]}`
	},
	"members of a cohort": func(r resources) (string, string, string) {
		return "POST", "/api/v1/cohorts/beta/members?project_id=" + r.project, `{"add":["b"]}`
	},
	"a new survey": func(r resources) (string, string, string) {
		return "POST", "/api/v1/pulse/surveys?project_id=" + r.project, survey("second")
	},
	"a survey": func(r resources) (string, string, string) {
		return "POST", "/api/v1/pulse/surveys/" + r.survey + "/publish", `{}`
	},
}

func deletion(r resources) func() (method, path, body string) {
	return func() (string, string, string) { return "DELETE", "/api/v1/projects/" + r.project, "" }
}

// start makes a call, whose status comes through the channel.
func (l *leaving) start(key string, request func() (method, path, body string)) <-chan int {
	method, path, body := request()
	header := bearer(l.tokens["owner"])
	if strings.HasSuffix(path, "halt-webhook") {
		header = []string{"x-api-key", key}
	}
	done := make(chan int, 1)
	go func() { done <- call(l.t, l.server, method, path, body, header...).status }()
	return done
}

// waiting returns when so many wait for others' locks, or when done has something.
func (l *leaving) waiting(n int, done <-chan int) {
	l.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); len(done) == 0; {
		var waiting int
		err := l.db.Owner.QueryRow(l.t.Context(), `SELECT count(*) FROM pg_locks WHERE NOT granted
			AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())`).Scan(&waiting)
		if err != nil {
			l.t.Fatal(err)
		}
		if waiting >= n {
			return
		}
		if time.Now().After(deadline) {
			l.t.Fatalf("there are no %d who wait for others", n)
		}
	}
}

// hold locks rows until it is released.
func (l *leaving) hold(sql string, args ...any) (release func()) {
	l.t.Helper()
	tx, err := l.db.Owner.Begin(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	if _, err := tx.Exec(l.t.Context(), sql, args...); err != nil {
		l.t.Fatal(err)
	}
	return func() {
		l.t.Helper()
		if err := tx.Rollback(l.t.Context()); err != nil {
			l.t.Fatal(err)
		}
	}
}

// left lists what edges still have of a project.
func (l *leaving) left(project string) (subjects []string) {
	l.t.Helper()
	rows, err := l.db.Owner.Query(l.t.Context(), `SELECT subject FROM documents WHERE body IS NOT NULL AND position(lower($1) IN subject) > 0`, project)
	if err == nil {
		subjects, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		l.t.Fatal(err)
	}
	return subjects
}

// No key of a deleted project reaches what edges have of it, so nobody would ever take it away.
func TestNothingOfADeletedProjectIsLeftAtTheEdges(t *testing.T) {
	t.Parallel()
	l := newLeaving(t)
	const chain = `SELECT FROM audit_chains WHERE organization_id = $1 FOR UPDATE`
	check := func(what, project string, deleted int) {
		t.Helper()
		if left := l.left(project); deleted >= 300 || len(left) > 0 {
			t.Errorf("%s: the deletion is answered with %d and leaves %q", what, deleted, left)
		}
	}
	for what, change := range changes {
		r := l.fill()
		release := l.hold(chain, l.founding.OrganizationID) // both have done all but their last round trip
		changed := l.start(r.key, func() (string, string, string) { return change(r) })
		l.waiting(1, nil)
		deleted := l.start("", deletion(r))
		l.waiting(2, nil)
		release()
		if status := <-changed; status >= 300 {
			t.Errorf("%s before the deletion is answered with %d", what, status)
		}
		check(what+" before the deletion", r.project, <-deleted)

		r = l.fill()
		release = l.hold(chain, l.founding.OrganizationID)
		deleted = l.start("", deletion(r))
		l.waiting(1, nil)
		changed = l.start(r.key, func() (string, string, string) { return change(r) })
		l.waiting(2, nil)
		release()
		check(what+" behind the deletion", r.project, <-deleted)
		if status := <-changed; status < 400 || status >= 500 {
			t.Errorf("%s behind the deletion is answered with %d", what, status)
		}
		check(what+" behind the deletion", r.project, 0)

		if strings.HasPrefix(what, "a new") {
			continue
		}
		r = l.fill()
		release = l.hold(`WITH f AS (SELECT FROM flags WHERE project_id = $1 FOR UPDATE), i AS (SELECT FROM config_items WHERE project_id = $1 FOR UPDATE),
			c AS (SELECT FROM cohorts WHERE project_id = $1 FOR UPDATE), s AS (SELECT FROM surveys WHERE project_id = $1::text::uuid FOR UPDATE)
			SELECT (SELECT count(*) FROM f) + (SELECT count(*) FROM i) + (SELECT count(*) FROM c) + (SELECT count(*) FROM s)`, r.project)
		changed = l.start(r.key, func() (string, string, string) { return change(r) })
		l.waiting(1, nil)
		deleted = l.start("", deletion(r))
		l.waiting(2, deleted)
		release()
		<-changed
		check(what+" that waited through the deletion", r.project, <-deleted)
	}
}
