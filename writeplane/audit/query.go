package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Query says which entries of one organization are wanted, in which order.
type Query struct {
	OrganizationID string
	// Projects the entries must belong to; nil means all of the organization, its own
	// entries included.
	Projects     []string
	ActorID      string
	Action       Pattern
	ResourceType Pattern
	Since, Until time.Time // inclusive and exclusive; zero means open
	After        *Position // where the page before ended
	Ascending    bool      // oldest first
	Limit        int       // 0 means all

	classes []string // retention classes to look in; nil: all, or the table has none
	kinds   []kind   // exact actions and types that the prefixes stand for; nil: not known
}

// Pattern matches a text exactly, or by its beginning. The zero Pattern matches all.
type Pattern struct {
	Text   string
	Prefix bool
}

// ParsePattern reads a filter: `switch.*` means everything that begins with `switch.`.
func ParsePattern(filter string) Pattern {
	if before, ok := strings.CutSuffix(filter, "*"); ok {
		return Pattern{Text: before, Prefix: before != ""}
	}
	return Pattern{Text: filter}
}

func (p Pattern) all() bool { return p.Text == "" }

// Position is an entry's place in its chain: times never fall along it.
type Position struct {
	At  time.Time `json:"at"`
	Seq int64     `json:"seq"`
}

// beginning is the position before every chain's first entry.
func beginning() Position { return Position{At: time.Unix(0, 0).UTC()} }

const columns = `organization_id, seq, id, project_id, actor_id, actor_email, action, resource_type, resource_id,
	before::text, after::text, metadata::text, created_at, retention, hash`

// arguments are a statement's values.
type arguments []any

// add takes a value and returns what stands for it in the statement.
func (a *arguments) add(v any) string {
	*a = append(*a, v)
	return fmt.Sprintf("$%d", len(*a))
}

// build is the query's SQL over a table of the log's shape, with its arguments. Each of
// the kinds is read by a SELECT of its own, as an index has only one kind's entries in
// order.
func (q Query) build(table string) (string, []any) {
	var b strings.Builder
	args := arguments{}
	if len(q.kinds) == 1 {
		q = q.of(q.kinds[0])
	}
	if len(q.kinds) == 0 {
		q.selected(&b, &args, table)
		return b.String(), plannedWithValues(args)
	}
	for i, each := range q.kinds {
		if i > 0 {
			b.WriteString(" UNION ALL ")
		}
		b.WriteByte('(')
		q.of(each).selected(&b, &args, table)
		b.WriteByte(')')
	}
	q.ordered(&b, &args)
	return b.String(), plannedWithValues(args)
}

func (q Query) selected(b *strings.Builder, args *arguments, table string) {
	fmt.Fprintf(b, "SELECT %s FROM %s", columns, table)
	q.where(b, args)
	if !q.Since.IsZero() {
		fmt.Fprintf(b, " AND created_at >= %s", args.add(q.Since))
	}
	if !q.Until.IsZero() {
		fmt.Fprintf(b, " AND created_at < %s", args.add(q.Until))
	}
	if q.After != nil {
		past := "<"
		if q.Ascending {
			past = ">"
		}
		fmt.Fprintf(b, " AND (created_at, seq) %s (%s, %s)", past, args.add(q.After.At), args.add(q.After.Seq))
	}
	q.ordered(b, args)
}

// where is what the query asks of an entry, whenever it was written.
func (q Query) where(b *strings.Builder, args *arguments) {
	fmt.Fprintf(b, " WHERE organization_id = %s", args.add(q.OrganizationID))
	switch {
	case len(q.Projects) == 1:
		fmt.Fprintf(b, " AND project_id = %s", args.add(q.Projects[0]))
	case q.Projects != nil:
		fmt.Fprintf(b, " AND project_id = ANY(%s::uuid[])", args.add(q.Projects))
	}
	if q.classes != nil {
		fmt.Fprintf(b, " AND retention = ANY(%s::text[])", args.add(q.classes))
	}
	if q.ActorID != "" {
		fmt.Fprintf(b, " AND actor_id = %s", args.add(q.ActorID))
	}
	q.Action.where(b, args, "action")
	q.ResourceType.where(b, args, "resource_type")
}

func (p Pattern) where(b *strings.Builder, args *arguments, column string) {
	switch {
	case p.all():
	case p.Prefix:
		fmt.Fprintf(b, " AND %s ^@ %s", column, args.add(p.Text))
	default:
		fmt.Fprintf(b, " AND %s = %s", column, args.add(p.Text))
	}
}

func (q Query) ordered(b *strings.Builder, args *arguments) {
	order := "DESC"
	if q.Ascending {
		order = "ASC"
	}
	fmt.Fprintf(b, " ORDER BY created_at %s, seq %s", order, order)
	if q.Limit > 0 {
		fmt.Fprintf(b, " LIMIT %s", args.add(q.Limit))
	}
}

// plannedWithValues are a statement's arguments such that Postgres plans the statement
// with them, and so looks only at the partitions that can hold an answer. A prepared
// statement's plan would be for any values, and so for all partitions.
func plannedWithValues(args []any) []any {
	return append([]any{pgx.QueryExecModeCacheDescribe}, args...)
}

// stream runs the query over a table and hands each entry to fn, one at a time.
func stream(ctx context.Context, pool *pgxpool.Pool, table string, q Query, fn func(*Entry) error) error {
	sql, args := q.build(table)
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return fmt.Errorf("read entries: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		entry, err := scan(rows)
		if err != nil {
			return fmt.Errorf("read entries: %w", err)
		}
		if err := fn(&entry); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("read entries: %w", err)
	}
	return nil
}

func scan(row pgx.CollectableRow) (e Entry, err error) {
	var before, after *string
	var metadata string
	err = row.Scan(&e.OrganizationID, &e.Seq, &e.ID, &e.ProjectID, &e.ActorID, &e.ActorEmail, &e.Action, &e.ResourceType, &e.ResourceID,
		&before, &after, &metadata, &e.CreatedAt, &e.Retention, &e.Hash)
	if before != nil {
		e.Before = []byte(*before)
	}
	if after != nil {
		e.After = []byte(*after)
	}
	e.Metadata = []byte(metadata)
	e.CreatedAt = e.CreatedAt.UTC()
	return e, err
}
