package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrSilent is the cause with which contexts of Watch.Context end.
var ErrSilent = errors.New("the database does not answer")

// WatchConfig says when a database counts as silent. Zero values mean the defaults.
type WatchConfig struct {
	Every    time.Duration // between questions; 0 means 1 s
	Patience time.Duration // for one answer, a new connection included; 0 means 4 s
	Misses   int           // answers missed in a row that make it silent; 0 means 3
}

// Watch notices a database that has fallen silent: it takes connections and statements
// and answers none, as a frozen machine or a cut network does. A database that refuses is
// noticed by whoever asks it; a silent one would keep every request for as long as its
// client waits.
//
// It asks over a connection of its own, since those of the pools may all be waiting.
type Watch struct {
	config   WatchConfig
	database *pgx.ConnConfig
	conn     *pgx.Conn // nil: none stands

	mu      sync.Mutex
	present context.Context // ends when the database falls silent
	fall    context.CancelFunc
}

// NewWatch watches the database of a URL while Run runs.
func NewWatch(rawURL string, config WatchConfig) (*Watch, error) {
	if config.Every == 0 {
		config.Every = time.Second
	}
	if config.Patience == 0 {
		config.Patience = 4 * time.Second
	}
	if config.Misses == 0 {
		config.Misses = 3
	}
	database, err := pgx.ParseConfig(rawURL)
	if err != nil {
		return nil, fmt.Errorf("read postgres URL: %w", redact(rawURL, err))
	}
	// Of two hosts, one that is cut off must leave time for the other.
	database.ConnectTimeout = config.Patience / 2
	database.RuntimeParams["application_name"] = "skerry watch"
	w := &Watch{config: config, database: database}
	w.present, w.fall = context.WithCancel(context.Background())
	return w, nil
}

// Context is the given one, but it also ends, with ErrSilent as its cause, when the
// database falls silent; while it is silent it ends at once. release frees what it holds.
func (w *Watch) Context(parent context.Context) (ctx context.Context, release func()) {
	ctx, cancel := context.WithCancelCause(parent)
	w.mu.Lock()
	present := w.present
	w.mu.Unlock()
	if present.Err() != nil {
		cancel(ErrSilent)
	}
	stop := context.AfterFunc(present, func() { cancel(ErrSilent) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Run asks until ctx ends.
func (w *Watch) Run(ctx context.Context) error {
	defer w.hangUp()
	tick := time.NewTicker(w.config.Every)
	defer tick.Stop()
	for missed := 0; ; {
		err := w.ask(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil || !timedOut(err): // it answered, or it refused
			missed = 0
			w.heard(ctx)
		default:
			if missed++; missed == w.config.Misses {
				w.silent(ctx, err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (w *Watch) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, w.config.Patience)
	defer cancel()
	err := w.reach(ctx)
	if err == nil {
		_, err = w.conn.Exec(ctx, "SELECT")
	}
	if err != nil {
		w.hangUp()
	}
	return err
}

func timedOut(err error) bool {
	var network net.Error
	return pgconn.Timeout(err) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &network) && network.Timeout()
}

func (w *Watch) reach(ctx context.Context) (err error) {
	if w.conn == nil {
		w.conn, err = pgx.ConnectConfig(ctx, w.database)
	}
	return err
}

// hangUp ends the connection without waiting for a word of farewell.
func (w *Watch) hangUp() {
	if w.conn == nil {
		return
	}
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	_ = w.conn.Close(gone)
	w.conn = nil
}

func (w *Watch) silent(ctx context.Context, err error) {
	slog.WarnContext(ctx, "the database has fallen silent: requests are answered 503 until it answers", "error", err)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fall()
}

func (w *Watch) heard(ctx context.Context) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.present.Err() == nil {
		return
	}
	slog.InfoContext(ctx, "the database is heard again")
	w.present, w.fall = context.WithCancel(context.Background())
}
