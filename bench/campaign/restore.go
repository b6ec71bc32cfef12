package campaign

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"skerry/pkg/pgserver"
)

// restore copies the stopped database, lets everything go on, and then puts the old copy
// in its place and declares it, as an operator does after a disaster. What clients were
// told in between is gone with the newer database: that is what a restore means, so the
// ledger forgives it. Everything later counts, nothing may be doubled, every edge must
// follow to the new epoch, and no edge's revision may fall.
//
// The write plane is left running throughout: it has to notice by itself.
func (c *cluster) restore(l *ledger) action {
	cluster := filepath.Join(c.pgConfig.Dir, "cluster")
	copied := filepath.Join(c.dir, "backup")
	return action{kind: "restored from a copy", target: "PostgreSQL",
		do: func() error {
			if err := c.postgres.Stop(); err != nil {
				return err
			}
			err := errors.Join(os.RemoveAll(copied), copyFolder(cluster, copied))
			return errors.Join(err, c.launchPostgres(context.Background()))
		},
		undo: func(ctx context.Context) error {
			if err := c.postgres.Stop(); err != nil {
				return err
			}
			l.forgive()
			if err := errors.Join(os.RemoveAll(cluster), os.Rename(copied, cluster), c.launchPostgres(ctx)); err != nil {
				return err
			}
			if _, err := c.command(ctx, "restored", "--postgres-url", c.postgresURL); err != nil {
				return err
			}
			return eventually(ctx, c.planes[0].ready)
		}}
}

// copyFolder keeps owners and modes, which PostgreSQL insists on.
func copyFolder(from, to string) error {
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the database: %w: %s", err, out)
	}
	return nil
}

func (c *cluster) launchPostgres(ctx context.Context) (err error) {
	c.postgres, err = pgserver.Start(ctx, c.pgConfig)
	return err
}

// forgive lets go of everything that clients have been told so far.
func (l *ledger) forgive() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.forgiven = l.events.Load()
	l.confirmed.Store(0)
	l.restores++
}
