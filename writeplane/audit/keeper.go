package audit

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/writeplane/access"
	"skerry/writeplane/postgres"
)

// retention is how long the authoritative store keeps entries of each class
// (specification, Audit retention by tier).
var retention = map[string]func(time.Time) time.Time{
	access.Hobby:      func(t time.Time) time.Time { return t.AddDate(0, 0, 90) },
	access.Pro:        func(t time.Time) time.Time { return t.AddDate(1, 0, 0) },
	access.Growth:     func(t time.Time) time.Time { return t.AddDate(2, 0, 0) },
	access.Enterprise: func(t time.Time) time.Time { return t.AddDate(7, 0, 0) },
}

// Keeper makes the log's partitions ahead of time and drops those whose time is over.
// It works as the tables' owner: the program's own role can do neither.
type Keeper struct {
	owner    *pgxpool.Pool
	mirror   Mirror        // may be nil
	patience time.Duration // with the mirror
	now      func() time.Time
}

// NewKeeper returns the keeper; owner logs in as the owner of the tables.
func NewKeeper(owner *pgxpool.Pool, mirror Mirror) *Keeper {
	return &Keeper{owner: owner, mirror: mirror, patience: mirrorPatience, now: time.Now}
}

const (
	keepEvery   = time.Hour
	keepRetry   = time.Minute
	monthsAhead = 3
)

// Run keeps until ctx ends. Several processes may: what one has done, another finds done.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		wait := keepEvery
		if err := k.Keep(ctx); err != nil && ctx.Err() == nil {
			slog.Error("audit retention", "error", err)
			wait = keepRetry
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil
		}
	}
}

// waitBriefly is for the locks that change which partitions there are. A long read of
// the log, such as an export, holds them up, and mutations wait behind: give up soon,
// come again.
const waitBriefly = `SET LOCAL lock_timeout = '2s'`

// MakeMonths makes the partitions of the months to come.
func (k *Keeper) MakeMonths(ctx context.Context) error {
	for n := range monthsAhead {
		month := monthOf(k.now()).AddDate(0, n, 0)
		err := postgres.InTx(ctx, k.owner, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, waitBriefly); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, `SELECT audit_make_month($1)`, month)
			return err
		})
		if err != nil {
			return fmt.Errorf("make partitions of %s: %w", month.Format("2006-01"), err)
		}
	}
	return nil
}

// Keep makes the partitions of the months to come and drops those past retention.
func (k *Keeper) Keep(ctx context.Context) error {
	if err := k.MakeMonths(ctx); err != nil {
		return err
	}
	now, err := postgres.Earlier(ctx, k.owner, k.now())
	if err != nil {
		return err
	}
	if err := k.keepMirror(ctx, now.Add(-mirrorKeeps)); err != nil {
		return err // what it has is not known, so nothing is dropped
	}
	partitions, err := k.partitions(ctx)
	if err != nil {
		return err
	}
	var faults []error
	for _, p := range partitions {
		if retention[p.class](p.end).After(now) {
			continue
		}
		if err := k.drop(ctx, p.name); err != nil {
			faults = append(faults, fmt.Errorf("drop %s: %w", p.name, err))
		}
	}
	return errors.Join(faults...)
}

// keepMirror lets the mirror drop what is past its retention, and corrects the cursors by
// how far the mirror says that it has each chain.
func (k *Keeper) keepMirror(ctx context.Context, before time.Time) error {
	if k.mirror == nil {
		return nil
	}
	// Read first: a mirror has what a cursor says before the cursor says so.
	cursors, err := postgres.All(ctx, k.owner, "read the mirror's cursors", pgx.RowToStructByPos[mirrored], `SELECT organization_id, seq FROM audit_mirrored`)
	if err != nil {
		return err
	}
	asked, cancel := context.WithTimeout(ctx, k.patience)
	defer cancel()
	fault := k.mirror.Keep(asked, before)
	reached, err := k.mirror.Reached(asked)
	if err != nil {
		return errors.Join(fault, err)
	}
	return errors.Join(fault, k.believe(ctx, cursors, reached))
}

// mirrored is how far a chain is thought to be in the mirror.
type mirrored struct {
	OrganizationID string
	Seq            int64
}

// believe moves cursors back to where the mirror really is, when it is another one, or was
// restored to an earlier time.
func (k *Keeper) believe(ctx context.Context, cursors []mirrored, reached map[string]Position) error {
	var organizations []string
	var seqs []int64
	var times []time.Time
	for _, cursor := range cursors {
		has, some := reached[cursor.OrganizationID]
		if !some {
			has = beginning()
		}
		if cursor.Seq > has.Seq {
			organizations, seqs, times = append(organizations, cursor.OrganizationID), append(seqs, has.Seq), append(times, has.At)
		}
	}
	if len(organizations) == 0 {
		return nil
	}
	slog.WarnContext(ctx, "the audit mirror has lost entries, which are copied again", "organizations", len(organizations))
	_, err := k.owner.Exec(ctx, `
		UPDATE audit_mirrored m SET seq = r.seq, at = r.at FROM unnest($1::uuid[], $2::bigint[], $3::timestamptz[]) AS r (organization_id, seq, at)
		WHERE m.organization_id = r.organization_id AND m.seq > r.seq`, organizations, seqs, times)
	if err != nil {
		return fmt.Errorf("move the mirror's cursors back: %w", err)
	}
	return nil
}

// partition is one month of one class.
type partition struct {
	name, class string
	end         time.Time
}

var partitionName = regexp.MustCompile(`^audit_entries_(hobby|pro|growth|enterprise)_(\d{6})$`)

func (k *Keeper) partitions(ctx context.Context) ([]partition, error) {
	names, err := postgres.All(ctx, k.owner, "list partitions", pgx.RowTo[string], `
		SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_inherits j ON j.inhrelid = i.inhparent
		WHERE j.inhparent = 'audit_entries'::regclass ORDER BY c.relname`)
	if err != nil {
		return nil, err
	}
	var out []partition
	for _, name := range names {
		match := partitionName.FindStringSubmatch(name)
		if match == nil {
			continue
		}
		month, err := time.Parse("200601", match[2])
		if err != nil {
			continue
		}
		out = append(out, partition{name: name, class: match[1], end: month.AddDate(0, 1, 0)})
	}
	return out, nil
}

// errUnmirrored keeps a partition until the mirror has its entries.
var errUnmirrored = errors.New("the mirror has not all of its entries yet")

// anchorSQL writes one anchor for each run of neighbours in a chain.
const anchorSQL = `
INSERT INTO audit_anchors (organization_id, first_seq, last_seq, last_hash, dropped_at)
SELECT organization_id, min(seq), max(seq), (array_agg(hash ORDER BY seq DESC))[1], now()
FROM (SELECT organization_id, seq, hash, seq - row_number() OVER (PARTITION BY organization_id ORDER BY seq) AS run FROM %s) AS e
GROUP BY organization_id, run`

// drop takes a partition away and leaves anchors, in one transaction, unless another
// process is at it. name comes from the catalogue and matches partitionName.
func (k *Keeper) drop(ctx context.Context, name string) error {
	return postgres.InTx(ctx, k.owner, func(tx pgx.Tx) error {
		// Two that drop would each read what the other wants to take away.
		var alone bool
		if err := tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock(hashtextextended('audit retention', 0))`).Scan(&alone); err != nil || !alone {
			return err
		}
		if _, err := tx.Exec(ctx, waitBriefly); err != nil {
			return err
		}
		var exists bool
		if err := tx.QueryRow(ctx, `SELECT to_regclass($1) IS NOT NULL`, name).Scan(&exists); err != nil || !exists {
			return err
		}
		if k.mirror != nil {
			var missing bool
			err := tx.QueryRow(ctx, `SELECT EXISTS (SELECT FROM `+name+` e LEFT JOIN audit_mirrored m USING (organization_id) WHERE e.seq > coalesce(m.seq, 0))`).Scan(&missing)
			if err != nil {
				return err
			}
			if missing {
				return errUnmirrored
			}
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf(anchorSQL, name)); err != nil {
			return fmt.Errorf("leave anchors: %w", err)
		}
		if _, err := tx.Exec(ctx, `DROP TABLE `+name); err != nil {
			return err
		}
		match := partitionName.FindStringSubmatch(name)
		if _, err := tx.Exec(ctx, `DELETE FROM audit_facets WHERE retention = $1 AND month = to_date($2, 'YYYYMM')`, match[1], match[2]); err != nil {
			return fmt.Errorf("drop facets: %w", err)
		}
		slog.Info("audit retention dropped a month", "partition", name)
		return nil
	})
}
