package audit

import (
	"encoding/csv"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/commit"
)

func TestExportIsRFC4180WithHeaderAndNoFormulas(t *testing.T) {
	t.Parallel()
	tr := newTrail(t, "pro")
	for i, hostile := range []string{"=HYPERLINK(\"http://evil\")", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "plain", "with,comma", "with \"quotes\"", "two\r\nlines"} {
		tr.log(t, commit.Entry{ProjectID: tr.project, Actor: commit.Actor{ID: hostile}, Action: "a.b", ResourceType: "r", ResourceID: fmt.Sprint(i), After: map[string]any{"text": hostile}})
	}
	tr.log(t, commit.Entry{Action: "organization.updated", ResourceType: "organization", ResourceID: "x"})
	p := newPress(t, tr, nil)
	row := p.request(t, filters{}, nil)
	if err := p.work(t, row); err != nil {
		t.Fatal(err)
	}
	row = p.read(t, row)
	text := p.file(t, row)
	if row.Status != "ready" || *row.SizeBytes != int64(len(text)) {
		t.Fatalf("%+v, %d bytes", row, len(text))
	}
	if !strings.HasPrefix(text, "id,actor_id,actor_email,action,resource_type,resource_id,before,after,metadata,created_at,seq,hash,project_id\r\n") {
		t.Errorf("%.200s", text)
	}
	if strings.Contains(strings.ReplaceAll(text, "\r\n", ""), "\n") {
		t.Error("a line ends without CR")
	}
	records, err := csv.NewReader(strings.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	// ReadAll turns CRLF within quotes into LF; nothing else is changed by it. The
	// export's own request is the last entry.
	want := []string{"'=HYPERLINK(\"http://evil\")", "'+1", "'-1", "'@SUM(A1)", "'\tx", "'\rx", "plain", "with,comma", "with \"quotes\"", "two\nlines", "user-1", "user-1"}
	if int64(len(records)-1) != *row.RowCount || len(records)-1 != len(want) {
		t.Fatalf("%d records, %d rows", len(records), *row.RowCount)
	}
	for i, record := range records[1:] {
		if record[1] != want[i] {
			t.Errorf("row %d: actor %q, want %q", i, record[1], want[i])
		}
		for _, cell := range record {
			if cell != "" && strings.ContainsRune("=+-@\t\r", rune(cell[0])) {
				t.Errorf("row %d: a spreadsheet runs %q", i, cell)
			}
		}
	}
	if records[11][12] != "" || records[1][12] != tr.project || records[1][10] != "1" || records[12][3] != "audit.export.requested" {
		t.Errorf("%v\n%v", records[11], records[1])
	}
	var actions []string
	rows, _ := p.db.App.Query(t.Context(), `SELECT action FROM audit_entries ORDER BY seq DESC LIMIT 2`)
	actions, err = pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || !slices.Equal(actions, []string{"audit.export.delivered", "audit.export.requested"}) {
		t.Errorf("%v %v", actions, err)
	}
}

func FuzzCSVCellIsReadBackByAReader(f *testing.F) {
	for _, seed := range []string{"", "a", "=1", "a,b", "\"", "\r\n", "a\rb", " x "} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, cell string) {
		line := append(appendCell(nil, cell), ",end\r\n"...)
		record, err := csv.NewReader(strings.NewReader(string(line))).Read()
		if err != nil || len(record) != 2 || record[1] != "end" {
			t.Fatalf("%q: %v, %v", line, record, err)
		}
		want := cell
		if cell != "" && strings.IndexByte("=+-@\t\r", cell[0]) >= 0 {
			want = "'" + cell
		}
		if record[0] != strings.ReplaceAll(want, "\r\n", "\n") {
			t.Errorf("%q became %q", cell, record[0])
		}
	})
}
