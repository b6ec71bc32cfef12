package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"skerry/bench"
	"skerry/bench/baseline"
	"skerry/bench/campaign"
	"skerry/bench/hostile"
	"skerry/bench/report"
	"skerry/bench/soak"
	"skerry/pkg/natsserver"
)

type benchCommands struct {
	Run       benchCommand     `cmd:"" default:"withargs" help:"Measure this machine: all scenarios, or those named by --scenario."`
	List      benchList        `cmd:"" help:"List the scenarios."`
	Compare   benchCompare     `cmd:"" help:"Tell what changed between two saved reports beyond the noise."`
	Faults    benchFaults      `cmd:"" help:"Break everything under load by seeded schedules, and balance the books."`
	Hostile   benchHostile     `cmd:"" help:"Attack an edge as the Internet does, while a polite client measures what others notice."`
	Soak      benchSoak        `cmd:"" help:"Keep a steady mixed load for long and watch memory, goroutines, files and latency."`
	Scaleout  benchScaleout    `cmd:"" help:"Rehearse a large installation: take-over, rolling restart and failover under load."`
	Yardstick yardstickCommand `cmd:"" hidden:""`
	NATS      natsCommand      `cmd:"" name:"nats" hidden:""`
}

// thisProgram is the file of the program that runs, of which benchmarks start more.
func thisProgram() (string, error) {
	binary, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("find this program: %w", err)
	}
	return binary, nil
}

type benchCommand struct {
	Scenario    []string      `help:"Scenarios to run, separated by commas; see skerry bench list." placeholder:"NAME"`
	Length      time.Duration `help:"Counted time of one measurement." default:"5s"`
	Warmup      time.Duration `help:"Time before it that is not counted." default:"1s"`
	Repetitions int           `help:"How often each figure is measured." default:"3"`
	Documents   int           `help:"Documents of coldstart." default:"1000000"`
	Rate        float64       `help:"Requests a second where a scenario sends at a fixed rate; 0 takes the scenario's own." placeholder:"N"`
	Edges       int           `help:"Edges of scenarios with several." default:"3"`
	JSON        string        `name:"json" help:"File to save the report in, for skerry bench compare." type:"path" placeholder:"FILE"`
	HTML        string        `name:"html" help:"File to save the report in as one page with plots." type:"path" placeholder:"FILE"`
}

// Run measures. The centre and the edges are processes of their own, started from
// this binary in a temporary folder and ended afterwards.
func (cmd *benchCommand) Run(ctx context.Context, streams Streams, version buildVersion) error {
	binary, err := thisProgram()
	if err != nil {
		return err
	}
	config := bench.Config{
		Binary: binary, Version: string(version), Command: "skerry " + strings.Join(os.Args[1:], " "),
		Scenarios: cmd.Scenario, Length: cmd.Length, Warmup: cmd.Warmup, Repetitions: cmd.Repetitions, Documents: cmd.Documents, Rate: cmd.Rate, Edges: cmd.Edges,
		Out: streams.Out, Interactive: isTerminal(streams.Out), JSON: cmd.JSON, HTML: cmd.HTML,
	}
	if err := config.Validate(); err != nil {
		return usageError{err}
	}
	return bench.Run(ctx, config)
}

type benchList struct{}

// Run prints the scenarios.
func (benchList) Run(streams Streams) error {
	_, err := fmt.Fprint(streams.Out, bench.About())
	return err
}

type benchCompare struct {
	Before string `arg:"" help:"Report saved by --json." type:"path"`
	After  string `arg:"" help:"A later one." type:"path"`
}

// Run compares.
func (cmd *benchCompare) Run(streams Streams) error {
	before, err := report.Load(cmd.Before)
	if err != nil {
		return err
	}
	after, err := report.Load(cmd.After)
	if err != nil {
		return err
	}
	return report.Compare(streams.Out, before, after)
}

type benchFaults struct {
	Seed   uint64        `help:"Seed of the first run's schedule; the others follow." default:"1"`
	Runs   int           `help:"How many runs." default:"1"`
	Length time.Duration `help:"Length of the load in each run." default:"20s"`
	Edges  int           `help:"Edges in each run." default:"2"`
	Nodes  int           `help:"NATS servers in each run, 1 or 3; 0 takes 3 in every third." default:"0"`
	Keep   string        `help:"File to which each run's result is appended as a line of JSON." type:"path" placeholder:"FILE"`
	SumUp  string        `help:"Break nothing: print what such a file says, as tables in Markdown." type:"path" placeholder:"FILE"`
}

// Run breaks things.
func (cmd *benchFaults) Run(ctx context.Context, streams Streams, version buildVersion) error {
	if cmd.SumUp != "" {
		return campaign.Summarize(cmd.SumUp, streams.Out)
	}
	binary, err := thisProgram()
	if err != nil {
		return err
	}
	config := campaign.Config{
		Binary: binary, Version: string(version), Seed: cmd.Seed, Runs: cmd.Runs, Length: cmd.Length, Edges: cmd.Edges, Nodes: cmd.Nodes, Log: cmd.Keep, Out: streams.Out,
	}
	if err := config.Validate(); err != nil {
		return usageError{err}
	}
	return campaign.Run(ctx, config)
}

type benchHostile struct {
	Attack []string      `help:"Attacks, separated by commas; all when absent." placeholder:"NAME"`
	Length time.Duration `help:"Time of each attack." default:"10s"`
	JSON   string        `name:"json" help:"File to save the report in." type:"path" placeholder:"FILE"`
	HTML   string        `name:"html" help:"File to save the report in as one page with plots." type:"path" placeholder:"FILE"`
}

// Run attacks processes of its own, on the loopback interface.
func (cmd *benchHostile) Run(ctx context.Context, streams Streams, version buildVersion) error {
	binary, err := thisProgram()
	if err != nil {
		return err
	}
	config := hostile.Config{
		Binary: binary, Version: string(version), Command: "skerry " + strings.Join(os.Args[1:], " "),
		Attacks: cmd.Attack, Length: cmd.Length, Out: streams.Out, JSON: cmd.JSON, HTML: cmd.HTML,
	}
	if err := config.Validate(); err != nil {
		return usageError{err}
	}
	return hostile.Run(ctx, config)
}

type benchSoak struct {
	Length time.Duration `help:"How long." default:"30m"`
	Window time.Duration `help:"Time of one sample; 0 means a minute, or less in a short soak." default:"0s"`
	Rate   float64       `help:"Requests a second." default:"5000"`
	JSON   string        `name:"json" help:"File to save the report in." type:"path" placeholder:"FILE"`
	HTML   string        `name:"html" help:"File to save the report in as one page with plots." type:"path" placeholder:"FILE"`
}

// Run soaks processes of its own.
func (cmd *benchSoak) Run(ctx context.Context, streams Streams, version buildVersion) error {
	binary, err := thisProgram()
	if err != nil {
		return err
	}
	config := soak.Config{
		Binary: binary, Version: string(version), Command: "skerry " + strings.Join(os.Args[1:], " "),
		Length: cmd.Length, Window: cmd.Window, Rate: cmd.Rate, Out: streams.Out, JSON: cmd.JSON, HTML: cmd.HTML,
	}
	if err := config.Validate(); err != nil {
		return usageError{err}
	}
	return soak.Run(ctx, config)
}

type benchScaleout struct {
	Keep string `help:"File to which the result is appended as a line of JSON." type:"path" placeholder:"FILE"`
}

// Run rehearses with processes of its own.
func (cmd *benchScaleout) Run(ctx context.Context, streams Streams, version buildVersion) error {
	binary, err := thisProgram()
	if err != nil {
		return err
	}
	return campaign.Rehearse(ctx, campaign.Rehearsal{Binary: binary, Version: string(version), Log: cmd.Keep, Out: streams.Out})
}

// natsCommand is a NATS server as a process of its own, alone or one of several, for the
// fault campaign to kill.
type natsCommand struct {
	Dir   string `required:"" type:"path"`
	Port  int    `required:""`
	Token string
	Name  string `help:"Of this node; makes it one of several."`
	Own   int    `help:"Port for the other nodes."`
	Among []int  `help:"Such ports of all nodes."`
}

// Run serves until ctx ends.
func (cmd *natsCommand) Run(ctx context.Context, streams Streams) error {
	config := natsserver.Config{Dir: cmd.Dir, Port: cmd.Port, Token: cmd.Token}
	if cmd.Name != "" {
		config.Cluster = &natsserver.Cluster{Name: cmd.Name, Port: cmd.Own, Ports: cmd.Among}
	}
	server, err := natsserver.Start(config)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(streams.Out, server.URL()); err != nil {
		return err
	}
	<-ctx.Done()
	server.Stop()
	return nil
}

type yardstickCommand struct{}

// Run is the benchmark's own child process.
func (yardstickCommand) Run(ctx context.Context, streams Streams) error {
	return baseline.Serve(ctx, os.Stdin, streams.Out)
}

// isTerminal tells whether somebody watches.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
