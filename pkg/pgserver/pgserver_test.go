package pgserver

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
)

// childEnv makes the test binary run a server on the folder it names and wait
// to be killed.
const childEnv = "PGSERVER_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func child(dir string) {
	s, err := Start(context.Background(), testConfig(dir))
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println("pid", s.PID())
	select {}
}

func testConfig(dir string) Config {
	return Config{Dir: dir, InitCache: filepath.Join(os.TempDir(), "skerry-initdb-"+strconv.Itoa(os.Geteuid()))}
}

func start(t *testing.T, cfg Config) *Server {
	t.Helper()
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatalf("start: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return s
}

func exec1(t *testing.T, url, sql string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(t.Context())
	if _, err := conn.Exec(t.Context(), sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func count(t *testing.T, url, table string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	defer conn.Close(t.Context())
	if err := conn.QueryRow(t.Context(), `select count(*) from `+table).Scan(&n); err != nil {
		t.Fatalf("count %s: %v", table, err)
	}
	return n
}

func TestDurableServerKeepsDataAndPasswordOverRestart(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pg")
	s := start(t, Config{Dir: dir, Durable: true})
	exec1(t, s.URL(), `create table kept (id int)`)
	exec1(t, s.URL(), `insert into kept values (1), (2)`)
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	if _, err := pgx.Connect(t.Context(), s.URL()); err == nil {
		t.Fatal("the server still answers after Stop")
	}
	again := start(t, Config{Dir: dir, Durable: true, Port: s.Port()})
	if again.URL() != s.URL() {
		t.Errorf("URL changed over a restart on the same port: %s, was %s", again.URL(), s.URL())
	}
	if n := count(t, again.URL(), "kept"); n != 2 {
		t.Errorf("rows after restart: %d, want 2", n)
	}
	for _, name := range []string{"password", "url", "postgres.log", "lock"} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, %v; want 0600", name, fi.Mode(), err)
		}
	}
}

func TestServesBelowAFolderTheAccountCannotEnter(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root changes accounts")
	}
	locked := filepath.Join(t.TempDir(), "locked")
	if err := os.Mkdir(locked, 0o700); err != nil {
		t.Fatal(err)
	}
	// Without the cache, so that initdb has to work there too.
	s := start(t, Config{Dir: filepath.Join(locked, "deep", "pg"), Durable: true})
	exec1(t, s.URL(), `create table t (id int)`)
	exec1(t, s.URL(), `checkpoint`)
	fi, err := os.Stat("/proc/" + strconv.Itoa(s.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if fi.Sys().(*syscall.Stat_t).Uid == 0 {
		t.Error("the server runs as root")
	}
}

func TestSecondStartOnTheSameFolderIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, testConfig(dir))
	_, err := Start(t.Context(), testConfig(dir))
	want := dir + " is in use by process " + strconv.Itoa(os.Getpid())
	if err == nil || err.Error() != want {
		t.Fatalf("second start: %v, want %q", err, want)
	}
	exec1(t, s.URL(), `select 1`)
}

func TestWrongPasswordIsRefused(t *testing.T) {
	t.Parallel()
	s := start(t, testConfig(t.TempDir()))
	wrong := connURL("guess", s.Port(), "skerry")
	if _, err := pgx.Connect(t.Context(), wrong); err == nil || !strings.Contains(err.Error(), "28P01") {
		t.Fatalf("connect with a wrong password: %v, want invalid_password", err)
	}
}

func TestServerDiesWithAKilledParentAndRecovers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "pid ") {
		t.Fatalf("child says %q, %v", line, err)
	}
	url, err := os.ReadFile(filepath.Join(dir, "url"))
	if err != nil {
		t.Fatal(err)
	}
	exec1(t, strings.TrimSpace(string(url)), `create table kept (id int)`)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	pid, err := strconv.Atoi(strings.Fields(line)[1])
	if err != nil {
		t.Fatal(err)
	}
	awaitGone(t, pid)
	s := start(t, testConfig(dir))
	if n := count(t, s.URL(), "kept"); n != 0 {
		t.Errorf("rows: %d, want 0", n)
	}
}

// awaitGone polls, because a process that is not our child announces its end
// to nobody.
func awaitGone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		raw, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || strings.Contains(string(raw), ") Z ") {
			return
		}
		<-time.After(10 * time.Millisecond)
	}
	t.Fatalf("process %d outlived its parent", pid)
}

func TestStartEndsASurvivingPostmaster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, testConfig(dir))
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	c, err := openCluster(t.Context(), s.cfg)
	if err != nil {
		t.Fatal(err)
	}
	data, files, err := c.reach(c.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(files)
	args := []string{"-D", data}
	for _, set := range settings(s.Port(), false) {
		args = append(args, "-c", set)
	}
	survivor := c.command(context.Background(), "postgres", args, files)
	survivor.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: survivor.SysProcAttr.Credential} // it does not end with us
	if err := survivor.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- survivor.Wait() }()
	for len(orphans(c.dir)) == 0 {
		<-time.After(5 * time.Millisecond)
	}
	again := start(t, testConfig(dir))
	if err := <-ended; err != nil {
		t.Logf("the survivor ended: %v", err)
	}
	exec1(t, again.URL(), `select 1`)
}

func TestPIDFileOfAReusedNumberDoesNotBlock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, testConfig(dir))
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "60")
	if fi, err := os.Stat(filepath.Join(dir, "cluster")); err == nil && os.Geteuid() == 0 {
		st := fi.Sys().(*syscall.Stat_t)
		other.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: st.Uid, Gid: st.Gid}}
	}
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	pidfile := fmt.Sprintf("%d\n%s\n1700000000\n5432\n\n127.0.0.1\n", other.Process.Pid, filepath.Join(dir, "cluster"))
	if err := os.WriteFile(filepath.Join(dir, "cluster", "postmaster.pid"), []byte(pidfile), 0o600); err != nil {
		t.Fatal(err)
	}
	again := start(t, testConfig(dir))
	exec1(t, again.URL(), `select 1`)
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the unrelated process was ended: %v", err)
	}
}

func TestKilledServerIsReportedAndStartsAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := start(t, testConfig(dir))
	exec1(t, s.URL(), `create table kept (id int)`)
	// A session that is busy keeps its backend, and so the shared memory,
	// for a moment after the postmaster is gone.
	conn, err := pgx.Connect(t.Context(), s.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	if err := syscall.Kill(s.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := s.Err(); err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("Err after kill: %v, want one that says killed", err)
	}
	if err := s.Stop(); err != nil {
		t.Fatal(err)
	}
	again := start(t, testConfig(dir))
	if n := count(t, again.URL(), "kept"); n != 0 {
		t.Errorf("rows: %d, want 0", n)
	}
}

func TestTakenPortIsSaidOnOneLine(t *testing.T) {
	t.Parallel()
	s := start(t, testConfig(t.TempDir()))
	cfg := testConfig(t.TempDir())
	cfg.Port = s.Port()
	_, err := Start(t.Context(), cfg)
	if err == nil || !strings.Contains(err.Error(), "could not bind") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("start on a taken port: %v", err)
	}
}

func TestHalfMadeClusterIsMadeAnew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "cluster.new", "base"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := start(t, testConfig(dir))
	exec1(t, s.URL(), `select 1`)
}

func TestProgramsAreFoundBehindALinkOnPath(t *testing.T) {
	real, err := Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(real[0].Dir, "postgres"), filepath.Join(dir, "postgres")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	found, err := find(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(found) != 1 || found[0].Dir != real[0].Dir {
		t.Errorf("found %v, want the folder behind the link, %s", found, real[0].Dir)
	}
}

func TestMissingProgramsNameThePackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := find(t.Context(), []string{filepath.Join(t.TempDir(), "*", "bin")})
	if err == nil || !strings.Contains(err.Error(), "apt-get install postgresql") || strings.Contains(err.Error(), "\n") {
		t.Fatalf("error %v does not name the package on one line", err)
	}
}

func TestClusterOfAnotherMajorVersionNamesThePackage(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "cluster"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cluster", "PG_VERSION"), []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), testConfig(dir))
	if err == nil || !strings.Contains(err.Error(), `install the package "postgresql-9"`) {
		t.Fatalf("error %v does not name the package", err)
	}
}

func TestConfigNamesTheWrongField(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]Config{
		"Dir":       {},
		"Port":      {Dir: "x", Port: 70000},
		"InitCache": {Dir: "x", Durable: true, InitCache: "y"},
	} {
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Validate: %v, want it to name %s", err, want)
		}
	}
}
