package writeplane

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/decide"
	"skerry/pkg/state"
	"skerry/replication"
	"skerry/writeplane/postgres/dbtest"
)

const retriesItem = `{"environment":"live","key":"retries","type":"int","default_value":"10","description":"how often",
	"rule":{"rollout":{"buckets":[{"value":"11","percentage":25}]}}}`

func TestRollbackWritesANewVersionOfAnOldState(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	made := d.must(201, "POST", "/api/v1/config/items", retriesItem)
	id := at(made, "item", "id").(string)
	d.equal("action", at(made, "version", "action"), "created")
	d.equal("value_snapshot", at(made, "version", "value_snapshot"), "10")
	snapshot := at(made, "version", "rule_snapshot").(string)
	members := []string{}
	for name := range at(made, "item").(map[string]any) {
		members = append(members, name)
	}
	slices.Sort(members)
	d.equal("members of the item", members, []string{"created_at", "current_version", "default_value", "description", "environment",
		"id", "is_archived", "key", "project_id", "type", "updated_at"})

	changed := d.must(200, "PATCH", "/api/v1/config/items/"+id, `{"default_value":"12","rule":null,"note":"less waiting"}`)
	d.equal("rule", at(changed, "rule"), nil)
	d.equal("version", at(changed, "item", "current_version"), 2)

	first := at(made, "version", "id").(string)
	back := d.must(200, "POST", "/api/v1/config/items/"+id+"/rollback", `{"version_id":"`+first+`","note":"undo"}`)
	d.equal("version", at(back, "item", "current_version"), 3)
	d.equal("value", at(back, "item", "default_value"), "10")
	d.equal("action", at(back, "version", "action"), "rolled_back")
	d.equal("note", at(back, "version", "note"), "undo")
	d.equal("rule_snapshot", at(back, "version", "rule_snapshot"), snapshot)
	var rule any
	_ = json.Unmarshal([]byte(snapshot), &rule)
	d.equal("rule", at(back, "rule"), rule)
	d.equal("actor_email", at(back, "version", "actor_email"), d.email(t, "editor"))

	// Rolling back to the current version is allowed, and so is rolling back a rollback.
	third := at(back, "version", "id").(string)
	again := d.must(200, "POST", "/api/v1/config/items/"+id+"/rollback", `{"version_id":"`+third+`"}`)
	d.equal("version", at(again, "item", "current_version"), 4)
	d.equal("note", at(again, "version", "note"), nil)

	log := at(d.must(200, "GET", "/api/v1/config/items/"+id+"/versions", ""), "versions").([]any)
	var lines []string
	for _, v := range log {
		lines = append(lines, fmt.Sprint(at(v, "version_number"), " ", at(v, "action"), " ", at(v, "value_snapshot")))
	}
	d.equal("log", lines, []string{"4 rolled_back 10", "3 rolled_back 10", "2 changed 12", "1 created 10"})
	if len(d.events) != 2 || d.events[0].Name != "config.item.rolled_back" {
		t.Errorf("events %v", d.events)
	}
	var doc state.ConfigItem
	if !d.document(replication.ConfigSubject(d.founding.ProjectID, "live", "retries"), &doc) || doc.Version != 4 || doc.DefaultValue != "10" || doc.Rule == nil {
		t.Errorf("document %+v", doc)
	}
	actions := d.audited(id)
	for i, a := range actions {
		actions[i], _, _ = strings.Cut(a, " ")
	}
	d.equal("audit", actions, []string{"config.item.created", "config.item.published", "config.item.rolled_back", "config.item.rolled_back"})
}

func TestConcurrentChangesNumberVersionsWithoutGapsOrDoubles(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	made := d.must(201, "POST", "/api/v1/config/items", retriesItem)
	id, first := at(made, "item", "id").(string), at(made, "version", "id").(string)
	var all sync.WaitGroup
	for i := range 120 {
		all.Go(func() {
			if i%2 == 0 {
				d.as("editor", "POST", "/api/v1/config/items/"+id+"/rollback", `{"version_id":"`+first+`"}`)
			} else {
				d.as("editor", "PATCH", "/api/v1/config/items/"+id, fmt.Sprintf(`{"default_value":"%d"}`, 1000+i))
			}
		})
	}
	all.Wait()
	rows, err := d.db.App.Query(t.Context(), `SELECT version_number FROM config_versions WHERE item_id = $1 ORDER BY version_number`, id)
	if err != nil {
		t.Fatal(err)
	}
	numbers, err := pgx.CollectRows(rows, pgx.RowTo[int])
	if err != nil {
		t.Fatal(err)
	}
	if len(numbers) != 121 {
		t.Errorf("%d versions", len(numbers))
	}
	for i, n := range numbers {
		if n != i+1 {
			t.Fatalf("version %d stands in place %d", n, i+1)
		}
	}
	got := d.must(200, "GET", "/api/v1/config/items/"+id, "")
	d.equal("current_version", at(got, "item", "current_version"), 121)
	listed := at(d.must(200, "GET", "/api/v1/config/items/"+id+"/versions", ""), "versions").([]any)
	d.equal("newest", at(listed, 0, "version_number"), 121)
	if len(listed) != 100 {
		t.Errorf("%d versions listed", len(listed))
	}
}

func TestVersionsCannotBeChangedEvenBySQL(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	d.must(201, "POST", "/api/v1/config/items", retriesItem)
	for _, statement := range []string{
		`UPDATE config_versions SET note = 'forged'`, `DELETE FROM config_versions`, `TRUNCATE config_versions`,
		`ALTER TABLE config_versions DISABLE TRIGGER ALL`, `DROP TABLE config_versions`,
	} {
		if _, err := d.db.App.Exec(t.Context(), statement); err == nil {
			t.Errorf("the program's role may %s", statement)
		}
	}
	for _, statement := range []string{`UPDATE config_versions SET note = 'forged'`, `DELETE FROM config_versions`, `TRUNCATE config_versions`} {
		if _, err := d.db.Owner.Exec(t.Context(), statement); err == nil || !strings.Contains(err.Error(), "append-only") {
			t.Errorf("the owner may %s: %v", statement, err)
		}
	}
}

func TestConfigWordsItsRefusals(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	made := d.must(201, "POST", "/api/v1/config/items", retriesItem)
	id, first := at(made, "item", "id").(string), at(made, "version", "id").(string)
	other := at(d.must(201, "POST", "/api/v1/config/items", strings.Replace(retriesItem, `"retries"`, `"other"`, 1)), "version", "id").(string)
	archived := d.must(201, "POST", "/api/v1/config/items", strings.Replace(retriesItem, `"retries"`, `"gone"`, 1))
	gone, goneVersion := at(archived, "item", "id").(string), at(archived, "version", "id").(string)
	d.must(200, "PATCH", "/api/v1/config/items/"+gone, `{"is_archived":true}`)
	nobody := "0198c000-0000-7000-8000-00000000ffff"
	rollback := func(id string) string { return "/api/v1/config/items/" + id + "/rollback" }
	for _, c := range []struct {
		role, method, path, body string
		status                   int
		want                     string // of the body, or its beginning
	}{
		{"editor", "POST", rollback(id), ``, 400, `{"error":"version_id is required"}`},
		{"editor", "POST", rollback(id), `[]`, 400, `{"error":"version_id is required"}`},
		{"editor", "POST", rollback(id), `{"version_id":`, 400, `{"error":"version_id is required"}`},
		{"editor", "POST", rollback(id), `{"version_id":7}`, 400, `{"error":"version_id is required"}`},
		{"editor", "POST", rollback(nobody), `{}`, 400, `{"error":"version_id is required"}`},
		{"editor", "POST", rollback(id), `{"note":"\ud800"}`, 400, `{"error":"version_id is required"}`},
		{"editor", "POST", rollback(id), `{"version_id":"` + first + `","note":"\ud800"}`, 400, `{"error":"invalid_body","message":"a text has half of a surrogate pair"`},
		{"editor", "POST", rollback(id), `{"version_id":"` + first + `","force":true}`, 400, `{"error":"invalid_body","message":"force: unknown member"`},
		{"editor", "POST", rollback(nobody), `{"version_id":"` + first + `"}`, 404, `{"error":"Item not found"}`},
		{"editor", "POST", rollback("7"), `{"version_id":"` + first + `"}`, 404, `{"error":"Item not found"}`},
		{"editor", "POST", rollback(gone), `{"version_id":"` + goneVersion + `"}`, 404, `{"error":"Item not found"}`},
		{"editor", "POST", rollback(id), `{"version_id":"` + other + `"}`, 404, `{"error":"Version not found for this item"}`},
		{"editor", "POST", rollback(id), `{"version_id":"` + nobody + `"}`, 404, `{"error":"Version not found for this item"}`},
		{"editor", "POST", rollback(id), `{"version_id":"x"}`, 404, `{"error":"Version not found for this item"}`},
		{"viewer", "POST", rollback(id), `{}`, 403, `{"error":"Permission denied"}`},
		{"viewer", "GET", "/api/v1/config/items/" + nobody + "/versions", ``, 404, `{"error":"Item not found"}`},
		{"viewer", "GET", "/api/v1/config/items/x/versions", ``, 404, `{"error":"Item not found"}`},
		{"editor", "POST", "/api/v1/config/items", retriesItem, 409, `{"error":"already_exists"}`},
		{"editor", "POST", "/api/v1/config/items", `{"environment":"live","key":"k","type":"int","default_value":"1.5"}`, 400, `{"error":"invalid_value","message":"default_value: must be a whole number"`},
		{"editor", "POST", "/api/v1/config/items", `{"environment":"live","key":"k","type":"date","default_value":"1"}`, 400, `{"error":"invalid_type"`},
		{"editor", "POST", "/api/v1/config/items", `{"environment":"live","key":"k!","type":"int","default_value":"1"}`, 400, `{"error":"invalid_key"`},
		{"editor", "POST", "/api/v1/config/items", `{"key":"k","type":"int","default_value":"1"}`, 400, `{"error":"invalid_body","message":"environment: is required"`},
		{"editor", "PATCH", "/api/v1/config/items/" + id, `{"default_value":"x"}`, 400, `{"error":"invalid_value"`},
		{"editor", "PATCH", "/api/v1/config/items/" + id, `{"type":"string"}`, 400, `{"error":"invalid_body","message":"type: cannot change"`},
		{"editor", "PATCH", "/api/v1/config/items/" + id, `{"default_value":null}`, 400, `{"error":"invalid_body","message":"default_value: is required"`},
		{"editor", "PATCH", "/api/v1/config/items/" + id, `{"rule":{"rollout":{"buckets":[{"value":"1","start":0,"end":60000},{"value":"2","start":50000,"end":90000}]}}}`, 400, `{"error":"invalid_rule"`},
	} {
		got := d.as(c.role, c.method, c.path, c.body)
		if got.status != c.status || !strings.HasPrefix(got.body, c.want) {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.path, c.body, got.status, got.body, c.status, c.want)
		}
	}
	for _, header := range [][]string{nil, {"Authorization", "Bearer x"}, {"x-api-key", d.founding.Keys["live"].Secret}} {
		if got := call(t, d.server, "GET", "/api/v1/config/items/"+id+"/versions", "", header...); got.status != 401 || got.body != `{"error":"Invalid token"}` {
			t.Errorf("%v: %d %s", header, got.status, got.body)
		}
	}
	got := d.must(200, "GET", "/api/v1/config/items/"+id, "")
	d.equal("current_version", at(got, "item", "current_version"), 1)
	var doc state.ConfigItem
	if d.document(replication.ConfigSubject(d.founding.ProjectID, "live", "gone"), &doc) {
		t.Error("an archived item has a document")
	}
}

func TestValuesKeepTheirDigits(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	for typ, values := range map[string][2]string{
		"float":  {`"0.10000000000000000000001"`, "0.10000000000000000000001"},
		"int":    {`"9007199254740993"`, "9007199254740993"},
		"string": {`"<b>&\"quoted\""`, `"<b>&\"quoted\""`},
		"json":   {`"{ \"n\": 123456789012345678901234567890, \"z\": \"\\u0000\" }"`, `{"n":123456789012345678901234567890,"z":"\u0000"}`},
		"bool":   {`" true"`, "true"},
	} {
		made := d.must(201, "POST", "/api/v1/config/items", fmt.Sprintf(`{"environment":"test","key":%q,"type":%q,"default_value":%s}`, typ, typ, values[0]))
		d.equal(typ, at(made, "item", "default_value"), values[1])
		var doc state.ConfigItem
		if !d.document(replication.ConfigSubject(d.founding.ProjectID, "test", typ), &doc) || doc.DefaultValue != values[1] {
			t.Errorf("%s in the document: %q", typ, doc.DefaultValue)
		}
	}
}

func TestTooLargeForEdgesIsRefused(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	got := d.as("editor", "POST", "/api/v1/config/items", `{"environment":"live","key":"big","type":"string","default_value":"`+strings.Repeat("x", 600<<10)+`"}`)
	if got.status != 400 || !strings.HasPrefix(got.body, `{"error":"too_large"`) {
		t.Errorf("%d %.200s", got.status, got.body)
	}
}

func TestCohortsNeverNameEachOtherInACircle(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	d.must(201, "POST", "/api/v1/cohorts", `{"name":"a","predicate":"session_count >= 3"}`)
	d.must(201, "POST", "/api/v1/cohorts", `{"name":"b","predicate":"cohort:a"}`)
	d.must(201, "POST", "/api/v1/cohorts", `{"name":"c","predicate":"OR(cohort:a, cohort:b)","members":["ada"]}`)
	for _, c := range []struct{ method, path, body, code string }{
		{"PATCH", "/api/v1/cohorts/a", `{"predicate":"cohort:c"}`, "closes a circle: a → c → a"},
		{"PATCH", "/api/v1/cohorts/a", `{"predicate":"cohort:a"}`, "closes a circle: a → a"},
		{"POST", "/api/v1/cohorts", `{"name":"self","predicate":"cohort:self"}`, "closes a circle: self → self"},
		{"POST", "/api/v1/cohorts", `{"name":"d","predicate":"cohort:nobody"}`, `unknown cohort \"nobody\" at position 1`},
		{"POST", "/api/v1/cohorts", `{"name":"d","predicate":"event:x"}`, `invalid_predicate`},
		{"POST", "/api/v1/cohorts", `{"name":"d e"}`, `invalid_key`},
		{"POST", "/api/v1/cohorts", `{"name":"a"}`, `already_exists`},
		{"POST", "/api/v1/cohorts", `{"name":"d","members":["ok","","` + strings.Repeat("x", 201) + `"]}`, `members[1]`},
		{"POST", "/api/v1/cohorts", `{"name":"d","members":[7]}`, `members[0] must be a string`},
		{"POST", "/api/v1/cohorts", "{\"name\":\"d\",\"members\":[\"\xff\"]}", `not UTF-8`},
		{"POST", "/api/v1/cohorts", `{"name":"d","members":["\ud800"]}`, `surrogate`},
		{"POST", "/api/v1/cohorts", `{"name":"d","members":["x"`, `malformed JSON`},
		{"POST", "/api/v1/cohorts", `{"name":"d"} x`, `behind`},
		{"PATCH", "/api/v1/cohorts/a", `{"name":"b"}`, `cannot change`},
		{"PATCH", "/api/v1/cohorts/none", `{}`, `not_found`},
		{"DELETE", "/api/v1/cohorts/none", ``, `not_found`},
	} {
		got := d.as("editor", c.method, c.path, c.body)
		if got.status < 400 || got.status >= 500 || !strings.Contains(got.body, c.code) {
			t.Errorf("%s %s %s: %d %s, want %s", c.method, c.path, c.body, got.status, got.body, c.code)
		}
	}
	// A rule that names a deleted cohort can still be changed, and still names it.
	d.must(201, "POST", "/api/v1/switch/flags", `{"environment":"live","key":"f","kind":"boolean","default_value":"false","variants":[{"key":"on","value":"true"}],
		"rule":{"overrides":[{"predicate":"cohort:c","variant":"on"}]}}`)
	if got := d.must(200, "DELETE", "/api/v1/cohorts/c", ""); got["deleted"] != true {
		t.Error(got)
	}
	d.must(200, "PATCH", "/api/v1/switch/flags/f", `{"rule":{"rollout":{"buckets":[]}}}`)
}

// shards reads a cohort's members back from its documents, as an edge looks them up.
func (d *decisions) shards(name string) (members map[string]bool, count int) {
	d.t.Helper()
	var c state.Cohort
	if !d.document(replication.CohortSubject(d.founding.ProjectID, name), &c) {
		d.t.Fatal("no document")
	}
	members = map[string]bool{}
	for n := range c.Shards {
		var shard state.CohortShard
		if !d.document(replication.CohortShardSubject(d.founding.ProjectID, name, n), &shard) {
			d.t.Fatalf("shard %d of %d is missing", n, c.Shards)
		}
		for _, m := range shard.Members {
			if decide.Shard(m, c.Shards) != n {
				d.t.Fatalf("%s lies in shard %d", m, n)
			}
			members[m] = true
		}
	}
	var rest state.CohortShard
	if d.document(replication.CohortShardSubject(d.founding.ProjectID, name, c.Shards), &rest) {
		d.t.Errorf("a shard behind the last, %d", c.Shards)
	}
	return members, c.Shards
}

func TestMemberListsReachEdgesInShards(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	list := func(from, to int) string {
		var ids []string
		for i := from; i < to; i++ {
			ids = append(ids, fmt.Sprintf(`"user-%08d-%s"`, i, strings.Repeat("x", 60)))
		}
		return "[" + strings.Join(ids, ",") + "]"
	}
	made := d.must(201, "POST", "/api/v1/cohorts", `{"name":"big","members":`+list(0, 20_000)+`}`)
	d.equal("member_count", at(made, "cohort", "member_count"), 20000)
	if got := at(made, "cohort", "members").([]any); len(got) != 20_000 {
		t.Errorf("%d members shown", len(got))
	}
	members, count := d.shards("big")
	if len(members) != 20_000 || count != 8 {
		t.Errorf("%d members in %d shards", len(members), count)
	}
	position := `SELECT coalesce(max(position), 0) FROM documents WHERE lane = 0`
	before := dbtest.One[int64](t, d.db.App, position)
	got := d.must(200, "POST", "/api/v1/cohorts/big/members", `{"add":["ada","ada"],"remove":["nobody"]}`)
	d.equal("member_count", at(got, "cohort", "member_count"), 20001)
	after := dbtest.One[int64](t, d.db.App, position)
	if after-before != 2 { // the cohort and one shard
		t.Errorf("one member moved %d documents", after-before)
	}
	if got := d.must(200, "POST", "/api/v1/cohorts/big/members", `{"add":["ada"]}`); at(got, "cohort", "member_count") != 20001.0 {
		t.Error("a member twice")
	}
	d.must(200, "POST", "/api/v1/cohorts/big/members", `{"remove":`+list(100, 20_000)+`}`)
	members, count = d.shards("big")
	if len(members) != 101 || count != 1 || !members["ada"] {
		t.Errorf("%d members in %d shards", len(members), count)
	}
	patched := d.must(200, "PATCH", "/api/v1/cohorts/big", `{"members":["bob"],"predicate":"props.plan = \"pro\""}`)
	d.equal("members", at(patched, "cohort", "members"), []string{"bob"})
	members, _ = d.shards("big")
	d.equal("members", members, map[string]bool{"bob": true})
	d.must(200, "PATCH", "/api/v1/cohorts/big", `{"members":null}`)
	if members, count = d.shards("big"); count != 0 {
		t.Errorf("%d members in %d shards", len(members), count)
	}
	d.must(200, "DELETE", "/api/v1/cohorts/big", "")
	if left := dbtest.One[int](t, d.db.App, `SELECT count(*) FROM documents WHERE body IS NOT NULL AND subject LIKE '%'||$1||'.members.%'`, d.founding.ProjectID); left != 0 {
		t.Errorf("%d documents left", left)
	}
}

// A long list is imported for seconds, and whoever changes predicates meanwhile waits for no more than a predicate.
func TestImportWithoutPredicateWaitsForNobody(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	other, err := d.db.Owner.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Release()
	dbtest.Exec(t, other, `SELECT pg_advisory_lock(hashtextextended('cohorts ' || $1, 0))`, d.founding.ProjectID)
	d.must(201, "POST", "/api/v1/cohorts", `{"name":"a","members":["ada"]}`)
	d.must(200, "PATCH", "/api/v1/cohorts/a", `{"predicate":null,"members":["bob"]}`)
}

// Only lists of members may be long: anything else is decoded into a tree, which takes many times its text.
func TestOnlyListsOfMembersMayBeLong(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	long := strings.Repeat("0,", 2<<20) + "0"
	if got := d.as("editor", "POST", "/api/v1/cohorts", `{"name":"a","members":[],"x":[`+long+`],"y":[`+long+`],"z":[`+long+`]}`); got.status != 413 || !strings.Contains(got.body, "payload_too_large") {
		t.Errorf("12 MiB in other members: %d %.100s, want 413 payload_too_large", got.status, got.body)
	}
	listed := strings.Repeat(`"ada",`, 2<<20) + `"bob"`
	if got := d.as("editor", "POST", "/api/v1/cohorts", `{"predicate":"session_count >= 3","members":[`+listed[:6*999_998]+`"bob"],"name":"a"}`); got.status != 201 {
		t.Errorf("6 MB of members: %d %.100s", got.status, got.body)
	}
}

// Ids that somebody chose so that most of them fall into one sixteenth of the shards need more shards than their bytes
// do. A change of one member tries fewer first, and must leave nothing of that.
func TestOneMoreMemberKeepsAnUnevenListWhole(t *testing.T) {
	t.Parallel()
	d := newDecisions(t)
	want := map[string]bool{"ada": true}
	var ids []string
	for i := 0; len(ids) < 3500; i++ {
		id := fmt.Sprintf("user-%d", i)
		if len(ids) >= 500 { // the first ones are spread evenly
			if id += strings.Repeat("x", 200-len(id)); decide.Shard(id, 16) != 8 {
				continue
			}
		}
		want[id] = true
		ids = append(ids, `"`+id+`"`)
	}
	d.must(201, "POST", "/api/v1/cohorts", `{"name":"uneven","members":[`+strings.Join(ids, ",")+`]}`)
	d.must(200, "POST", "/api/v1/cohorts/uneven/members", `{"add":["ada"]}`)
	members, count := d.shards("uneven")
	if !maps.Equal(members, want) || count != 32 {
		t.Errorf("%d members in %d shards, want %d in 32", len(members), count, len(want))
	}
}
