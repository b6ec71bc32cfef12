package cli

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/jackc/pgx/v5/pgconn"
)

// usageError is a fault of the caller that only a command can see.
type usageError struct{ error }

func usagef(format string, args ...any) error {
	return usageError{fmt.Errorf(format, args...)}
}

// readers parse values for which the parser's own words would name a Go
// function in place of what is expected.
func readers() []kong.Option {
	return []kong.Option{
		kong.TypeMapper(reflect.TypeFor[netip.Prefix](), kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
			return read(ctx, target, netip.ParsePrefix, "a network such as 10.0.0.0/8")
		})),
		kong.TypeMapper(reflect.TypeFor[time.Duration](), kong.MapperFunc(func(ctx *kong.DecodeContext, target reflect.Value) error {
			return read(ctx, target, time.ParseDuration, "a time such as 30s, 5m or 24h")
		})),
	}
}

func read[T any](ctx *kong.DecodeContext, target reflect.Value, parse func(string) (T, error), expected string) error {
	var text string
	if err := ctx.Scan.PopValueInto("value", &text); err != nil {
		return err
	}
	v, err := parse(text)
	if err != nil {
		return fmt.Errorf("%q is not %s", text, expected)
	}
	target.Set(reflect.ValueOf(v))
	return nil
}

var (
	noValue   = regexp.MustCompile(`expected \S+ value but got "EOL" \(<EOL>\)`)
	withDash  = regexp.MustCompile(`expected \S+ value but got "(-[^"]*)" \(.*\); perhaps try (--\S+?)=.*`)
	emptyEnum = regexp.MustCompile(`(must be one of "[^ ]*),""`)
)

// oneLine is an error as a person reads it. pgx tells of every attempt to
// connect, with and without TLS; the reason of one is enough. The empty
// alternative of a flag that may be left out is no choice to offer.
func oneLine(err error) string {
	text := err.Error()
	var attempts *pgconn.ConnectError
	var reason *net.OpError
	if errors.As(err, &attempts) && errors.As(attempts, &reason) && reason.Err != nil {
		text = strings.Replace(text, attempts.Error(), reason.Err.Error(), 1)
	}
	var parse *kong.ParseError
	if errors.As(err, &parse) {
		text = noValue.ReplaceAllString(text, "a value is missing")
		text = withDash.ReplaceAllString(text, "a value that begins with a dash is written $2=$1")
		text = emptyEnum.ReplaceAllString(text, "$1")
	}
	return strings.Join(strings.Fields(text), " ")
}

// httpBase is an address that paths can be put behind.
func httpBase(flag, address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", usagef("%s %q is not an address such as http://host:port", flag, address)
	}
	return strings.TrimRight(address, "/"), nil
}

// publicURL refuses an address that links cannot begin with; it may be absent.
func publicURL(address string) error {
	if address == "" {
		return nil
	}
	_, err := httpBase("--public-url", address)
	return err
}

// listenAddress refuses what cannot be listened on, before anything is opened.
func listenAddress(flag, address string) error {
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		return usagef("%s %q is not host:port, such as 0.0.0.0:8080", flag, address)
	}
	if port, err := strconv.Atoi(text); err != nil || port < 0 || port > 65535 {
		return usagef("%s %q has no port from 0 to 65535", flag, address)
	}
	return nil
}

// notNegative refuses a number below zero.
func notNegative(flag string, n int64) error {
	if n < 0 {
		return usagef("%s %d is negative", flag, n)
	}
	return nil
}
