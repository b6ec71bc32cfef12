// Package sandbox parses the files of strangers in a child process: the program
// itself, started with a hidden argument, an empty environment and limits on memory,
// processor time, open files and output.
//
// It promises that whatever a file does to its parser — an endless loop, a panic,
// all the memory there is — costs that child and becomes a *symbolicate.Fault. It
// does not confine the child's view of the file system: the child is our own code,
// and what it reads are numbers, not instructions.
//
// The child has the artifact at descriptor 0, the file for its result at 1 and a
// pipe for its report, one JSON object, at 3.
package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"skerry/writeplane/symbolicate"
)

// argument marks a child on its command line.
const argument = "sandboxed-symbols"

// Config bounds the children. The zero value parses in this very process, which is
// for tests and tools that read their owner's files.
type Config struct {
	// Command starts a child: Self() in a program whose main called Enter.
	Command []string
	// Memory is what a child may allocate, in bytes; 0 means 640 MiB.
	Memory uint64
	// Processor is the processor time of a child; 0 means two minutes.
	Processor time.Duration
	// Output bounds a lookup form in bytes; 0 means 1 GiB.
	Output uint64
	// Parallel is how many children index at once, and how many identify; 0 means 2.
	Parallel int
	// Scratch is the folder of temporary files; "" means the system's.
	Scratch string
}

func (c Config) withDefaults() Config {
	if c.Memory == 0 {
		c.Memory = 640 << 20
	}
	if c.Processor == 0 {
		c.Processor = 2 * time.Minute
	}
	if c.Output == 0 {
		c.Output = 1 << 30
	}
	if c.Parallel == 0 {
		c.Parallel = 2
	}
	return c
}

// Self is the command of a child in a program whose main called Enter, and nil in any
// other: started as a child, that would begin its own work all over again.
func Self() []string {
	if !entered.Load() {
		return nil
	}
	if runtime.GOOS == "linux" {
		return []string{"/proc/self/exe", argument} // still this program when its file was replaced
	}
	path, err := os.Executable()
	if err != nil {
		return nil
	}
	return []string{path, argument}
}

// Runner starts children, a bounded number at once. Those that identify wait for none
// that index: an upload is answered while large files are indexed for minutes.
type Runner struct {
	config Config
	slots  map[string]chan struct{} // by mode
}

// New returns a runner.
func New(config Config) *Runner {
	config = config.withDefaults()
	return &Runner{config: config, slots: map[string]chan struct{}{
		modeIdentify: make(chan struct{}, config.Parallel), modeBuild: make(chan struct{}, config.Parallel),
	}}
}

// Report is what a child found.
type Report struct {
	DebugIDs []string `json:"debug_ids"`
	Warnings []string `json:"warnings"`
	Reason   string   `json:"reason,omitempty"`
	Text     string   `json:"text,omitempty"`
}

func (r Report) fault() error {
	if r.Reason == "" {
		return nil
	}
	return &symbolicate.Fault{Reason: r.Reason, Text: r.Text}
}

// maxReport bounds the report that the parent reads.
const maxReport = 1 << 20

const (
	modeIdentify = "identify"
	modeBuild    = "build"
)

// Identify is symbolicate.Identify for a regular file. A *Fault comes with what was
// found all the same.
func (r *Runner) Identify(ctx context.Context, kind symbolicate.Kind, file *os.File) (Report, error) {
	out, err := r.result()
	if err != nil {
		return Report{}, err
	}
	defer out.Close()
	report, err := r.run(ctx, modeIdentify, kind, file, out)
	if err != nil {
		return report, err
	}
	return report, report.fault()
}

// Build is symbolicate.Build for a regular file. The result is an unlinked file that
// the caller closes.
func (r *Runner) Build(ctx context.Context, kind symbolicate.Kind, file *os.File) (*os.File, Report, error) {
	out, err := r.result()
	if err != nil {
		return nil, Report{}, err
	}
	report, err := r.run(ctx, modeBuild, kind, file, out)
	if err == nil {
		err = report.fault()
	}
	if err == nil {
		err = r.rewind(out)
	}
	if err != nil {
		_ = out.Close()
		return nil, report, err
	}
	return out, report, nil
}

// rewind makes a result ready to be read, if it is not too large.
func (r *Runner) rewind(out *os.File) error {
	size, err := out.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("measure result: %w", err)
	}
	if uint64(size) > r.config.Output {
		return &symbolicate.Fault{Reason: symbolicate.Limit, Text: fmt.Sprintf("the lookup form takes %d bytes", size)}
	}
	_, err = out.Seek(0, io.SeekStart)
	return err
}

func (r *Runner) result() (*os.File, error) {
	out, err := os.CreateTemp(r.config.Scratch, "lookup-")
	if err != nil {
		return nil, fmt.Errorf("make result file: %w", err)
	}
	if err := os.Remove(out.Name()); err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("unlink result file: %w", err)
	}
	return out, nil
}

func (r *Runner) run(ctx context.Context, mode string, kind symbolicate.Kind, file, out *os.File) (Report, error) {
	select {
	case r.slots[mode] <- struct{}{}:
		defer func() { <-r.slots[mode] }()
	case <-ctx.Done():
		return Report{}, ctx.Err()
	}
	if len(r.config.Command) == 0 {
		return work(mode, kind, file, out, r.config.Scratch)
	}
	return r.child(ctx, mode, kind, file, out)
}

func (r *Runner) child(ctx context.Context, mode string, kind symbolicate.Kind, file, out *os.File) (Report, error) {
	// Wall time is a backstop: a child that waits uses no processor time.
	limited, cancel := context.WithTimeout(ctx, 4*r.config.Processor)
	defer cancel()
	reader, writer, err := os.Pipe()
	if err != nil {
		return Report{}, fmt.Errorf("make report pipe: %w", err)
	}
	defer reader.Close()
	args := append(r.config.Command[1:len(r.config.Command):len(r.config.Command)], mode, string(kind),
		strconv.FormatUint(r.config.Memory, 10), strconv.Itoa(int(max(r.config.Processor/time.Second, 1))),
		strconv.FormatUint(r.config.Output, 10), strconv.Itoa(os.Getpid()), r.config.Scratch)
	cmd := exec.CommandContext(limited, r.config.Command[0], args...)
	cmd.Env = []string{"GOMAXPROCS=2", "GOTRACEBACK=none"}
	cmd.Stdin, cmd.Stdout, cmd.ExtraFiles = file, out, []*os.File{writer}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	err = cmd.Start()
	_ = writer.Close()
	if err != nil {
		return Report{}, fmt.Errorf("start sandbox: %w", err)
	}
	raw, readErr := io.ReadAll(io.LimitReader(reader, maxReport+1))
	_ = reader.Close() // a child that still writes gets an error
	waitErr := cmd.Wait()
	if ctx.Err() != nil {
		return Report{}, ctx.Err()
	}
	var report Report
	switch {
	case limited.Err() != nil:
		return report, &symbolicate.Fault{Reason: symbolicate.Limit, Text: "reading the file took too long"}
	case waitErr != nil:
		return report, died(waitErr)
	case readErr != nil:
		return report, fmt.Errorf("read sandbox report: %w", readErr)
	case len(raw) > maxReport:
		return report, &symbolicate.Fault{Reason: symbolicate.Limit, Text: "the file has too many debug ids"}
	}
	if err := json.Unmarshal(bytes.TrimSpace(raw), &report); err != nil {
		return report, fmt.Errorf("read sandbox report: %w", err)
	}
	return report, nil
}

// exitBroken is the child's code for failures that are not the file's.
const exitBroken = 70

// died words the end of a child that gave no report. Go ends with 2 when memory
// runs out, by signal when time or output does; a stack that overflows ends with 2
// as well. No file ends its child by the signals of a shutdown: a service manager may
// send them to every process of the service, and the child's is there first.
func died(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status, _ := exit.Sys().(syscall.WaitStatus)
		stopped := status.Signaled() && slices.Contains([]syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP}, status.Signal())
		if stopped || exit.ExitCode() == exitBroken {
			return fmt.Errorf("sandbox ended early: %w", err)
		}
	}
	return &symbolicate.Fault{Reason: symbolicate.Limit, Text: "reading the file exceeds the limits of memory, time or output (" + err.Error() + ")"}
}

// work does what a child does, in whatever process.
func work(mode string, kind symbolicate.Kind, file, out *os.File, scratch string) (report Report, err error) {
	info, err := file.Stat()
	if err != nil {
		return report, fmt.Errorf("stat artifact: %w", err)
	}
	var data []byte
	if size := info.Size(); size > 0 {
		if data, err = unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_PRIVATE); err != nil {
			return report, fmt.Errorf("map artifact: %w", err)
		}
		defer func() { _ = unix.Munmap(data) }()
	}
	defer func() {
		if p := recover(); p != nil {
			report.Reason, report.Text = symbolicate.Malformed, fmt.Sprint("reading the file failed: ", p)
			err = nil
		}
	}()
	switch mode {
	case modeIdentify:
		report.DebugIDs, report.Warnings, err = symbolicate.Identify(kind, data, scratch)
	case modeBuild:
		report.Warnings, err = symbolicate.Build(kind, data, scratch, out)
	default:
		return report, fmt.Errorf("unknown mode %q", mode)
	}
	var fault *symbolicate.Fault
	if errors.As(err, &fault) {
		report.Reason, report.Text, err = fault.Reason, fault.Text, nil
	}
	return report, err
}
