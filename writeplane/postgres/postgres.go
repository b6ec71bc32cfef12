// Package postgres opens the central database: migrations, pools and transactions.
//
// There are two roles. The owner is whoever the URL logs in as; it migrates and
// does retention. The program's own work runs as skerry_app, which each migration
// grants just what the code needs: logs (audit, config versions) can be added to
// and read, never changed.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"skerry/pkg/dial"
)

// AppRole is the role that the program works under.
const AppRole = "skerry_app"

// Config says which database and how hard to lean on it.
type Config struct {
	URL      string // postgres://…, several hosts allowed (pgx's multi-host form)
	MaxConns int    // of the application's pool; 0 means 32
}

const (
	defaultMaxConns = 32
	// goneAfter is how long a server may confirm nothing until another one is looked for
	// behind its name. One that confirms and does not answer is the Watch's matter.
	goneAfter      = time.Minute
	ownerConns     = 4
	connectTimeout = 5 * time.Second
)

// DB is the pair of pools.
type DB struct {
	App   *pgxpool.Pool // role skerry_app: everything that serves requests
	Owner *pgxpool.Pool // the login role: partitions, retention, jobs' own tables
}

// Open connects both pools and checks that the database answers and that its
// schema is the one that this program knows.
func Open(ctx context.Context, config Config) (*DB, error) {
	if config.MaxConns == 0 {
		config.MaxConns = defaultMaxConns
	}
	app, err := openPool(ctx, config.URL, config.MaxConns, "SET ROLE "+AppRole)
	if err != nil {
		return nil, err
	}
	owner, err := openPool(ctx, config.URL, ownerConns, "")
	if err != nil {
		app.Close()
		return nil, err
	}
	db := &DB{App: app, Owner: owner}
	if err := CheckVersion(ctx, owner); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// Close ends all connections.
func (db *DB) Close() {
	db.App.Close()
	db.Owner.Close()
}

// NewPool is a pool of connections as the login role that are made when they are needed:
// of a database that may be away, such as an audit mirror elsewhere.
func NewPool(ctx context.Context, rawURL string, conns int) (*pgxpool.Pool, error) {
	return newPool(ctx, rawURL, conns, "")
}

// openPool is a pool of a database that answers.
func openPool(ctx context.Context, rawURL string, conns int, afterConnect string) (*pgxpool.Pool, error) {
	pool, err := newPool(ctx, rawURL, conns, afterConnect)
	if err != nil {
		return nil, err
	}
	if err := pool.Ping(ctx); err != nil {
		pool.Close()
		return nil, fmt.Errorf("reach postgres at %s: %w", address(rawURL), redact(rawURL, err))
	}
	return pool, nil
}

func newPool(ctx context.Context, rawURL string, conns int, afterConnect string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(rawURL)
	if err != nil {
		return nil, fmt.Errorf("read postgres URL: %w", redact(rawURL, err))
	}
	config.MaxConns = int32(conns)
	config.ConnConfig.ConnectTimeout = connectTimeout
	config.ConnConfig.DialFunc = dial.GoneAfter(goneAfter).DialContext
	params := config.ConnConfig.RuntimeParams
	params["timezone"] = "UTC"
	params["application_name"] = "skerry"
	// A forgotten transaction must not hold the lane locks, nor may a waiter wait
	// for ever behind one.
	params["idle_in_transaction_session_timeout"] = "30000"
	params["lock_timeout"] = "10000"
	if afterConnect != "" {
		config.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, afterConnect)
			return err
		}
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return nil, fmt.Errorf("open postgres pool: %w", redact(rawURL, err))
	}
	return pool, nil
}

// address names the server without its credentials.
func address(rawURL string) string {
	parsed, err := url.Parse(rawURL)
	if err != nil || parsed.Host == "" {
		return "the configured address"
	}
	return parsed.Host
}

// redact keeps a driver's error only when it cannot quote the URL's password.
func redact(rawURL string, err error) error {
	if parsed, parseErr := url.Parse(rawURL); parseErr == nil && parsed.User != nil {
		if _, hasPassword := parsed.User.Password(); !hasPassword {
			return err
		}
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return fmt.Errorf("%s (SQLSTATE %s)", pgErr.Message, pgErr.Code)
	}
	var connectErr *pgconn.ConnectError
	if errors.As(err, &connectErr) {
		return err // names host, user and database, not the password
	}
	return errors.New("the URL or the connection is faulty")
}

// InTx runs fn in a transaction of its own: committed when fn returns nil, rolled
// back otherwise. A module's exported methods own the transaction; its helpers
// take tx.
func InTx(ctx context.Context, pool *pgxpool.Pool, fn func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, pool, fn)
}

// Unavailable reports whether err means that the database itself is away, as
// opposed to its having refused a statement. Callers answer 503 or try again; a
// row is never blamed for it.
//
// Only what is known to come from a connection counts. An error of any other kind, say
// of a value that this program cannot encode, is a fault that no second try mends:
// taken for an absence it would be tried for ever.
func Unavailable(err error) bool {
	if err == nil {
		return false
	}
	var pgErr *pgconn.PgError
	var connect *pgconn.ConnectError
	var network net.Error
	switch {
	case errors.As(err, &pgErr):
		switch pgErr.Code[:2] {
		case "08", "53", "57", "58", "25", "40", "55", "XX":
			// connection, resources, operator intervention, system, transaction
			// state, rollback, lock not available, internal
			return true
		}
		return false
	case errors.Is(err, context.Canceled):
		return false // the caller went away, not the database
	case errors.As(err, &connect), errors.As(err, &network), errors.Is(err, context.DeadlineExceeded),
		errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed), pgconn.SafeToRetry(err):
		return true
	}
	// pgx and its pool keep no types for these.
	text := err.Error()
	return strings.HasSuffix(text, "conn closed") || strings.HasSuffix(text, "closed pool")
}
