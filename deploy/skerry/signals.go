package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

// untilSignalled is a context that the first signal to end cancels, which asks for
// an orderly end. The second one finds the default action restored and ends the
// process at once.
//
// A terminal that is closed is such a signal too: a program that died of it would leave
// its PostgreSQL running, alone. It may be told twice, by the kernel and by the shell, so
// a hang-up never ends the process at once; and a program that was started to outlive its
// terminal (nohup) does. Nor does it die of writing its last words to a pipe whose reader
// the same Ctrl-C has ended (skerry up | tee log).
func untilSignalled() (ctx context.Context, release context.CancelFunc) {
	endings := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) {
		endings = append(endings, syscall.SIGHUP)
	}
	ctx, cancel := context.WithCancel(context.Background())
	told := make(chan os.Signal, 1)
	signal.Notify(told, endings...)
	go func() {
		select {
		case <-told:
			signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
		case <-ctx.Done():
		}
		signal.Stop(told)
		cancel() // last: whoever hears of it finds all of the above
	}()
	return ctx, cancel
}
