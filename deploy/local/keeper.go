package local

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"skerry/pkg/pgserver"
)

// keeper keeps the private PostgreSQL running: when it ends by itself (killed,
// out of memory), it is started again on the same port.
type keeper struct {
	cfg pgserver.Config

	mu      sync.Mutex
	server  *pgserver.Server
	stopped bool
}

func startPostgres(ctx context.Context, dir string) (*keeper, error) {
	k := &keeper{cfg: pgserver.Config{Dir: dir, Durable: true, StopTimeout: postgresStopTime, Log: slog.Default()}}
	server, err := pgserver.Start(ctx, k.cfg)
	if err != nil {
		return nil, err
	}
	k.server = server
	k.cfg.Port = server.Port()
	return k, nil
}

func (k *keeper) current() *pgserver.Server {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.server
}

func (k *keeper) url() string { return k.current().URL() }

// restartPause keeps a server that dies at once from being started in a loop.
const restartPause = time.Second

// keep returns when ctx is done.
func (k *keeper) keep(ctx context.Context) error {
	for {
		server := k.current()
		select {
		case <-ctx.Done():
			return nil
		case <-server.Done():
		}
		slog.Error("PostgreSQL ended by itself; starting it again", "error", server.Err())
		_ = server.Stop() // unlocks the folder
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(restartPause):
			}
			again, err := pgserver.Start(ctx, k.cfg)
			if err == nil {
				if !k.replace(again) {
					return again.Stop()
				}
				slog.Info("PostgreSQL is back")
				break
			}
			slog.Error("PostgreSQL does not start", "error", err)
		}
	}
}

// replace takes the new server unless the keeper has been stopped meanwhile.
func (k *keeper) replace(server *pgserver.Server) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return false
	}
	k.server = server
	return true
}

func (k *keeper) stop() error {
	k.mu.Lock()
	k.stopped = true
	server := k.server
	k.mu.Unlock()
	return server.Stop()
}
