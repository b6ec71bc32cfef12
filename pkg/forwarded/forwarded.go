// Package forwarded finds the client's address of a request that came through proxies,
// from X-Forwarded-For.
//
// It promises: only what trusted proxies say is believed, so nothing that a client writes
// itself; an entry may have a port, as those of some gateways have, or the brackets of an
// IPv6 address; empty entries count for nothing (RFC 9110 section 5.6.1); an address is
// the same however it is written: IPv4 in IPv6 is IPv4, and zones, which mean something
// on one machine only, are left out. It does not read the header Forwarded (RFC 7239).
package forwarded

import (
	"net/netip"
	"slices"
	"strings"
)

// Client is the nearest address that no trusted proxy vouches for: the peer's own or,
// when the peer is trusted, the last untrusted one in the lines of X-Forwarded-For. (Each
// proxy appends on the right, so what a client wrote itself stands further left.) An
// entry that is no address ends the search: whoever wrote it is the client, as far as can
// be told.
func Client[Line ~string | ~[]byte](peer netip.Addr, lines []Line, trusted []netip.Prefix) netip.Addr {
	client := plain(peer)
	if !Within(trusted, client) {
		return client
	}
	for _, line := range slices.Backward(lines) {
		rest, more := string(line), true
		for more {
			var entry string
			if rest, entry, more = cutLast(rest); entry == "" {
				continue
			}
			hop, ok := read(entry)
			if !ok {
				return client
			}
			if client = hop; !Within(trusted, client) {
				return client
			}
		}
	}
	return client
}

// cutLast takes the last entry off a list; more tells whether others are left.
func cutLast(list string) (rest, entry string, more bool) {
	at := strings.LastIndexByte(list, ',')
	return list[:max(at, 0)], strings.TrimSpace(list[at+1:]), at >= 0
}

func read(entry string) (netip.Addr, bool) {
	if a, err := netip.ParseAddr(entry); err == nil {
		return plain(a), true
	}
	if p, err := netip.ParseAddrPort(entry); err == nil {
		return plain(p.Addr()), true
	}
	if inner, ok := strings.CutPrefix(entry, "["); ok && strings.HasSuffix(inner, "]") {
		a, err := netip.ParseAddr(strings.TrimSuffix(inner, "]"))
		return plain(a), err == nil
	}
	return netip.Addr{}, false
}

func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }

// Within tells whether an address, as Client gives it, is in one of the networks.
func Within(networks []netip.Prefix, address netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return Network(p).Contains(address) })
}

// Network is the prefix in the form in which Client gives addresses: a prefix of IPv4
// addresses mapped into IPv6 becomes one of IPv4.
func Network(p netip.Prefix) netip.Prefix {
	const mapped = 96 // bits before the IPv4 address
	if p.Addr().Is4In6() && p.Bits() >= mapped {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-mapped)
	}
	return p
}
