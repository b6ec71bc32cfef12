package hostile

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"skerry/bench/load"
	"skerry/pkg/apikey"
)

// connect opens up to count connections to the edge.
func connect(ctx context.Context, t *target, count int) ([]net.Conn, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, fmt.Errorf("ask how many files may be open: %w", err)
	}
	if most := int(limit.Cur) - 200; count > most {
		count = most
	}
	var dialer net.Dialer
	conns := make([]net.Conn, 0, count)
	for range count {
		conn, err := dialer.DialContext(ctx, "tcp", t.edge.Address)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			return conns, fmt.Errorf("open connection %d: %w", len(conns), err)
		}
		conns = append(conns, conn)
	}
	return conns, nil
}

func closeAll(conns []net.Conn) {
	for _, c := range conns {
		_ = c.Close()
	}
}

// trickle sends a byte on each connection, again and again, until ctx ends. It tells how
// many connections the edge has ended.
func trickle(ctx context.Context, conns []net.Conn, next func() byte) int {
	gone := make([]bool, len(conns))
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for {
		for i, c := range conns {
			if !gone[i] {
				_ = c.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
				_, err := c.Write([]byte{next()})
				gone[i] = err != nil
			}
		}
		select {
		case <-ctx.Done():
			ended := 0
			for _, g := range gone {
				if g {
					ended++
				}
			}
			return ended
		case <-tick.C:
		}
	}
}

// slowloris never finishes its headers.
func slowloris(ctx context.Context, t *target) (string, []string, error) {
	conns, err := connect(ctx, t, 2000)
	defer closeAll(conns)
	if err != nil {
		return "", nil, err
	}
	for _, c := range conns {
		if _, err := io.WriteString(c, "GET /api/v1/handshake HTTP/1.1\r\nHost: edge\r\nX-Slow: "); err != nil {
			return "", nil, err
		}
	}
	ended := trickle(ctx, conns, func() byte { return 'a' })
	return fmt.Sprintf("%d connections that never finish their headers; the edge ended %d by then (it does so after 30 s)", len(conns), ended), nil, nil
}

// slowBodies promises a megabyte and sends two bytes a second.
func slowBodies(ctx context.Context, t *target) (string, []string, error) {
	conns, err := connect(ctx, t, 1000)
	defer closeAll(conns)
	if err != nil {
		return "", nil, err
	}
	head := fmt.Sprintf("POST /api/v1/batch HTTP/1.1\r\nHost: edge\r\nX-Api-Key: %s\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n{", t.project.Key)
	for _, c := range conns {
		if _, err := io.WriteString(c, head); err != nil {
			return "", nil, err
		}
	}
	ended := trickle(ctx, conns, func() byte { return ' ' })
	return fmt.Sprintf("%d bodies of a megabyte at two bytes a second; the edge ended %d by then", len(conns), ended), nil, nil
}

// idle opens connections and says nothing.
func idle(ctx context.Context, t *target) (string, []string, error) {
	conns, err := connect(ctx, t, 10_000)
	defer closeAll(conns)
	if err != nil {
		return "", nil, err
	}
	<-ctx.Done()
	return fmt.Sprintf("%d open connections without a word", len(conns)), nil, nil
}

// randomKeys asks with keys that do not exist: each a look into the state, none an entry
// in a cache that grows.
func randomKeys(ctx context.Context, t *target) (string, []string, error) {
	const most = 100_000
	var sent atomic.Int64
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	source := func(int) load.Source {
		return func() []byte {
			if sent.Add(1) >= most {
				stop()
			}
			return load.Render("GET", "/api/v1/handshake?distinct_id=u", t.edge.Address, map[string]string{"X-Api-Key": apikey.New("live")}, nil)
		}
	}
	statuses := map[int]int64{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			counts := exchange(ctx, t, source(0))
			mu.Lock()
			defer mu.Unlock()
			for status, n := range counts {
				statuses[status] += n
			}
		})
	}
	group.Wait()
	var broken []string
	for status := range statuses {
		if status != 401 && status != 429 {
			broken = append(broken, fmt.Sprintf("random keys were answered %v", statuses))
			break
		}
	}
	return fmt.Sprintf("%d random keys, answered %v", min(sent.Load(), most), statuses), broken, nil
}

// exchange sends requests one after the other until ctx ends and counts the answers by
// status.
func exchange(ctx context.Context, t *target, next load.Source) map[int]int64 {
	counts := map[int]int64{}
	var conn net.Conn
	var reader *bufio.Reader
	defer func() {
		if conn != nil {
			_ = conn.Close()
		}
	}()
	for ctx.Err() == nil {
		if conn == nil {
			var err error
			if conn, err = net.DialTimeout("tcp", t.edge.Address, 5*time.Second); err != nil {
				counts[0]++
				conn = nil
				continue
			}
			reader = bufio.NewReader(conn)
		}
		_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
		status, keep := 0, false
		if _, err := conn.Write(next()); err == nil {
			status, keep = answer(reader)
		}
		counts[status]++
		if !keep {
			_ = conn.Close()
			conn = nil
		}
	}
	return counts
}

// answer reads one response; status 0 means none.
func answer(reader *bufio.Reader) (status int, keep bool) {
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return 0, false
	}
	defer func() { _ = response.Body.Close() }()
	_, err = io.Copy(io.Discard, response.Body)
	return response.StatusCode, err == nil && !response.Close
}

// bomb is a gigabyte of a JSON document's beginning in about a megabyte.
func bomb() ([]byte, error) {
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := io.WriteString(z, `{"operations":[{"type":"track","payload":{"event_name":"`); err != nil {
		return nil, err
	}
	piece := bytes.Repeat([]byte("a"), 1<<20)
	for range 1024 {
		if _, err := z.Write(piece); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil { // before the bytes are taken: it writes the last of them
		return nil, err
	}
	return packed.Bytes(), nil
}

// bombs sends bodies that unpack to a gigabyte, four at a time.
func bombs(ctx context.Context, t *target) (string, []string, error) {
	body, err := bomb()
	if err != nil {
		return "", nil, fmt.Errorf("make a bomb: %w", err)
	}
	const most = 40
	var sent atomic.Int64
	statuses := map[string]map[int]int{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range 4 {
		path := []string{"/api/v1/batch", "/api/v1/track", "/api/pulse/responses", "/ofrep/v1/evaluate/flags"}[i]
		request := load.Render("POST", path, t.edge.Address, map[string]string{"X-Api-Key": t.project.Key, "Content-Type": "application/json", "Content-Encoding": "gzip"}, body)
		statuses[path] = map[int]int{}
		group.Go(func() {
			for ctx.Err() == nil && sent.Add(1) <= most {
				status := once(t, request)
				mu.Lock()
				statuses[path][status]++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	var broken []string
	for path, counts := range statuses {
		for status := range counts {
			if status < 400 || status == 500 {
				broken = append(broken, fmt.Sprintf("bombs to %s were answered %v", path, counts))
				break
			}
		}
	}
	return fmt.Sprintf("bodies of %d KB that unpack to 1 GB, to four routes, answered %v", len(body)>>10, statuses), broken, nil
}

// once sends a request on a connection of its own. The answer may come before all of it
// is sent.
func once(t *target, request []byte) int {
	conn, err := net.DialTimeout("tcp", t.edge.Address, 5*time.Second)
	if err != nil {
		return 0
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
	go func() { _, _ = conn.Write(request) }()
	status, _ := answer(bufio.NewReader(conn))
	return status
}

// headerFlood sends headers that are too many or too long.
func headerFlood(ctx context.Context, t *target) (string, []string, error) {
	many := "GET /api/v1/handshake HTTP/1.1\r\nHost: edge\r\n" + strings.Repeat("X-Many: value\r\n", 100_000) + "\r\n"
	long := "GET /api/v1/handshake HTTP/1.1\r\nHost: edge\r\nX-Long: " + strings.Repeat("a", 4<<20) + "\r\n\r\n"
	line := "GET /" + strings.Repeat("a", 4<<20) + " HTTP/1.1\r\nHost: edge\r\n\r\n"
	statuses := map[int]int64{}
	var mu sync.Mutex
	var group sync.WaitGroup
	for _, request := range []string{many, long, line} {
		group.Go(func() {
			for n := 0; n < 500 && ctx.Err() == nil; n++ {
				status := once(t, []byte(request))
				mu.Lock()
				statuses[status]++
				mu.Unlock()
			}
		})
	}
	group.Wait()
	var broken []string
	for status := range statuses {
		// 0: the edge ended the connection while megabytes were still coming.
		if !slices.Contains([]int{0, 400, 431}, status) {
			broken = append(broken, fmt.Sprintf("floods of headers were answered %v", statuses))
			break
		}
	}
	return fmt.Sprintf("100,000 headers, a header of 4 MB, a path of 4 MB, answered %v (0: ended)", statuses), broken, nil
}
