package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"skerry/bench/load"
	"skerry/bench/report"
)

const (
	openStreams  = 10_000
	streamRounds = 5
	streamAtMost = 30 * time.Second
)

// streams opens 10,000 change streams at one edge and reads its memory: while they are
// silent, and at most while a halt and its end are told to all of them.
func streams(ctx context.Context, b *bench) error {
	if err := mayOpen(openStreams + 500); err != nil {
		return err
	}
	edge, project, err := b.ownEdge(ctx, "bench streams")
	if err != nil {
		return err
	}
	defer func() { _ = edge.Stop(stopTime) }()
	if err := b.stage.AddFlags(ctx, project, 20); err != nil {
		return err
	}
	if err := b.stage.Settled(ctx, edge); err != nil {
		return err
	}
	empty, err := edge.Memory()
	if err != nil {
		return err
	}
	l := &listeners{latency: hdrhistogram.New(1, int64(time.Minute), 3), told: make(chan struct{}, openStreams)}
	defer l.close()
	request := load.Render("GET", "/api/v1/stream", edge.Address, map[string]string{"X-Api-Key": project.Key}, nil)
	b.say("opening %d streams", openStreams)
	for range openStreams {
		if err := l.open(ctx, edge.Address, request); err != nil {
			return fmt.Errorf("open stream %d: %w", len(l.conns), err)
		}
	}
	opened, err := edge.Memory()
	if err != nil {
		return err
	}
	most := opened
	for round := range streamRounds {
		for _, change := range []func() error{
			func() error { return b.stage.Halt(ctx, project, "flag-000", fmt.Sprintf("round %d", round)) },
			func() error { return b.stage.Resume(ctx, project, "flag-000") },
		} {
			l.begin()
			if err := change(); err != nil {
				return err
			}
			if err := l.all(ctx); err != nil {
				return err
			}
			now, err := edge.Memory()
			if err != nil {
				return err
			}
			most = max(most, now)
		}
	}
	megabytes := func(bytes int64) float64 { return float64(bytes) / (1 << 20) }
	b.add(report.Figure{Scenario: "streams", Name: "edge with 10,000 silent streams", Unit: "MB", Values: []float64{megabytes(opened)}, LowerIsBetter: true, Target: 200,
		Note: fmt.Sprintf("%.0f MB before the first", megabytes(empty))})
	b.add(report.Figure{Scenario: "streams", Name: "at most while all are told", Unit: "MB", Values: []float64{megabytes(most)}, LowerIsBetter: true, Target: 200,
		Latency: report.Quantiles(l.latency), Note: fmt.Sprintf("%d changes, each told to all; from before the call that makes it", 2*streamRounds)})
	return nil
}

// mayOpen raises the limit of open files of this process, and so of the
// edges that it starts.
func mayOpen(files uint64) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("ask how many files may be open: %w", err)
	}
	if limit.Cur >= files {
		return nil
	}
	if limit.Max < files {
		return fmt.Errorf("this needs %d open files; ulimit -Hn allows %d", files, limit.Max)
	}
	limit.Cur = limit.Max
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raise the number of open files: %w", err)
	}
	return nil
}

// listeners are clients of change streams.
type listeners struct {
	conns []net.Conn
	group sync.WaitGroup
	told  chan struct{} // a stream that heard of the present change, once each
	since atomic.Int64  // when the present change was begun, ns since 1970
	round atomic.Int64  // counts changes

	mu      sync.Mutex
	latency *hdrhistogram.Histogram
}

// open opens one stream and returns when it stands.
func (l *listeners) open(ctx context.Context, address string, request []byte) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	l.conns = append(l.conns, conn)
	if _, err := conn.Write(request); err != nil {
		return err
	}
	if err := conn.SetReadDeadline(time.Now().Add(streamAtMost)); err != nil {
		return err
	}
	lines := bufio.NewReaderSize(conn, 512)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return err
		}
		if bytes.HasPrefix(line, []byte(": open")) {
			break
		}
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return err
	}
	l.group.Go(func() { l.listen(lines) })
	return nil
}

// begin begins a change, when what the last one caused has been heard (it may be told in
// several messages).
func (l *listeners) begin() {
	time.Sleep(500 * time.Millisecond)
	l.since.Store(time.Now().UnixNano())
	l.round.Add(1)
}

func (l *listeners) listen(lines *bufio.Reader) {
	heard := int64(0)
	for {
		line, err := lines.ReadSlice('\n')
		if err != nil {
			return // it is over
		}
		if round := l.round.Load(); round > heard && bytes.HasPrefix(line, []byte("data: ")) {
			heard = round
			took := time.Now().UnixNano() - l.since.Load()
			l.mu.Lock()
			_ = l.latency.RecordValue(took)
			l.mu.Unlock()
			l.told <- struct{}{}
		}
	}
}

// all waits until every stream has had a message.
func (l *listeners) all(ctx context.Context) error {
	deadline := time.NewTimer(streamAtMost)
	defer deadline.Stop()
	for n := range l.conns {
		select {
		case <-l.told:
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline.C:
			return fmt.Errorf("%d of %d streams were told within %s", n, len(l.conns), streamAtMost)
		}
	}
	return nil
}

func (l *listeners) close() {
	for _, c := range l.conns {
		_ = c.Close()
	}
	l.group.Wait()
}
