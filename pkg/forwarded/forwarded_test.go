package forwarded

import (
	"net/netip"
	"strings"
	"testing"
)

var trusted = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("::ffff:172.16.0.0/108"), netip.MustParsePrefix("fd00::/8")}

func TestClientIsTheLastThatNoTrustedProxyVouchesFor(t *testing.T) {
	t.Parallel()
	many := strings.Repeat("10.0.0.2, ", 1000)
	for _, c := range []struct {
		name, peer string
		lines      []string
		want       string
	}{
		{"a stranger's header", "9.9.9.9", []string{"1.2.3.4"}, "9.9.9.9"},
		{"no header", "10.0.0.1", nil, "10.0.0.1"},
		{"an empty one", "10.0.0.1", []string{""}, "10.0.0.1"},
		{"what the client wrote stands left", "10.0.0.1", []string{"127.0.0.1, 1.2.3.4"}, "1.2.3.4"},
		{"a chain in lines", "10.0.0.1", []string{"6.6.6.6", "1.2.3.4,10.0.0.3 , \t10.0.0.2"}, "1.2.3.4"},
		{"only proxies", "10.0.0.1", []string{"10.0.0.3", "10.0.0.2"}, "10.0.0.3"},
		{"with a port", "10.0.0.1", []string{"203.0.113.7:4711"}, "203.0.113.7"},
		{"IPv6 with a port", "10.0.0.1", []string{"[2001:db8::1]:443"}, "2001:db8::1"},
		{"IPv6 in brackets", "10.0.0.1", []string{"[2001:db8::1]"}, "2001:db8::1"},
		{"a proxy with a port", "10.0.0.1", []string{"203.0.113.7:4711, 10.0.0.2:80, [fd00::2]:80"}, "203.0.113.7"},
		{"IPv4 in IPv6", "::ffff:10.0.0.1", []string{"::ffff:203.0.113.7, [::ffff:10.0.0.2]:80"}, "203.0.113.7"},
		{"a network of IPv4 in IPv6", "172.16.0.1", []string{"203.0.113.7"}, "203.0.113.7"},
		{"outside of that network", "172.32.0.1", []string{"203.0.113.7"}, "172.32.0.1"},
		{"zones", "fd00::1%eth0", []string{"fe80::7%eth1, fd00::2%eth2"}, "fe80::7"},
		{"empty entries", "10.0.0.1", []string{"203.0.113.7, ,,", ","}, "203.0.113.7"},
		{"an obfuscated client", "10.0.0.1", []string{"1.2.3.4, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"the words of Forwarded", "10.0.0.1", []string{`1.2.3.4, for="[2001:db8::1]:4711"`}, "10.0.0.1"},
		{"a port that is none", "10.0.0.1", []string{"1.2.3.4:99999"}, "10.0.0.1"},
		{"half a bracket", "10.0.0.1", []string{"[2001:db8::1"}, "10.0.0.1"},
		{"a thousand proxies", "10.0.0.1", []string{"1.2.3.4, " + many + "10.0.0.2"}, "1.2.3.4"},
		{"a thousand strangers", "10.0.0.1", []string{strings.Repeat("6.6.6.6,", 1000) + "1.2.3.4"}, "1.2.3.4"},
		{"a thousand commas", "10.0.0.1", []string{"1.2.3.4" + strings.Repeat(",", 1000)}, "1.2.3.4"},
	} {
		if got := Client(netip.MustParseAddr(c.peer), c.lines, trusted).String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// Whatever an entry is, the answer is the peer or one of the entries, and without trust always the peer.
func FuzzClient(f *testing.F) {
	f.Add("1.2.3.4, [::1]:80", "unknown")
	f.Add(",,%", "[1.2.3.4]")
	f.Fuzz(func(t *testing.T, a, b string) {
		peer := netip.MustParseAddr("10.0.0.1")
		lines := []string{a, b}
		if got := Client(peer, lines, nil); got != peer {
			t.Errorf("without trust: %s", got)
		}
		got := Client(peer, lines, trusted)
		if !got.IsValid() || got.Zone() != "" || got.Is4In6() {
			t.Errorf("%q: %v", lines, got)
		}
	})
}
