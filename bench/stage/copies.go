package stage

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/apikey"
	"skerry/replication"
)

// Copies makes projects like p, each with a live key and flags like p's flag-000, and
// returns them. It writes what edges know of them (count + 2 documents a project) as
// the write plane's transactions do, one a project, and nothing else: they are
// published and followed like any others, but cannot be managed. A hundred thousand
// calls would take minutes.
func (s *Stage) Copies(ctx context.Context, p Project, projects, flags int) ([]Project, error) {
	conn, err := pgx.Connect(ctx, s.Credentials.PostgresURL)
	if err != nil {
		return nil, fmt.Errorf("reach the benchmark's database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	settings, err := bodyOf(ctx, conn, replication.ProjectSubject(p.ID))
	if err != nil {
		return nil, err
	}
	flag, err := bodyOf(ctx, conn, replication.FlagSubject(p.ID, apikey.Live, "flag-000"))
	if err != nil {
		return nil, err
	}
	from := model{settings, flag, flags}
	made := make([]Project, projects)
	for i := range made {
		made[i] = Project{ID: randomUUID(), Key: apikey.New(apikey.Live)}
		if err := copyProject(ctx, conn, made[i], from); err != nil {
			return nil, err
		}
	}
	return made, nil
}

func bodyOf(ctx context.Context, conn *pgx.Conn, subject replication.Subject) (map[string]any, error) {
	var raw []byte
	if err := conn.QueryRow(ctx, "SELECT body FROM documents WHERE subject = $1", string(subject)).Scan(&raw); err != nil {
		return nil, fmt.Errorf("read document %s: %w", subject, err)
	}
	var body map[string]any
	if err := json.Unmarshal(raw, &body); err != nil {
		return nil, fmt.Errorf("read document %s: %w", subject, err)
	}
	return body, nil
}

// copySQL is what a transaction of the write plane does last.
const copySQL = `
WITH head AS (
	UPDATE lanes SET position = position + cardinality($1::text[]) WHERE lane = 0 RETURNING position
), written AS (
	INSERT INTO documents (subject, lane, position, tx_first, tx_last, commit_token, body, changed_at)
	SELECT d.subject, 0, head.position - cardinality($1::text[]) + d.ordinal,
	       head.position - cardinality($1::text[]) + 1, head.position, $3, d.body, now()
	FROM head, unnest($1::text[], $2::bytea[]) WITH ORDINALITY AS d (subject, body, ordinal)
)
INSERT INTO commits (lane, position, token, at) SELECT 0, head.position, $3, now() FROM head`

// model is what copies are made of: the bodies of two documents, and how many of the
// second.
type model struct {
	settings, flag map[string]any
	flags          int
}

func copyProject(ctx context.Context, conn *pgx.Conn, p Project, from model) error {
	type document struct {
		subject string
		body    []byte
	}
	documents := make([]document, 0, from.flags+2)
	add := func(subject replication.Subject, body any) error {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("marshal document %s: %w", subject, err)
		}
		documents = append(documents, document{string(subject), raw})
		return nil
	}
	from.settings["id"] = p.ID
	if err := add(replication.ProjectSubject(p.ID), from.settings); err != nil {
		return err
	}
	key := map[string]any{"id": randomUUID(), "project_id": p.ID, "environment": apikey.Live}
	if err := add(replication.KeySubject(apikey.Of(p.Key).String()), key); err != nil {
		return err
	}
	flag := from.flag
	for n := range from.flags {
		flag["id"], flag["key"] = randomUUID(), fmt.Sprintf("flag-%03d", n)
		if err := add(replication.FlagSubject(p.ID, apikey.Live, flag["key"].(string)), flag); err != nil {
			return err
		}
	}
	slices.SortFunc(documents, func(a, b document) int { return cmp.Compare(a.subject, b.subject) })
	subjects, bodies := make([]string, len(documents)), make([][]byte, len(documents))
	for i, d := range documents {
		subjects[i], bodies[i] = d.subject, d.body
	}
	token := make([]byte, replication.TokenLen)
	_, _ = rand.Read(token) // never fails
	if _, err := conn.Exec(ctx, copySQL, subjects, bodies, token); err != nil {
		return fmt.Errorf("write documents: %w", err)
	}
	return nil
}

func randomUUID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	b[6], b[8] = b[6]&0x0f|0x40, b[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}
