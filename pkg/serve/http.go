package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"
)

// Limits of an HTTP server. Zero values mean the defaults given with them.
type Limits struct {
	// Header bounds the request line and headers, in bytes; 64 KiB.
	Header int
	// HeaderTime bounds how long a client may take to send them; 10 s. Bodies
	// may be 500 MB over a slow line, so their time is the handlers' business.
	HeaderTime time.Duration
	// Idle bounds how long an unused connection stays open; 2 min.
	Idle time.Duration
	// Drain bounds how long requests may take to end once the server stops;
	// 4 s. What is left then is cut off.
	Drain time.Duration
}

func (l Limits) withDefaults() Limits {
	if l.Header == 0 {
		l.Header = 64 << 10
	}
	if l.HeaderTime == 0 {
		l.HeaderTime = 10 * time.Second
	}
	if l.Idle == 0 {
		l.Idle = 2 * time.Minute
	}
	if l.Drain == 0 {
		l.Drain = 4 * time.Second
	}
	return l
}

// ListenError is an address that cannot be listened on, and the flag or setting
// that gave it, for whoever knows it by another name to correct.
type ListenError struct {
	Setting, Address string
	Err              error
}

func (e *ListenError) Error() string {
	return fmt.Sprintf("%s: listen on %s: %v", e.Setting, e.Address, e.Err)
}

func (e *ListenError) Unwrap() error { return e.Err }

// Listen opens a TCP listener; its error is a *ListenError.
func Listen(setting, address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Err != nil {
			err = op.Err
		}
		return nil, &ListenError{Setting: setting, Address: address, Err: err}
	}
	return ln, nil
}

// HTTP serves handler on ln until ctx is done, then lets requests end. It
// owns ln.
func HTTP(ctx context.Context, ln net.Listener, handler http.Handler, limits Limits) error {
	limits = limits.withDefaults()
	srv := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: limits.HeaderTime,
		IdleTimeout:       limits.Idle,
		MaxHeaderBytes:    limits.Header,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
		// OPTIONS * is a request like any other: the handler gives it an id and says that
		// there is no such path.
		DisableGeneralOptionsHandler: true,
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.Serve(ln) }()
	select {
	case err := <-ended:
		srv.Close()
		return fmt.Errorf("serve %s: %w", ln.Addr(), err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), limits.Drain)
	defer cancel()
	err := srv.Shutdown(drain)
	if errors.Is(err, context.DeadlineExceeded) {
		slog.Warn("requests cut off at the end of the drain", "address", ln.Addr().String(), "drain", limits.Drain)
		err = srv.Close()
	}
	<-ended
	return err
}
