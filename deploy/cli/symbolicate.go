package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"skerry/pkg/crash"
	"skerry/writeplane/symbolicate"
	"skerry/writeplane/symbolicate/sandbox"
)

type symbolicateCommand struct {
	File    string   `arg:"" help:"Crash report as JSON, in the form of POST /api/catch/events; - for standard input."`
	Symbols []string `help:"Files, or folders to search for symbols." required:"" placeholder:"PATH"`
	JSON    bool     `name:"json" help:"Print the frames as JSON."`
}

// Run makes a report readable on this machine, without any server.
func (cmd *symbolicateCommand) Run(ctx context.Context, streams Streams) error {
	raw, err := readInput(cmd.File)
	if err != nil {
		return err
	}
	event, err := crash.Decode(raw, time.Now())
	if err != nil {
		return fmt.Errorf("%s: %w", cmd.File, err)
	}
	files, err := findSymbols(cmd.Symbols, "")
	if err != nil {
		return err
	}
	runner := sandbox.New(sandbox.Config{Command: sandbox.Self()})
	var artifacts []*symbolicate.Artifact
	for _, f := range files {
		a, err := offline(ctx, runner, f)
		if err != nil {
			fmt.Fprintf(streams.Err, "%s: %v\n", f.path, err)
			continue
		}
		artifacts = append(artifacts, a)
	}
	answers, err := symbolicate.NewSet(artifacts).Symbolicate(event)
	if err != nil {
		return err
	}
	if cmd.JSON {
		return printJSON(streams.Out, event, answers)
	}
	fmt.Fprintf(streams.Out, "%s: %s\n", printable(event.Exception.Type), printable(event.Exception.Value))
	for i, a := range answers {
		printFrame(streams.Out, i, event.Frames[i], a)
	}
	return nil
}

func readInput(path string) ([]byte, error) {
	if path == "-" {
		return io.ReadAll(io.LimitReader(os.Stdin, crash.MaxBodyBytes+1))
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, usagef("%w", err)
	}
	return raw, nil
}

// offline makes a file a candidate; it is indexed when a frame asks for it.
func offline(ctx context.Context, runner *sandbox.Runner, f symbolFile) (*symbolicate.Artifact, error) {
	file, _, done, err := f.open()
	if err != nil {
		return nil, err
	}
	defer done()
	report, err := runner.Identify(ctx, f.kind, file)
	var fault *symbolicate.Fault
	if err != nil && !errors.As(err, &fault) {
		return nil, err
	}
	return &symbolicate.Artifact{
		Kind: f.kind, MatchKey: f.name, Name: f.name, DebugIDs: report.DebugIDs, OfRelease: true,
		Load: func() (*symbolicate.Index, error) { return index(ctx, runner, f) },
	}, nil
}

func index(ctx context.Context, runner *sandbox.Runner, f symbolFile) (*symbolicate.Index, error) {
	file, _, done, err := f.open()
	if err != nil {
		return nil, err
	}
	defer done()
	out, _, err := runner.Build(ctx, f.kind, file)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	data, err := io.ReadAll(out)
	if err != nil {
		return nil, err
	}
	return symbolicate.Open(f.kind, data)
}

func printJSON(out io.Writer, event crash.Event, answers []symbolicate.Answer) error {
	type shown struct {
		crash.Frame
		Symbolicated *symbolicate.Symbolicated `json:"symbolicated"`
		Reason       *string                   `json:"reason"`
	}
	frames := make([]shown, len(answers))
	for i, a := range answers {
		frames[i] = shown{Frame: event.Frames[i], Symbolicated: a.Symbolicated}
		if a.Symbolicated == nil {
			frames[i].Reason = &a.Reason
		}
	}
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	return encoder.Encode(map[string]any{"frames": frames})
}

// printFrame prints a frame and, indented, what it was inlined into.
func printFrame(out io.Writer, i int, f crash.Frame, a symbolicate.Answer) {
	if a.Symbolicated == nil {
		fmt.Fprintf(out, "#%-3d %s (%s)\n", i, asSent(f), a.Reason)
		return
	}
	fmt.Fprintf(out, "#%-3d %s\n", i, place(a.Symbolicated.Location))
	for _, l := range a.Symbolicated.Inlined {
		fmt.Fprintf(out, "     inlined into %s\n", place(l))
	}
}

func asSent(f crash.Frame) string {
	for _, s := range []*string{f.Function, f.Address, f.Module, f.Filename} {
		if s != nil {
			return printable(*s)
		}
	}
	return "?"
}

func place(l symbolicate.Location) string {
	name := "?"
	if l.Function != nil {
		name = *l.Function
	}
	if l.Module != "" {
		name = l.Module + "." + name
	}
	file := "?"
	if l.Filename != nil {
		file = *l.Filename
	}
	return printable(fmt.Sprintf("%s at %s:%d:%d", name, file, l.Lineno, l.Colno))
}
