package campaign

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"

	"skerry/pkg/pgserver"
)

// replica is a second PostgreSQL server that follows the first one by streaming.
type replica struct{ server *pgserver.Server }

// addReplica copies the primary as pg_basebackup does, starts the copy, and makes
// commits wait for it. From then on clients know both servers and take the one that
// writes.
func (c *cluster) addReplica(ctx context.Context) error {
	found, err := pgserver.Find(ctx)
	if err != nil || len(found) == 0 {
		return fmt.Errorf("find PostgreSQL: %w", err)
	}
	dir := filepath.Join(c.dir, "replica")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make a folder: %w", err)
	}
	data := filepath.Join(dir, "cluster")
	copying := exec.CommandContext(ctx, filepath.Join(found[0].Dir, "pg_basebackup"), "--pgdata", data, "--dbname", c.postgres.URL(),
		"--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast")
	if out, err := copying.CombinedOutput(); err != nil {
		return fmt.Errorf("pg_basebackup: %w: %s", err, out)
	}
	if err := sameOwner(filepath.Join(c.pgConfig.Dir, "cluster"), data); err != nil {
		return err
	}
	password, err := os.ReadFile(filepath.Join(c.pgConfig.Dir, "password"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "password"), password, 0o600)
	}
	if err != nil {
		return fmt.Errorf("give the replica its password: %w", err)
	}
	server, err := pgserver.Start(ctx, pgserver.Config{Dir: dir, Durable: true})
	if err != nil {
		return err
	}
	c.replica = &replica{server}
	if err := execAll(ctx, c.postgres.URL(), "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()"); err != nil {
		return err
	}
	both, err := url.Parse(c.postgres.URL())
	if err != nil {
		return err
	}
	both.Host += "," + net.JoinHostPort("127.0.0.1", strconv.Itoa(server.Port()))
	query := both.Query()
	query.Set("target_session_attrs", "read-write")
	query.Set("connect_timeout", "2")
	both.RawQuery = query.Encode()
	c.postgresURL = both.String()
	return nil
}

// promote kills the primary and makes the replica one that writes, alone.
func (r *replica) promote(ctx context.Context, primary *pgserver.Server) error {
	if err := syscall.Kill(primary.PID(), syscall.SIGKILL); err != nil {
		return fmt.Errorf("kill the primary: %w", err)
	}
	<-primary.Done()
	// Its own setting, which came with the copy or not at all, must not make it wait for
	// a replica of its own.
	return execAll(ctx, r.server.URL(), "SELECT pg_promote(true, 60)", "ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
}

func execAll(ctx context.Context, at string, statements ...string) error {
	conn, err := pgx.Connect(ctx, at)
	if err != nil {
		return fmt.Errorf("reach the database: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, s := range statements {
		if _, err := conn.Exec(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

// sameOwner gives a tree to the owner of another one, where we may.
func sameOwner(as, tree string) error {
	info, err := os.Stat(as)
	if err != nil {
		return fmt.Errorf("look for an owner: %w", err)
	}
	owner, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return errors.New("this system does not tell who owns a file")
	}
	return filepath.WalkDir(tree, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, int(owner.Uid), int(owner.Gid))
	})
}
