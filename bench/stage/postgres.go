package stage

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// PausePostgres stops every process of the centre's database (SIGSTOP).
func (s *Stage) PausePostgres(context.Context) error {
	pids, err := s.postgresPIDs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil && err != syscall.ESRCH {
			return fmt.Errorf("stop the database: %w", err)
		}
	}
	return nil
}

// ResumePostgres lets them go on.
func (s *Stage) ResumePostgres() {
	pids, err := s.postgresPIDs()
	if err != nil {
		return
	}
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

// postgresPIDs are the postmaster and its children.
func (s *Stage) postgresPIDs() ([]int, error) {
	found, err := filepath.Glob(filepath.Join(s.dir, "centre", "postgres", "*", "postmaster.pid"))
	if err == nil && len(found) == 0 {
		found, err = filepath.Glob(filepath.Join(s.dir, "centre", "postgres", "postmaster.pid"))
	}
	if err != nil || len(found) == 0 {
		return nil, fmt.Errorf("find the database's process under %s", s.dir)
	}
	content, err := os.ReadFile(found[0])
	if err != nil {
		return nil, fmt.Errorf("find the database's process: %w", err)
	}
	first, _, _ := strings.Cut(string(content), "\n")
	postmaster, err := strconv.Atoi(first)
	if err != nil {
		return nil, fmt.Errorf("find the database's process: %w", err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", postmaster, postmaster))
	if err != nil {
		return nil, fmt.Errorf("find the database's processes: %w", err)
	}
	pids := []int{postmaster} // first: it must not start new ones
	for _, field := range strings.Fields(string(children)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("find the database's processes: %w", err)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// PlainCopy copies rows like the benchmark's events into a table like theirs on one
// connection, and tells how many a second that makes: what storing cannot exceed by
// much. The table is dropped again.
func (s *Stage) PlainCopy(ctx context.Context, rows int) (perSecond float64, err error) {
	conn, err := pgx.Connect(ctx, s.Credentials.PostgresURL)
	if err != nil {
		return 0, fmt.Errorf("reach the benchmark's database: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if _, err := conn.Exec(ctx, "DROP TABLE IF EXISTS bench_copy; CREATE TABLE bench_copy (LIKE events INCLUDING ALL)"); err != nil {
		return 0, fmt.Errorf("make a table like events: %w", err)
	}
	defer func() { _, _ = conn.Exec(context.WithoutCancel(ctx), "DROP TABLE bench_copy") }()
	now := time.Now()
	properties := `{"$session_id":"0198c000-aaaa-7000-8000-000000000001","plan":"pro","amount":1299,"currency":"EUR","items":3,"coupon":"none","referrer":"newsletter"}`
	defaults := `{"$os":"iOS 19.1","$device_model":"iPhone17,2"}`
	project := "0198c000-0000-7000-8000-000000000001"
	columns := []string{"received_at", "timestamp", "id", "project_id", "number", "environment", "rewritten", "edge", "event_name", "distinct_id", "lib_version", "properties", "default_properties"}
	row := make([]any, len(columns))
	began := time.Now()
	i := 0
	_, err = conn.CopyFrom(ctx, pgx.Identifier{"bench_copy"}, columns, pgx.CopyFromFunc(func() ([]any, error) {
		if i++; i > rows {
			return nil, nil
		}
		copy(row, []any{now, now, project, project, int64(i), int16(1), false, "bench", "checkout_completed", "user-" + strconv.Itoa(i), "3.2.1", properties, defaults})
		return row, nil
	}))
	if err != nil {
		return 0, fmt.Errorf("plain copy: %w", err)
	}
	return float64(rows) / time.Since(began).Seconds(), nil
}
