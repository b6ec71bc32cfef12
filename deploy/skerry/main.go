// Command skerry is all of Skerry in one binary: the edge node, the write
// plane, both with a private PostgreSQL and NATS for one machine, the
// administrator's commands and the load generator.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"skerry/deploy/cli"
	"skerry/writeplane/symbolicate/sandbox"
)

// version is set by the linker.
var version = "unknown"

func main() {
	// Children that parse symbol files are this program too; they end here.
	sandbox.Enter()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal asks for an orderly end; the second finds the default
	// action restored and ends the process at once.
	context.AfterFunc(ctx, stop)
	code := cli.Run(ctx, os.Args[1:], cli.Streams{Out: os.Stdout, Err: os.Stderr}, version)
	stop()
	os.Exit(code)
}
