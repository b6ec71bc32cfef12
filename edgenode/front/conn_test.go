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

var testLimits = Limits{Time: 30 * time.Second, Idle: 75 * time.Second, Stall: time.Minute}

// pair is a connection as the server has it, and its client's end.
func pair(t *testing.T) (*conn, *counted, net.Conn) {
	t.Helper()
	server, client := net.Pipe()
	t.Cleanup(func() { _, _ = server.Close(), client.Close() })
	below := &counted{Conn: server}
	return &conn{Conn: below, limits: &testLimits}, below, client
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

func TestReadEndsWhenWhatItWaitsForDoesNotCome(t *testing.T) {
	t.Parallel()
	const pause = 10 * time.Second
	request := func(t *testing.T, c *conn, client net.Conn) {
		go func() { _, _ = io.WriteString(client, "x") }()
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Error(err)
		}
	}
	answer := func(t *testing.T, c *conn, client net.Conn) {
		c.answered(time.Now())
		go func() { _, _ = io.ReadFull(client, make([]byte, 1)) }()
		if _, err := c.Write([]byte("y")); err != nil {
			t.Error(err)
		}
	}
	part := request
	set := func(t *testing.T, c *conn, _ net.Conn) { _ = c.SetReadDeadline(time.Now().Add(time.Hour)) }
	for name, one := range map[string]struct {
		steps []func(*testing.T, *conn, net.Conn) // with a pause behind each
		want  time.Duration                       // from the last step on
	}{
		"first request":                     {nil, 30 * time.Second},
		"rest of the first":                 {[]func(*testing.T, *conn, net.Conn){part}, 20 * time.Second},
		"next request":                      {[]func(*testing.T, *conn, net.Conn){request, answer}, 65 * time.Second},
		"its rest":                          {[]func(*testing.T, *conn, net.Conn){request, answer, part}, 30 * time.Second},
		"the rest of its rest":              {[]func(*testing.T, *conn, net.Conn){request, answer, part, part}, 20 * time.Second},
		"a body with a time of its own":     {[]func(*testing.T, *conn, net.Conn){request, answer, part, set, part}, time.Hour - 20*time.Second},
		"the request behind such a body":    {[]func(*testing.T, *conn, net.Conn){request, set, part, answer}, 65 * time.Second},
		"the rest of one that came with it": {[]func(*testing.T, *conn, net.Conn){request, func(_ *testing.T, c *conn, _ net.Conn) { c.answered(time.Now()) }}, 75 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			c, _, client := pair(t)
			for _, step := range one.steps {
				step(t, c, client)
				time.Sleep(pause)
			}
			begun := time.Now()
			_, err := c.Read(make([]byte, 1))
			if took := time.Since(begun); !errors.Is(err, os.ErrDeadlineExceeded) || took != one.want {
				t.Errorf("%s: %v after %s, want the deadline's end after %s", name, err, took, one.want)
			}
		})
	}
}

func TestLaterDeadlinesDoNotReachTheConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, below, client := pair(t)
		for range 1000 { // requests in two parts, one every 20 ms
			for range 2 {
				go func() { _, _ = io.WriteString(client, "x") }()
				if _, err := c.Read(make([]byte, 1)); err != nil {
					t.Fatal(err)
				}
			}
			c.answered(time.Now())
			go func() { _, _ = io.ReadFull(client, make([]byte, 1)) }()
			if _, err := c.Write([]byte("y")); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
		}
		// 30 s for the first request; 20 s are too short for that to pass.
		if below.set != 1 {
			t.Errorf("set %d times, want once", below.set)
		}
	})
}

// A body whose announced length would allow hours is given up as soon as it keeps its reader waiting.
func TestBodyHasToComeAtAPace(t *testing.T) {
	t.Parallel()
	const kib = 1 << 10
	for name, c := range map[string]struct {
		send func(io.Writer) // until the connection ends
		want time.Duration   // until then; 0: an hour of it is read
	}{
		"nothing":                     {func(io.Writer) {}, 30 * time.Second},
		"a byte each second":          {every(time.Second, 1), 30 * time.Second},
		"16 KiB each second":          {every(time.Second, 16*kib), 60 * time.Second},
		"40 KiB each second":          {every(time.Second, 40*kib), 0},
		"a pause of 50 s each minute": {every(50*time.Second, 2000*kib), 0},
		"much, then nothing":          {func(w io.Writer) { _, _ = w.Write(make([]byte, 8000*kib)) }, 60 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			c1, _, client := pair(t)
			_ = c1.SetReadDeadline(time.Now().Add(30 * time.Second))
			c1.receive()
			if name == "a pause of 50 s each minute" {
				c1.credit = 60 * time.Second // the first pause comes before anything is earned
			}
			done := make(chan struct{})
			go func() { defer close(done); c.send(client) }()
			begun, buf := time.Now(), make([]byte, 8*kib)
			var err error
			for err == nil && time.Since(begun) < time.Hour {
				_, err = c1.Read(buf)
			}
			took := time.Since(begun)
			_ = c1.Close()
			<-done
			switch {
			case c.want == 0 && err != nil:
				t.Errorf("%s: given up after %s: %v", name, took, err)
			case c.want > 0 && (!errors.Is(err, os.ErrDeadlineExceeded) || took < c.want-2*time.Second || took > c.want+time.Second):
				t.Errorf("%s: %v after %s, want to give up after %s", name, err, took, c.want)
			}
		})
	}
}

// every writes n bytes after each pause until nobody takes them.
func every(pause time.Duration, n int) func(io.Writer) {
	return func(w io.Writer) {
		for {
			time.Sleep(pause)
			if _, err := w.Write(make([]byte, n)); err != nil {
				return
			}
		}
	}
}

// A large answer leaves in one call of the server's, and may take its client longer than any pause may be.
func TestAnswerMayTakeLongAsLongAsItMoves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _, client := pair(t)
		const size = 1 << 20
		go func() { // 4 KiB a second: 256 s
			for range size / 4096 {
				time.Sleep(time.Second)
				_, _ = io.ReadFull(client, make([]byte, 4096))
			}
		}()
		if n, err := c.Write(make([]byte, size)); n != size || err != nil {
			t.Errorf("%d bytes of %d, %v", n, size, err)
		}
		time.Sleep(45 * time.Second) // the last deadline was for the answer before
		begun := time.Now()
		n, err := c.Write(make([]byte, size))
		if took := time.Since(begun); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) || took < time.Minute || took > 90*time.Second {
			t.Errorf("nothing is taken: %d bytes, %v after %s", n, err, took)
		}
	})
}

func TestTimeInWhichNobodyReadsIsNotTheSenders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c, _, client := pair(t)
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		c.receive()
		go func() { _, _ = client.Write(make([]byte, 3)) }()
		for range 3 {
			time.Sleep(time.Hour) // a full disk, or a slow write plane
			if n, err := c.Read(make([]byte, 1)); n != 1 || err != nil {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		go func() {
			time.Sleep(10 * time.Second)
			_ = c.SetReadDeadline(time.Unix(1, 0))
		}()
		begun := time.Now()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != 10*time.Second {
			t.Errorf("ended from outside: %v after %s", err, time.Since(begun))
		}
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("and stays so: %v", err)
		}
		c.answered(time.Now())
		begun = time.Now()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begun) != 75*time.Second {
			t.Errorf("between requests: %v after %s", err, time.Since(begun))
		}
	})
}

// BenchmarkReadDeadlines moves the deadlines of one request: as the server would, and as conn does.
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
	b.Run("Bare", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_ = below.SetReadDeadline(time.Now().Add(75 * time.Second))
			_ = below.SetReadDeadline(time.Now().Add(30 * time.Second))
		}
	})
	b.Run("Noted", func(b *testing.B) {
		c := &conn{Conn: below, limits: &testLimits}
		b.ReportAllocs()
		for b.Loop() {
			c.answered(time.Now())
			c.wrote = time.Now() // as Write does
			if _, err := c.expect(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
