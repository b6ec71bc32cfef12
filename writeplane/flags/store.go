package flags

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

const selectFlag = `
SELECT f.id, f.project_id, p.organization_id, f.environment, f.key, f.kind, f.description, f.default_value, f.default_variant,
       f.variants, f.enabled, f.rule, f.salt, f.is_archived, f.current_version, f.halted_at, f.halt_reason, f.created_at, f.updated_at
FROM flags f JOIN projects p ON p.id = f.project_id
WHERE p.deleted_at IS NULL AND `

// locked locks a flag for a change, and keeps its project from being deleted meanwhile
// (access.Keep).
const locked = "FOR UPDATE OF f FOR KEY SHARE OF p"

func scanFlag(row pgx.CollectableRow) (*Flag, error) {
	f := &Flag{}
	var variants string
	var rule *string
	err := row.Scan(&f.ID, &f.ProjectID, &f.OrganizationID, &f.Environment, &f.Key, &f.Kind, &f.Description, &f.DefaultValue,
		&f.DefaultVariant, &variants, &f.Enabled, &rule, &f.Salt, &f.IsArchived, &f.CurrentVersion, &f.HaltedAt, &f.HaltReason,
		&f.CreatedAt, &f.UpdatedAt)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(variants), &f.Variants); err != nil {
		return nil, fmt.Errorf("read variants of flag %s: %w", f.ID, err)
	}
	if rule != nil {
		if err := json.Unmarshal([]byte(*rule), &f.Rule); err != nil {
			return nil, fmt.Errorf("read rule of flag %s: %w", f.ID, err)
		}
	}
	return f, nil
}

// one reads the flag that the condition names; access.ErrNotFound when there is none.
func one(ctx context.Context, q postgres.Querier, condition string, args ...any) (*Flag, error) {
	f, ok, err := postgres.One(ctx, q, "read flag", scanFlag, selectFlag+condition, args...)
	if err == nil && !ok {
		return nil, access.ErrNotFound
	}
	return f, err
}

func list(ctx context.Context, q postgres.Querier, project, environment string, after page.Keyed, limit int) ([]*Flag, error) {
	return postgres.All(ctx, q, "list flags", scanFlag, selectFlag+`
		f.project_id = $1 AND ($2 = '' OR f.environment = $2) AND (f.key, f.id) > ($3, $4)
		ORDER BY f.key, f.id LIMIT $5`, project, environment, after.Key, after.ID, limit)
}

// ErrExists is the 409 of a key that the environment has already.
var ErrExists = problem.New(problem.Conflict, "already_exists")

func (f *Flag) columns() ([]any, error) {
	variants, err := json.Marshal(f.full().Variants)
	if err != nil {
		return nil, fmt.Errorf("marshal variants: %w", err)
	}
	return []any{
		f.ID, f.Description, f.DefaultValue, f.DefaultVariant, string(variants), f.Enabled, f.Rule.Serialize(), f.Salt,
		f.IsArchived, f.CurrentVersion, f.HaltedAt, f.HaltReason, f.UpdatedAt,
	}, nil
}

// create stores a new flag with its trace and its document.
func create(ctx context.Context, tx *commit.Tx, f *Flag) error {
	columns, err := f.columns()
	if err != nil {
		return err
	}
	access.Keep(tx, f.ProjectID)
	done, err := tx.Exec(ctx, `
		INSERT INTO flags (id, description, default_value, default_variant, variants, enabled, rule, salt, is_archived,
			current_version, halted_at, halt_reason, updated_at, project_id, environment, key, kind, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $13)
		ON CONFLICT (project_id, environment, key) DO NOTHING`,
		append(columns, f.ProjectID, f.Environment, f.Key, f.Kind)...)
	if err != nil {
		return fmt.Errorf("insert flag: %w", err)
	}
	if done.RowsAffected() == 0 {
		return ErrExists
	}
	tx.Audit(f.entry("switch.flag.created", nil, f.full()))
	return f.put(tx)
}

// update stores a flag's new state. What edges have to know and the trace are the caller's.
func update(tx *commit.Tx, f *Flag) error {
	columns, err := f.columns()
	if err != nil {
		return err
	}
	tx.Later("update flag", `
		UPDATE flags SET description = $2, default_value = $3, default_variant = $4, variants = $5, enabled = $6, rule = $7,
			salt = $8, is_archived = $9, current_version = $10, halted_at = $11, halt_reason = $12, updated_at = $13
		WHERE id = $1`, columns...)
	return nil
}
