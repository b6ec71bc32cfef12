// Command skerry is all of Skerry in one binary: the edge node, the write
// plane, both with a private PostgreSQL and NATS for one machine, the
// administrator's commands and the load generator.
package main

import (
	"os"

	"skerry/deploy/cli"
	"skerry/writeplane/symbolicate/sandbox"
)

// version is set by the linker.
var version = "unknown"

func main() {
	// Children that parse symbol files are this program too; they end here.
	sandbox.Enter()
	ctx, release := untilSignalled()
	code := cli.Run(ctx, os.Args[1:], cli.Streams{Out: os.Stdout, Err: os.Stderr}, version)
	release()
	os.Exit(code)
}
