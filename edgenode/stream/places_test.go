package stream_test

import (
	"io"
	"net"
	"net/http"
	"testing"

	"skerry/edgenode/stream"
)

// client asks for streams from an address of its own.
type client struct {
	*edge
	transport *http.Transport
}

func (e *edge) client(address byte) client {
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, address)}}
	return client{e, &http.Transport{DisableKeepAlives: true, DialContext: dialer.DialContext}}
}

// opens tells whether the client gets a stream; ended, when set, hears of its end.
func (c client) opens(ended chan<- struct{}) bool {
	c.t.Helper()
	request, err := http.NewRequestWithContext(c.t.Context(), "GET", "http://"+c.addr+"/api/v1/stream?key="+c.Live, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	response, err := c.transport.RoundTrip(request)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = response.Body.Close() })
	if response.StatusCode != 200 {
		return false
	}
	if _, err := io.ReadFull(response.Body, make([]byte, len(": open"))); err != nil {
		c.t.Fatal(err)
	}
	if ended != nil {
		go func() {
			_, _ = io.Copy(io.Discard, response.Body)
			ended <- struct{}{}
		}()
	}
	return true
}

func TestWhoHasMostStreamsGivesPlacesUp(t *testing.T) {
	t.Parallel()
	const places = 8
	e := newEdge(t, stream.Config{Streams: places})
	first, second, third := e.client(1), e.client(2), e.client(3)
	ended := make(chan struct{}, places)
	for i := range places {
		if !first.opens(ended) {
			t.Fatalf("alone, a client has no more than %d places", i)
		}
	}
	if first.opens(nil) {
		t.Error("a client takes its own places")
	}
	for i := range places / 2 {
		if !second.opens(nil) {
			t.Fatalf("another client has no more than %d places", i)
		}
		<-ended
	}
	if second.opens(nil) {
		t.Error("a client takes more than its half")
	}
	if !third.opens(nil) {
		t.Error("a third client has no place")
	}
	if n := e.m.Stats().Open; n != places {
		t.Errorf("%d streams", n)
	}
}
