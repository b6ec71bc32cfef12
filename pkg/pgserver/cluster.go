package pgserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"skerry/pkg/atomicfile"
)

// cluster is an initialized PGDATA folder with all that is needed to run it.
type cluster struct {
	dir      string // PGDATA
	bin      Binaries
	account  account
	password string
}

// account is whom the server runs as. The zero value is ourselves.
type account struct {
	drop     bool // we are root and must become uid, gid
	uid, gid int
}

// openCluster returns the cluster under cfg.Dir, making it first when absent.
// A cluster is made under another name and renamed, so that a start which
// was killed half-way leaves nothing that looks like one.
func openCluster(ctx context.Context, cfg Config) (*cluster, error) {
	c := &cluster{dir: filepath.Join(cfg.Dir, "cluster")}
	major, err := clusterMajor(c.dir)
	if err != nil {
		return nil, err
	}
	candidates, err := choose(ctx, cfg.BinDir, major)
	if err != nil {
		return nil, err
	}
	if c.account, err = chooseAccount(c.dir); err != nil {
		return nil, err
	}
	if major != 0 {
		c.bin = candidates[0]
		c.password, err = readSecret(filepath.Join(cfg.Dir, "password"))
		return c, err
	}
	var first error
	for _, bin := range candidates {
		c.bin = bin
		if err = c.create(ctx, cfg); err == nil {
			return c, nil
		}
		if first == nil {
			first = err
		}
		if ctx.Err() != nil {
			break
		}
	}
	return nil, first
}

// clusterMajor is the version that made the cluster, 0 when there is none.
func clusterMajor(dir string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(dir, "PG_VERSION"))
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(dir); err == nil {
			return 0, fmt.Errorf("%s exists but is no PostgreSQL cluster (no PG_VERSION): move it away", dir)
		}
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	major, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("read %s/PG_VERSION: %w", dir, err)
	}
	return major, nil
}

// chooseAccount keeps the owner of an existing cluster, because PostgreSQL
// insists on it; for a new one root takes postgres, else nobody.
func chooseAccount(dir string) (account, error) {
	if os.Geteuid() != 0 {
		return account{}, nil
	}
	if fi, err := os.Stat(dir); err == nil {
		if st, ok := fi.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
			return account{drop: true, uid: int(st.Uid), gid: int(st.Gid)}, nil
		}
	}
	for _, name := range []string{"postgres", "_postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 == nil && err2 == nil && uid > 0 {
			return account{drop: true, uid: uid, gid: gid}, nil
		}
	}
	return account{}, errors.New("PostgreSQL refuses to run as root and there is neither a user postgres nor a user nobody")
}

// create makes the cluster, from the cache where one is configured.
func (c *cluster) create(ctx context.Context, cfg Config) error {
	if cfg.InitCache != "" {
		password, err := cachedCluster(ctx, c, cfg)
		if err != nil {
			return err
		}
		c.password = password
		return atomicfile.Write(filepath.Join(cfg.Dir, "password"), []byte(password+"\n"))
	}
	// The password is on disk before the cluster exists: a cluster without
	// its password would be lost, a password without a cluster is replaced.
	c.password = rand.Text()
	if err := atomicfile.Write(filepath.Join(cfg.Dir, "password"), []byte(c.password+"\n")); err != nil {
		return err
	}
	return c.initdb(ctx, c.dir, cfg.Durable)
}

// initdb makes a cluster at dir, complete or not at all.
func (c *cluster) initdb(ctx context.Context, dir string, durable bool) error {
	draft := dir + ".new"
	if err := os.RemoveAll(draft); err != nil {
		return err
	}
	if err := os.Mkdir(draft, 0o700); err != nil {
		return err
	}
	pw, err := c.passwordFile()
	if err != nil {
		return err
	}
	defer pw.Close()
	data, files, err := c.reach(draft)
	if err != nil {
		return err
	}
	defer closeAll(files)
	files = append(files, pw)
	args := []string{
		"-D", data, "--username=" + superuser, "--auth=scram-sha-256",
		"--pwfile=/dev/fd/" + strconv.Itoa(2+len(files)),
		"--encoding=UTF8", "--no-locale",
	}
	if durable {
		args = append(args, "--data-checksums")
	} else {
		args = append(args, "--no-sync")
	}
	cmd := c.command(ctx, "initdb", args, files)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		os.RemoveAll(draft)
		if ctx.Err() != nil {
			return fmt.Errorf("initdb: %w", ctx.Err())
		}
		return fmt.Errorf("initdb (%s): %s", c.bin.Dir, telling(out.String()))
	}
	return os.Rename(draft, dir)
}

// passwordFile is a nameless file with the password that the account can
// read through an inherited descriptor: a named one might stand in a folder
// it cannot enter.
func (c *cluster) passwordFile() (*os.File, error) {
	f, err := os.CreateTemp("", "skerry-pw-*")
	if err != nil {
		return nil, err
	}
	os.Remove(f.Name())
	if c.account.drop {
		err = f.Chown(c.account.uid, c.account.gid)
	}
	if err == nil {
		_, err = f.WriteString(c.password + "\n")
	}
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// command prepares a program of the set: own process group (Ctrl-C in a
// terminal must reach only the parent, which stops the server in its turn),
// no environment of ours, the account's identity.
func (c *cluster) command(ctx context.Context, name string, args []string, files []*os.File) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(c.bin.Dir, name), args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + c.bin.Dir + ":/usr/local/bin:/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	cmd.ExtraFiles = files
	cmd.SysProcAttr = sysProcAttr(c.account)
	return cmd
}

// launch starts the postmaster. Settings are given on the command line, so
// that a newer program's settings hold for an older cluster too.
func (c *cluster) launch(port int, cfg Config) (*process, error) {
	data, files, err := c.reach(c.dir)
	if err != nil {
		return nil, err
	}
	defer closeAll(files)
	args := []string{"-D", data}
	for _, s := range settings(port, cfg.Durable) {
		args = append(args, "-c", s)
	}
	path := filepath.Join(cfg.Dir, "postgres.log")
	log, from, err := openLog(path)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := c.command(context.Background(), "postgres", args, files)
	cmd.Stdout, cmd.Stderr = log, log
	return run(cmd, path, from)
}

func settings(port int, durable bool) []string {
	all := []string{
		"listen_addresses=127.0.0.1",
		"port=" + strconv.Itoa(port),
		"unix_socket_directories=",
		"max_connections=200",
		"password_encryption=scram-sha-256",
		"wal_level=replica",
		"timezone=UTC", "log_timezone=UTC",
		"log_line_prefix=%m [%p] ",
		"log_checkpoints=off",
		"logging_collector=off",
		"jit=off",
		// Parallel plans need /dev/shm, of which containers have 64 MB.
		"max_parallel_workers_per_gather=0",
	}
	if durable {
		return append(all,
			"shared_buffers=256MB", "max_wal_size=2GB", "checkpoint_timeout=10min", "wal_compression=on")
	}
	// Commits still reach the kernel before they are answered: tests kill the
	// server and expect to find what it confirmed.
	return append(all,
		"shared_buffers=48MB", "fsync=off", "full_page_writes=off",
		"max_wal_size=512MB", "checkpoint_timeout=1h")
}

// maxLog is the size past which the log starts anew at the next start.
const maxLog = 16 << 20

func openLog(path string) (f *os.File, from int64, err error) {
	flags := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	fi, err := os.Stat(path)
	if err == nil {
		from = fi.Size()
	}
	if from > maxLog {
		flags |= os.O_TRUNC
		from = 0
	}
	f, err = os.OpenFile(path, flags, 0o600)
	return f, from, err
}

// endOrphans ends every process that an earlier server left on this cluster,
// and only then removes its pid file: while one backend lives, that file is
// what keeps a second server off the same pages. We hold the folder's lock, so
// whatever still runs belongs to a program that is gone.
func (c *cluster) endOrphans(ctx context.Context, log *slog.Logger) error {
	steps := []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGINT, 5 * time.Second}, {syscall.SIGQUIT, 6 * time.Second}, {syscall.SIGKILL, 5 * time.Second}}
	for _, step := range steps {
		pids := orphans(c.dir)
		if len(pids) == 0 {
			return dropPIDFile(c.dir)
		}
		log.Warn("ending a PostgreSQL server that outlived its program", "processes", len(pids), "signal", step.sig.String())
		for _, pid := range pids {
			_ = syscall.Kill(pid, step.sig)
		}
		for end := time.Now().Add(step.wait); time.Now().Before(end) && len(orphans(c.dir)) > 0; {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(20 * time.Millisecond):
			}
		}
	}
	if pids := orphans(c.dir); len(pids) > 0 {
		return fmt.Errorf("process %d, a PostgreSQL server on %s left by an earlier run, does not end", pids[0], c.dir)
	}
	return dropPIDFile(c.dir)
}

func (c *cluster) url(port int, database string) string {
	return connURL(c.password, port, database)
}

func readSecret(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the server's password: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}
