package target

import "net/netip"

// notPublic are the ranges that a webhook must not reach: what IANA's special-purpose
// registries list as not globally reachable, multicast, IPv6 transition mechanisms
// (which carry an IPv4 address inside), and one cloud's host address.
var notPublic = prefixes(
	// IPv4
	"0.0.0.0/8",        // this network
	"10.0.0.0/8",       // private
	"100.64.0.0/10",    // carrier-grade NAT
	"127.0.0.0/8",      // loopback
	"168.63.129.16/32", // host agent of a cloud, outside every reserved range
	"169.254.0.0/16",   // link-local, metadata services among them
	"172.16.0.0/12",    // private
	"192.0.0.0/24",     // protocol assignments
	"192.0.2.0/24",     // documentation
	"192.88.99.0/24",   // 6to4 relay
	"192.168.0.0/16",   // private
	"198.18.0.0/15",    // benchmarking
	"198.51.100.0/24",  // documentation
	"203.0.113.0/24",   // documentation
	"224.0.0.0/4",      // multicast
	"240.0.0.0/4",      // reserved, broadcast
	// IPv6; everything outside 2000::/3 is refused by public itself
	"2001::/23",     // protocol assignments, Teredo and ORCHID among them
	"2001:db8::/32", // documentation
	"2002::/16",     // 6to4
	"3fff::/20",     // documentation
)

var globalUnicast = netip.MustParsePrefix("2000::/3")

func prefixes(texts ...string) []netip.Prefix {
	parsed := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		parsed[i] = netip.MustParsePrefix(text)
	}
	return parsed
}

// public reports whether an address belongs to the public internet. An IPv4-mapped
// address is judged as the IPv4 address that it is.
func public(a netip.Addr) bool {
	a = a.WithZone("").Unmap()
	if a.Is6() && !globalUnicast.Contains(a) {
		return false
	}
	for _, prefix := range notPublic {
		if prefix.Contains(a) {
			return false
		}
	}
	return a.IsValid()
}
