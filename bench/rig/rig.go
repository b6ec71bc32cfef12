// Package rig runs the processes of a benchmark, each on the core it belongs to, and
// tells how busy they were.
//
// A server under measurement gets one core (GOMAXPROCS=1, pinned) and the load the
// other. A figure counts only when the server's core was nearly always busy: else it
// is the generator that was measured.
package rig

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a child of the benchmark.
type Process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stdout *bufio.Reader
	stderr *tail
	done   chan struct{}
	err    error // written before done is closed
}

// Config says what to start.
type Config struct {
	Path  string
	Args  []string
	Env   []string // besides the benchmark's own
	Core  int      // the core to pin to; negative: any
	Procs int      // GOMAXPROCS; 0 leaves it alone
}

// Start starts a process in a group of its own, so that Kill ends its children too.
func Start(ctx context.Context, c Config) (*Process, error) {
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...)
	if c.Procs > 0 {
		cmd.Env = append(cmd.Env, "GOMAXPROCS="+strconv.Itoa(c.Procs))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	// Not cmd.StdoutPipe, which must be read to its end before anybody waits.
	stdout, childEnd, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	p := &Process{cmd: cmd, stdin: stdin, stdout: bufio.NewReader(stdout), stderr: &tail{}, done: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = childEnd, p.stderr
	err = cmd.Start()
	_ = childEnd.Close()
	if err != nil {
		_ = stdout.Close()
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	go func() {
		defer close(p.done)
		p.err = cmd.Wait()
		_ = stdout.Close()
	}()
	if c.Core >= 0 {
		if err := Pin(cmd.Process.Pid, c.Core); err != nil {
			p.Kill()
			return nil, err
		}
	}
	return p, nil
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Stdin is what the process reads.
func (p *Process) Stdin() io.WriteCloser { return p.stdin }

// ReadLine reads a line of what the process prints.
func (p *Process) ReadLine() (string, error) {
	line, err := p.stdout.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s ended: %s", p.cmd.Path, p.stderr)
	}
	return strings.TrimSpace(line), nil
}

// Signal sends a signal to the process alone.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Stop asks the process to end (SIGTERM) and kills it when it has not within patience.
func (p *Process) Stop(patience time.Duration) error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.AfterFunc(patience, p.Kill)
	defer timer.Stop()
	<-p.done
	return p.err
}

// Kill ends the process and its group at once.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.done
}

// Wait waits for the process to end by itself.
func (p *Process) Wait() error {
	<-p.done
	return p.err
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Until asks every 20 ms, until check succeeds, the process ends or ctx does. what is
// waited for, in errors.
func (p *Process) Until(ctx context.Context, what string, check func() error) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waited for %s: %w (%s)", what, err, lastLine(p.Stderr()))
		case <-p.Done():
			return fmt.Errorf("waited for %s, but the process ended: %s", what, lastLine(p.Stderr()))
		case <-tick.C:
		}
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// Stderr is the last part of what the process wrote there.
func (p *Process) Stderr() string { return p.stderr.String() }

// CPU is the processor time that the process has used so far.
func (p *Process) CPU() (time.Duration, error) { return processorTime(p.PID()) }

// Memory is the process's resident set in bytes.
func (p *Process) Memory() (int64, error) { return resident(p.PID()) }

const ticksPerSecond = 100 // USER_HZ, which is 100 on every Linux that Go supports

// processorTime is the time, user and system, of a process with all its threads.
func processorTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read processor time: %w", err)
	}
	// The second field is the name in parentheses and may hold blanks.
	_, rest, ok := bytes.Cut(stat, []byte(") "))
	fields := strings.Fields(string(rest))
	if !ok || len(fields) < 13 {
		return 0, fmt.Errorf("read processor time: %q", stat)
	}
	var ticks int64
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("read processor time: %w", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond, nil
}

// resident is the resident set of a process in bytes.
func resident(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("read memory: %w", err)
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("read memory: no VmRSS")
}

// tail keeps the last bytes written to it.
type tail struct {
	mu   sync.Mutex
	kept []byte
}

const tailLen = 8 << 10

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, b...)
	if over := len(t.kept) - tailLen; over > 0 {
		t.kept = t.kept[over:]
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
