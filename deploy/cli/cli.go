// Package cli is Skerry's command line: the processes (up, writeplane, edge,
// migrate) and the administrator's commands, which speak HTTP as any other
// client does.
//
// It promises: every flag can also be given by environment variable
// (SKERRY_…) and in a YAML file, in that order of precedence; a wrong flag, a
// wrong file and a server that cannot be reached are each named on one line;
// tables are for people, --json prints what the server said.
//
// Exit codes: 0 done, 1 failed, 2 wrong usage.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"

	"skerry/pkg/serve"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

// root is the whole command line.
type root struct {
	Config  string           `help:"YAML file with values of flags. Flags and environment variables win over it." placeholder:"FILE" short:"c"`
	Log     logging          `embed:"" prefix:"log-"`
	Version kong.VersionFlag `env:"-" help:"Print the version."`

	Up         upCommand         `cmd:"" group:"process" help:"Run everything on this machine, with a private PostgreSQL and NATS."`
	Edge       edgeCommands      `cmd:"" group:"process" help:"Run an edge node, or retire one."`
	WritePlane writePlaneCommand `cmd:"" name:"writeplane" group:"process" help:"Run one process of the write plane."`
	Migrate    migrateCommand    `cmd:"" group:"process" help:"Bring the database to this program's schema."`
	Bootstrap  bootstrapCommand  `cmd:"" group:"process" help:"Make the first organization, project and owner in an empty database."`
	Restored   restoredCommand   `cmd:"" group:"process" help:"Declare that the database was restored from a backup: edges take their state anew."`

	Bench benchCommands `cmd:"" group:"process" help:"Measure this machine, or compare two measurements."`

	Flags       flagsCommands      `cmd:"" group:"admin" help:"List, halt and resume feature flags."`
	ConfigItems configCommands     `cmd:"" name:"config" group:"admin" help:"List remote config items and their versions, roll back."`
	Projects    projectCommands    `cmd:"" group:"admin" help:"List and create projects."`
	Keys        keyCommands        `cmd:"" group:"admin" help:"List, create, rotate and revoke API keys."`
	Tokens      tokenCommands      `cmd:"" group:"admin" help:"List, create and revoke API tokens."`
	DeadLetters deadLetterCommands `cmd:"" name:"deadletters" group:"admin" help:"List and replay what could not be stored."`
	Webhooks    webhookCommands    `cmd:"" group:"admin" help:"Manage webhook subscriptions and deliveries."`
	Audit       auditCommands      `cmd:"" group:"admin" help:"Follow, export and verify the audit log."`
	Symbols     symbolCommands     `cmd:"" group:"admin" help:"Upload, list and delete crash symbols."`
	Symbolicate symbolicateCommand `cmd:"" group:"admin" help:"Make a crash report readable, offline."`
	Status      statusCommand      `cmd:"" group:"admin" help:"Show how processes and ingestion are doing."`
}

type logging struct {
	Format string `enum:"text,json" default:"text" help:"Form of log lines: text or json."`
	Level  string `enum:"debug,info,warn,error" default:"info" help:"Least level to log: debug, info, warn or error."`
}

// buildVersion is which program this is, as the linker was told.
type buildVersion string

// Streams are a command's ends.
type Streams struct {
	Out, Err io.Writer
}

// Run parses args (without the program's name), runs the command until it is
// done or ctx ends, and returns the exit code.
func Run(ctx context.Context, args []string, streams Streams, version string) (code int) {
	var cli root
	parser, err := kong.New(&cli, append(readers(),
		kong.Name("skerry"),
		kong.Description("Product analytics and product control: edges that answer everywhere, one write plane.\n\nStart everything on this machine with `skerry up`."),
		kong.Vars{"version": version},
		kong.Writers(streams.Out, streams.Err),
		kong.Exit(func(code int) { panic(exited{code}) }),
		kong.DefaultEnvars("SKERRY"),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoExpandSubcommands: true, WrapUpperBound: 100}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "process", Title: "Processes:"},
			{Key: "admin", Title: "Administration (over HTTP):"},
			{Key: "connection", Title: "Connection:"},
			{Key: "plane", Title: "Write plane:"},
			{Key: "edge", Title: "Edges:"},
		}),
	)...)
	if err != nil {
		panic("BUG: command line: " + err.Error())
	}
	defer func() {
		switch p := recover().(type) {
		case nil:
		case exited:
			code = p.code
		default:
			panic(p)
		}
	}()
	if len(args) == 0 {
		args = []string{"--help"}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(streams.Err, "skerry: %s\n", oneLine(err))
		var fault *kong.ParseError
		if errors.As(err, &fault) && fault.Context != nil {
			fmt.Fprintf(streams.Err, "try: %s --help\n", helpFor(fault))
		}
		return exitUsage
	}
	return run(ctx, parsed, &cli, streams, buildVersion(version))
}

// exited unwinds the stack when kong has answered --help or --version.
type exited struct{ code int }

// helpFor is the command whose help tells how what could not be parsed is written.
func helpFor(fault *kong.ParseError) string {
	help := strings.TrimSpace("skerry " + commandPath(fault.Context))
	n := fault.Context.Selected()
	if n == nil {
		return help
	}
	if n.DefaultCmd != nil && strings.Contains(fault.Error(), "--") {
		n = n.DefaultCmd
	}
	if hiddenDefault(n) {
		help += " " + n.Name // its flags are listed under its own name only
	}
	return help
}

// run runs the selected command and returns the exit code.
func run(ctx context.Context, parsed *kong.Context, cli *root, streams Streams, version buildVersion) int {
	logger, err := serve.NewLogger(streams.Err, serve.Logging{Format: cli.Log.Format, Level: cli.Log.Level})
	if err != nil {
		fmt.Fprintf(streams.Err, "skerry: %s\n", oneLine(err))
		return exitUsage
	}
	slog.SetDefault(logger)
	if ofProcess(parsed) {
		for _, name := range strangers(parsed.Model, os.Environ()) {
			logger.Warn("no setting is read from this environment variable", "name", name)
		}
	}
	parsed.BindTo(ctx, (*context.Context)(nil))
	err = parsed.Run(streams, version)
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(streams.Err, "skerry %s: %s\n", commandPath(parsed), oneLine(err))
		return exitUsage
	default:
		fmt.Fprintf(streams.Err, "skerry %s: %s\n", commandPath(parsed), oneLine(err))
		return exitFailed
	}
}

// ofProcess tells whether the selected command runs a process of an installation,
// or prepares one.
func ofProcess(c *kong.Context) bool {
	for _, p := range c.Path {
		if p.Command != nil && p.Command.Group != nil && p.Command.Group.Key == "process" {
			return true
		}
	}
	return false
}

// commandPath is the words of the selected command, without its arguments.
func commandPath(c *kong.Context) string {
	var words []string
	for _, p := range c.Path {
		if p.Command != nil && !hiddenDefault(p.Command) {
			words = append(words, p.Command.Name)
		}
	}
	return strings.Join(words, " ")
}

// hiddenDefault tells a command that only stands for its parent, as the one
// behind `skerry edge`.
func hiddenDefault(n *kong.Node) bool { return n.Parent != nil && n.Parent.DefaultCmd == n }

// outlive keeps a process that serves from ending because whoever reads its log has
// ended. Commands that print what they were asked for do end then, as all programs in a
// pipe.
func outlive() { signal.Ignore(syscall.SIGPIPE) }
