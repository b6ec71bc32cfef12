package front

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// counted counts how often its read deadline is set.
type counted struct {
	net.Conn
	set int
}

func (c *counted) SetReadDeadline(t time.Time) error {
	c.set++
	return c.Conn.SetReadDeadline(t)
}

// pair is a connection as the server has it, and its client's end.
func pair(t *testing.T) (*conn, *counted, net.Conn) {
	t.Helper()
	server, client := net.Pipe()
	t.Cleanup(func() { _, _ = server.Close(), client.Close() })
	below := &counted{Conn: server}
	return &conn{Conn: below, stall: time.Minute}, below, client
}

func TestReadEndsAtTheDeadlineThatWasAskedForLast(t *testing.T) {
	t.Parallel()
	for name, asked := range map[string][]time.Duration{
		"once":                     {30 * time.Second},
		"moved to a later time":    {30 * time.Second, 75 * time.Second},
		"moved to an earlier time": {75 * time.Second, 30 * time.Second},
		"there and back":           {30 * time.Second, 75 * time.Second, 30 * time.Second},
		"set after there was none": {75 * time.Second, 0, 30 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _, _ := pair(t)
			begun := time.Now()
			for _, in := range asked {
				at := time.Time{} // none
				if in > 0 {
					at = begun.Add(in)
				}
				if err := c.SetReadDeadline(at); err != nil {
					t.Fatal(err)
				}
			}
			n, err := c.Read(make([]byte, 1))
			if took := time.Since(begun); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || took != asked[len(asked)-1] {
				t.Errorf("%s: %d bytes, %v after %s, want the deadline's end after %s", name, n, err, took, asked[len(asked)-1])
			}
		})
	}
}

func TestReadWithoutADeadlineOutlivesAnEarlierOne(t *testing.T) {
	t.Parallel()
	for name, clear := range map[string]func(*conn) error{
		"read deadline":  func(c *conn) error { return c.SetReadDeadline(time.Time{}) },
		"both deadlines": func(c *conn) error { return c.SetDeadline(time.Time{}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _, client := pair(t)
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
			if err := clear(c); err != nil {
				t.Fatal(err)
			}
			go func() {
				time.Sleep(time.Hour)
				_, _ = io.WriteString(client, "x")
			}()
			if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Errorf("%s: %d bytes, %v", name, n, err)
			}
		})
	}
}

func TestReadIsEndedFromOutside(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := pair(t)
		begun := time.Now()
		_ = c.SetReadDeadline(begun.Add(30 * time.Second))
		_ = c.SetReadDeadline(begun.Add(75 * time.Second))
		go func() {
			time.Sleep(40 * time.Second) // Read has been woken once and waits for the later deadline
			_ = c.SetReadDeadline(time.Unix(1, 0))
		}()
		_, err := c.Read(make([]byte, 1))
		if took := time.Since(begun); !errors.Is(err, os.ErrDeadlineExceeded) || took != 40*time.Second {
			t.Errorf("%v after %s", err, took)
		}
	})
}

func TestLaterDeadlinesDoNotReachTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, below, client := pair(t)
		for range 1000 { // requests, one every 20 ms
			_ = c.SetReadDeadline(time.Now().Add(75 * time.Second))
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
			go func() { _, _ = io.WriteString(client, "x") }()
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		// 75 s, and 30 s at once after it; 20 s are too short for that to pass.
		if below.set != 2 {
			t.Errorf("set %d times, want 2", below.set)
		}
	})
}

// BenchmarkReadDeadlines moves the deadlines of one request, as the server does.
func BenchmarkReadDeadlines(b *testing.B) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = ln.Close() }()
	below, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = below.Close() }()
	move := func(b *testing.B, c net.Conn) {
		b.ReportAllocs()
		for b.Loop() {
			_ = c.SetReadDeadline(time.Now().Add(75 * time.Second))
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		}
	}
	b.Run("Bare", func(b *testing.B) { move(b, below) })
	b.Run("Noted", func(b *testing.B) { move(b, &conn{Conn: below, stall: time.Minute}) })
}
