// Package target decides which addresses a webhook may reach, so that a subscription
// cannot be used to send requests into the operator's own networks (supplement §8).
//
// It promises that a URL is judged twice: when a subscription is made or changed, and
// by the address actually dialled at every single connect, so that a name that later
// resolves elsewhere (DNS rebinding) reaches nothing. Hosts written as a number in
// decimal, octal, hexadecimal or short form are read as the address they mean.
package target

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Config is what the operator allows beyond public https targets.
type Config struct {
	// AllowHTTP admits plain http to every allowed address.
	AllowHTTP bool
	// AllowCIDRs are ranges that are admitted though they are not public. Plain http
	// is admitted inside them too: whoever names a network vouches for it.
	AllowCIDRs []netip.Prefix
	// Resolver looks names up; nil is the system's.
	Resolver Resolver
}

// Resolver is the one method of net.Resolver that is needed.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Guard judges URLs and dials only what it judged.
type Guard struct {
	config Config
	dialer net.Dialer
}

// New returns a Guard.
func New(config Config) *Guard {
	if config.Resolver == nil {
		config.Resolver = net.DefaultResolver
	}
	return &Guard{config: config}
}

// ErrRefused wraps every refusal.
var ErrRefused = errors.New("target refused")

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

const maxURL = 2048

// dialTimeout is what a host's name and all its addresses have together. Whoever asked may
// have given up long before: net/http lets a dial go on behind the request that it is for.
const dialTimeout = 10 * time.Second

// Check judges a URL as a subscription's target. A host that does not resolve now is
// accepted: it is judged when it is called.
func (g *Guard) Check(ctx context.Context, raw string) error {
	u, err := parse(raw)
	if err != nil {
		return err
	}
	addresses, err := g.addresses(ctx, u.Hostname())
	if errors.Is(err, ErrRefused) {
		return err
	}
	if err != nil { // does not resolve
		return g.checkScheme(u.Scheme, nil)
	}
	return g.checkScheme(u.Scheme, addresses)
}

func parse(raw string) (*url.URL, error) {
	if len(raw) > maxURL {
		return nil, refused("the URL is longer than %d bytes", maxURL)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Host == "" || u.Opaque != "":
		return nil, refused("not an absolute URL such as https://example.com/hook")
	case u.Scheme != "https" && u.Scheme != "http":
		return nil, refused("the scheme must be https")
	case u.User != nil:
		return nil, refused("the URL must not hold a user or password")
	case u.Hostname() == "":
		return nil, refused("the URL has no host")
	case u.Fragment != "":
		return nil, refused("the URL must not hold a fragment")
	}
	if port := u.Port(); port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return nil, refused("the port must be from 1 to 65535")
		}
	}
	return u, nil
}

func (g *Guard) checkScheme(scheme string, addresses []netip.Addr) error {
	if scheme == "https" || g.config.AllowHTTP {
		return nil
	}
	for _, a := range addresses {
		if !g.vouched(a) {
			return refused("the scheme must be https")
		}
	}
	if len(addresses) == 0 {
		return refused("the scheme must be https")
	}
	return nil
}

// DialContext connects to host:port after judging every address of the host. One refused
// address refuses the host: DNS rebinding works by mixing good addresses with bad ones.
func (g *Guard) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	return g.dial(ctx, network, address, "https")
}

// DialPlain is DialContext for http URLs: the addresses must be vouched for unless
// plain http is allowed everywhere.
func (g *Guard) DialPlain(ctx context.Context, network, address string) (net.Conn, error) {
	return g.dial(ctx, network, address, "http")
}

// dial connects to the first address of a host that answers. The name is looked up
// once, so that what is dialled is what was judged. Each address has an equal part of the
// time that is left: one that never answers must not take that of the next.
func (g *Guard) dial(ctx context.Context, network, address, scheme string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("split target address: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	addresses, err := g.addresses(ctx, host)
	if err != nil {
		return nil, err
	}
	if err := g.checkScheme(scheme, addresses); err != nil {
		return nil, err
	}
	end, _ := ctx.Deadline()
	var lastErr error
	for i, a := range addresses {
		dialer := g.dialer
		dialer.Timeout = max(time.Until(end)/time.Duration(len(addresses)-i), minDial)
		conn, err := dialer.DialContext(ctx, network, net.JoinHostPort(a.String(), port))
		if err == nil {
			return conn, nil
		}
		if lastErr = err; ctx.Err() != nil {
			break
		}
	}
	return nil, lastErr
}

// minDial is the least that an address gets, as long as there is time at all.
const minDial = time.Second

// addresses resolves a host and judges all that it resolves to.
func (g *Guard) addresses(ctx context.Context, host string) ([]netip.Addr, error) {
	if a, ok := parseAddress(host); ok {
		return []netip.Addr{a.Unmap()}, g.judge(a)
	}
	if endsInNumber(host) { // no name does: it is an address that was mistyped
		return nil, refused("%s is no address", host)
	}
	found, err := g.config.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("resolve %s: %w", host, err)
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("resolve %s: no address", host)
	}
	for i, a := range found {
		if err := g.judge(a); err != nil {
			return nil, err
		}
		found[i] = a.Unmap()
	}
	return found, nil
}

func (g *Guard) vouched(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	for _, prefix := range g.config.AllowCIDRs {
		if prefix.Contains(a) {
			return true
		}
	}
	return false
}

func (g *Guard) judge(a netip.Addr) error {
	if g.vouched(a) {
		return nil
	}
	if !public(a) {
		return refused("%s is not a public address", a.Unmap())
	}
	return nil
}

// parseAddress reads a host that is a number: IPv6, dotted IPv4, and the forms of
// inet_aton, whose one to four parts may be decimal, octal or hexadecimal, the last
// filling all the bytes that are left.
func parseAddress(host string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(host); err == nil {
		return a.WithZone(""), true
	}
	parts := strings.Split(strings.TrimSuffix(host, "."), ".")
	if len(parts) > 4 {
		return netip.Addr{}, false
	}
	var value uint64
	for i, part := range parts {
		n, ok := parsePart(part)
		if !ok {
			return netip.Addr{}, false
		}
		if i < len(parts)-1 {
			if n > 0xff {
				return netip.Addr{}, false
			}
			value |= n << (8 * (3 - i))
			continue
		}
		if n >= 1<<(8*(4-i)) {
			return netip.Addr{}, false
		}
		value |= n
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

// endsInNumber reports whether a host's last label is a number, which is for addresses
// alone (WHATWG URL, "ends in a number").
func endsInNumber(host string) bool {
	host = strings.TrimSuffix(host, ".")
	last := host[strings.LastIndexByte(host, '.')+1:]
	if last != "" && strings.Trim(last, "0123456789") == "" {
		return true
	}
	_, ok := parsePart(last)
	return ok
}

func parsePart(part string) (uint64, bool) {
	base := 10
	switch {
	case strings.HasPrefix(part, "0x"), strings.HasPrefix(part, "0X"):
		part, base = part[2:], 16
		if part == "" { // inet_aton reads a bare 0x as 0
			return 0, true
		}
	case len(part) > 1 && part[0] == '0':
		part, base = part[1:], 8
	}
	if part == "" || part[0] == '+' || part[0] == '-' || strings.Contains(part, "_") {
		return 0, false
	}
	n, err := strconv.ParseUint(part, base, 32)
	return n, err == nil
}
