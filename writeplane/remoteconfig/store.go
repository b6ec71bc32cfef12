package remoteconfig

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/id"
	"skerry/pkg/instant"
	"skerry/pkg/page"
	"skerry/pkg/problem"
	"skerry/writeplane/access"
	"skerry/writeplane/commit"
	"skerry/writeplane/postgres"
)

// The refusals of these endpoints (specification, Errors).
var (
	ErrItemNotFound    = problem.New(problem.NotFound, "Item not found")
	ErrVersionNotFound = problem.New(problem.NotFound, "Version not found for this item")
	ErrVersionRequired = problem.New(problem.Invalid, "version_id is required")
	ErrExists          = problem.New(problem.Conflict, "already_exists")
)

const selectItem = `
SELECT i.id, i.project_id, p.organization_id, i.environment, i.key, i.type, i.default_value, i.description, i.rule, i.salt,
       i.is_archived, i.current_version, i.created_at, i.updated_at
FROM config_items i JOIN projects p ON p.id = i.project_id
WHERE p.deleted_at IS NULL AND `

func scanItem(row pgx.CollectableRow) (*Item, error) {
	i := &Item{}
	var rule *string
	err := row.Scan(&i.ID, &i.ProjectID, &i.OrganizationID, &i.Environment, &i.Key, &i.Type, &i.DefaultValue, &i.Description,
		&rule, &i.Salt, &i.IsArchived, &i.CurrentVersion, &i.CreatedAt, &i.UpdatedAt)
	if err != nil {
		return nil, err
	}
	if rule != nil {
		if err := json.Unmarshal([]byte(*rule), &i.Rule); err != nil {
			return nil, fmt.Errorf("read rule of config item %s: %w", i.ID, err)
		}
	}
	return i, nil
}

// one reads the item of an id; ErrItemNotFound when there is none. more goes on with the
// query: a condition, a lock.
func one(ctx context.Context, q postgres.Querier, itemID, more string, args ...any) (*Item, error) {
	if !id.Valid(itemID) {
		return nil, ErrItemNotFound
	}
	i, ok, err := postgres.One(ctx, q, "read config item", scanItem, selectItem+"i.id = $1 "+more, append([]any{itemID}, args...)...)
	if err == nil && !ok {
		return nil, ErrItemNotFound
	}
	return i, err
}

func list(ctx context.Context, q postgres.Querier, project, environment string, after page.Keyed, limit int) ([]*Item, error) {
	return postgres.All(ctx, q, "list config items", scanItem, selectItem+`
		i.project_id = $1 AND ($2 = '' OR i.environment = $2) AND (i.key, i.id) > ($3, $4)
		ORDER BY i.key, i.id LIMIT $5`, project, environment, after.Key, after.ID, limit)
}

// maxVersions is how many versions the list shows (specification, Limits).
const maxVersions = 100

const selectVersion = `
SELECT id, item_id, version_number, action, value_snapshot, rule_snapshot, actor_id, actor_email, note, created_at
FROM config_versions WHERE item_id = $1 `

func scanVersion(row pgx.CollectableRow) (v Version, err error) {
	err = row.Scan(&v.ID, &v.ItemID, &v.VersionNumber, &v.Action, &v.ValueSnapshot, &v.RuleSnapshot, &v.ActorID, &v.ActorEmail,
		&v.Note, &v.CreatedAt.Time)
	return v, err
}

func versions(ctx context.Context, q postgres.Querier, itemID string) ([]Version, error) {
	return postgres.All(ctx, q, "list config versions", scanVersion,
		selectVersion+`ORDER BY version_number DESC LIMIT $2`, itemID, maxVersions)
}

func version(ctx context.Context, q postgres.Querier, itemID, versionID string) (Version, error) {
	if !id.Valid(versionID) {
		return Version{}, ErrVersionNotFound
	}
	v, ok, err := postgres.One(ctx, q, "read config version", scanVersion, selectVersion+`AND id = $2`, itemID, versionID)
	if err == nil && !ok {
		return v, ErrVersionNotFound
	}
	return v, err
}

// create stores a new item with its first version, its trace and its document.
func create(ctx context.Context, tx *commit.Tx, i *Item, note *string) (Version, error) {
	access.Keep(tx, i.ProjectID)
	done, err := tx.Exec(ctx, `
		INSERT INTO config_items (id, project_id, environment, key, type, default_value, description, rule, salt, is_archived,
			current_version, created_at, updated_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, false, 1, $10, $10)
		ON CONFLICT (project_id, environment, key) DO NOTHING`,
		i.ID, i.ProjectID, i.Environment, i.Key, i.Type, i.DefaultValue, i.Description, i.Rule.Serialize(), i.Salt, i.CreatedAt)
	if err != nil {
		return Version{}, fmt.Errorf("insert config item: %w", err)
	}
	if done.RowsAffected() == 0 {
		return Version{}, ErrExists
	}
	v := record(tx, i, created, note)
	tx.Audit(i.entry("config.item.created", nil, i.traced()))
	return v, i.put(tx)
}

// update stores an item's new state.
func update(tx *commit.Tx, i *Item) {
	tx.Later("update config item", `
		UPDATE config_items SET default_value = $2, description = $3, rule = $4, salt = $5, is_archived = $6,
			current_version = $7, updated_at = $8
		WHERE id = $1`,
		i.ID, i.DefaultValue, i.Description, i.Rule.Serialize(), i.Salt, i.IsArchived, i.CurrentVersion, i.UpdatedAt)
}

// record adds the version that the item's state is now. Its number is the item's, whose
// row is locked.
func record(tx *commit.Tx, i *Item, action string, note *string) Version {
	v := Version{
		ID: id.New(), ItemID: i.ID, VersionNumber: i.CurrentVersion, Action: action, ValueSnapshot: i.DefaultValue,
		RuleSnapshot: i.Rule.Serialize(), ActorID: tx.Origin.Actor.ID, Note: note, CreatedAt: instant.Of(i.UpdatedAt),
	}
	if email := tx.Origin.Actor.Email; email != "" {
		v.ActorEmail = &email
	}
	tx.Later("insert config version", `
		INSERT INTO config_versions (id, item_id, version_number, action, value_snapshot, rule_snapshot, actor_id, actor_email, note, created_at)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
		v.ID, v.ItemID, v.VersionNumber, v.Action, v.ValueSnapshot, v.RuleSnapshot, v.ActorID, v.ActorEmail, v.Note, i.UpdatedAt)
	return v
}

// change stores a patched item: a version is written when value or rule change; a patch
// that changes nothing leaves no trace.
func change(tx *commit.Tx, before, after *Item, note *string) error {
	decides := !before.decidesAs(after)
	if !decides && before.Description == after.Description && before.IsArchived == after.IsArchived {
		return nil
	}
	if decides {
		after.CurrentVersion++
	}
	after.UpdatedAt = instant.Next(before.UpdatedAt)
	update(tx, after)
	if decides {
		record(tx, after, changed, note)
	}
	action := "config.item.published"
	if after.IsArchived && !before.IsArchived {
		action = "config.item.archived"
	}
	tx.Audit(after.entry(action, before.traced(), after.traced()))
	if !decides && before.IsArchived == after.IsArchived {
		return nil // a description is nothing that edges know
	}
	return after.put(tx)
}

// rollback makes the item what it was at a version, as a new version.
func rollback(tx *commit.Tx, i *Item, target Version, note *string) (Version, error) {
	before, previous := i.traced(), i.CurrentVersion
	i.DefaultValue, i.Rule = target.ValueSnapshot, nil
	if target.RuleSnapshot != nil {
		if err := json.Unmarshal([]byte(*target.RuleSnapshot), &i.Rule); err != nil {
			return Version{}, fmt.Errorf("read rule of config version %s: %w", target.ID, err)
		}
	}
	i.CurrentVersion++
	i.UpdatedAt = instant.Next(i.UpdatedAt)
	update(tx, i)
	v := record(tx, i, rolledBack, note)
	entry := i.entry("config.item.rolled_back", before, i.traced())
	entry.Metadata = map[string]any{"version_id": target.ID, "version_number": target.VersionNumber}
	tx.Audit(entry)
	tx.Emit(commit.Event{
		Name: "config.item.rolled_back", OrganizationID: i.OrganizationID, ProjectID: i.ProjectID, Environment: i.Environment,
		Data: map[string]any{"item": i.view(), "version": v, "rule": i.Rule, "previous_version": previous},
	})
	return v, i.put(tx)
}
