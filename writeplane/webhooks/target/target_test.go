package target_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	"go.uber.org/goleak"

	"skerry/writeplane/webhooks/target"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// names is a resolver whose answers a test can change between two look-ups.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, _, host string) ([]netip.Addr, error) {
	texts, ok := n[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	found := make([]netip.Addr, len(texts))
	for i, text := range texts {
		found[i] = netip.MustParseAddr(text)
	}
	return found, nil
}

func TestAddressesOutsideThePublicInternetAreRefused(t *testing.T) {
	t.Parallel()
	guard := target.New(target.Config{Resolver: names{
		"inside.example": {"10.1.2.3"},
		"mixed.example":  {"93.184.216.34", "127.0.0.1"},
	}})
	for _, url := range []string{
		"https://127.0.0.1/", "https://127.1/", "https://2130706433/", "https://0x7f000001/", "https://0x7f.1/",
		"https://017700000001/", "https://0177.0.0.1/", "https://127.0.0.1./", "https://0/", "https://0.0.0.0/",
		"https://[::1]/", "https://[::]/", "https://[::ffff:127.0.0.1]/", "https://[::ffff:7f00:1]/",
		"https://[64:ff9b::7f00:1]/", "https://[64:ff9b:1::1]/", "https://[2002:7f00:1::]/", "https://[2001:0:1::]/",
		"https://10.0.0.1/", "https://172.16.0.1/", "https://172.31.255.255/", "https://192.168.1.1/",
		"https://169.254.169.254/", "https://100.64.0.1/", "https://100.127.255.255/", "https://168.63.129.16/",
		"https://224.0.0.1/", "https://240.0.0.1/", "https://255.255.255.255/", "https://192.0.2.1/", "https://198.51.100.1/",
		"https://203.0.113.1/", "https://198.18.0.1/", "https://198.19.255.255/", "https://192.0.0.1/", "https://192.88.99.1/",
		"https://[fe80::1]/", "https://[fc00::1]/", "https://[fd00::1]/", "https://[ff02::1]/", "https://[2001:db8::1]/",
		"https://[3fff::1]/", "https://[100::1]/", "https://[5f00::1]/", "https://[fec0::1]/", "https://[::127.0.0.1]/",
		"https://256.1.1.1/", "https://1.2.3.256/", "https://4294967296/", "https://1.2.3.4.5/", "https://08.1.1.1/", "https://example.0x7f/",
		"https://inside.example/", "https://mixed.example/",
	} {
		if err := guard.Check(t.Context(), url); !errors.Is(err, target.ErrRefused) {
			t.Errorf("%s: %v, want a refusal", url, err)
		}
	}
}

func TestPublicTargetsAreAccepted(t *testing.T) {
	t.Parallel()
	guard := target.New(target.Config{Resolver: names{"outside.example": {"93.184.216.34", "2606:2800:220:1::1"}}})
	for _, url := range []string{
		"https://93.184.216.34/hook", "https://outside.example:8443/hook?token=1", "https://[2606:2800:220:1::1]/",
		"https://172.15.0.1/", "https://172.32.0.1/", "https://100.63.0.1/", "https://100.128.0.1/",
		"https://unresolved.example/", // judged when it is called
		"https://4.example/", "https://example.x7/", "https://a.b-1/",
	} {
		if err := guard.Check(t.Context(), url); err != nil {
			t.Errorf("%s: %v, want acceptance", url, err)
		}
	}
}

func TestMalformedURLsAreRefused(t *testing.T) {
	t.Parallel()
	guard := target.New(target.Config{Resolver: names{"outside.example": {"93.184.216.34"}}})
	for _, url := range []string{
		"", "hook", "//outside.example/", "ftp://outside.example/", "http://outside.example/", "https:///x", "https:outside.example",
		"https://user:pw@outside.example/", "https://user@outside.example/", "https://outside.example:0/", "https://outside.example:99999/",
		"https://outside.example/#x", "javascript:alert(1)", "http://unresolved.example/", "https://\x00/", "file:///etc/passwd",
	} {
		if err := guard.Check(t.Context(), url); !errors.Is(err, target.ErrRefused) {
			t.Errorf("%q: %v, want a refusal", url, err)
		}
	}
}

func TestOperatorMayAllowRangesAndPlainHTTP(t *testing.T) {
	t.Parallel()
	loopback := target.New(target.Config{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	for url, accepted := range map[string]bool{
		"http://127.0.0.1:9/": true, "https://127.0.0.1/": true, "http://0x7f000001/": true, "http://[::ffff:127.0.0.1]/": true,
		"http://93.184.216.34/": false, "http://10.0.0.1/": false,
	} {
		if err := loopback.Check(t.Context(), url); (err == nil) != accepted {
			t.Errorf("%s with loopback allowed: %v, want accepted=%v", url, err, accepted)
		}
	}
	plain := target.New(target.Config{AllowHTTP: true})
	if err := plain.Check(t.Context(), "http://93.184.216.34/"); err != nil {
		t.Error(err)
	}
	if err := plain.Check(t.Context(), "http://127.0.0.1/"); err == nil {
		t.Error("allowing http opened the loopback range")
	}
}

func TestRebindingReachesNothing(t *testing.T) {
	t.Parallel()
	reached := false
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached = true }))
	defer server.Close()
	_, port, _ := net.SplitHostPort(server.Listener.Addr().String())

	zone := names{"rebind.example": {"93.184.216.34"}}
	guard := target.New(target.Config{AllowHTTP: true, Resolver: zone})
	if err := guard.Check(t.Context(), "http://rebind.example:"+port+"/"); err != nil {
		t.Fatalf("at creation: %v", err)
	}
	zone["rebind.example"] = []string{"127.0.0.1"}
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){"https": guard.DialContext, "http": guard.DialPlain} {
		conn, err := dial(t.Context(), "tcp", "rebind.example:"+port)
		if !errors.Is(err, target.ErrRefused) {
			t.Errorf("%s dial after rebinding: %v %v, want a refusal", name, conn, err)
		}
	}
	if reached {
		t.Error("the request reached the inner server")
	}
}

func TestPlainDialNeedsAVouchedAddress(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	address := server.Listener.Addr().String()
	allowed := target.New(target.Config{AllowCIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	conn, err := allowed.DialPlain(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	strict := target.New(target.Config{Resolver: names{"outside.example": {"93.184.216.34"}}})
	if _, err := strict.DialPlain(t.Context(), "tcp", "outside.example:80"); !errors.Is(err, target.ErrRefused) {
		t.Errorf("plain http to a public address: %v, want a refusal", err)
	}
}

func FuzzCheck(f *testing.F) {
	f.Add("https://0x7f.1:8080/x")
	f.Add("https://[::ffff:1.2.3.4%25eth0]/")
	guard := target.New(target.Config{Resolver: names{}})
	f.Fuzz(func(t *testing.T, url string) { _ = guard.Check(t.Context(), url) })
}
