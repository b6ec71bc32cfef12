package hostile

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"skerry/bench/stage"
)

// smuggled is a request in the body of another one. If anybody takes it for a request of
// its own, a flag is halted, which can be seen at the write plane.
func smuggled(t *target) string {
	body := `{"flag_key":"flag-000","reason":"smuggled"}`
	return fmt.Sprintf("POST /api/switch/halt-webhook HTTP/1.1\r\nHost: edge\r\nX-Api-Key: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		t.project.Key, len(body), body)
}

// disguise makes a request to path out of the smuggled one.
type disguise struct {
	name string
	make func(start, inner string) string
}

func length(n int) string { return fmt.Sprintf("Content-Length: %d\r\n", n) }

func chunk(s string) string { return fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(s), s) }

// Each disguise has one reading in which inner is the body, or a part of it, and another
// in which it is a request. start is the request line and the plain headers.
var disguises = []disguise{
	{"length and chunked", func(start, inner string) string {
		return start + length(5+len(inner)) + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner
	}},
	{"chunked and length", func(start, inner string) string {
		return start + "Transfer-Encoding: chunked\r\n" + length(5+len(inner)) + "\r\n0\r\n\r\n" + inner
	}},
	{"short length and chunked", func(start, inner string) string {
		return start + length(4) + "Transfer-Encoding: chunked\r\n\r\n" + chunk(inner)
	}},
	{"two lengths", func(start, inner string) string {
		return start + length(0) + length(len(inner)) + "\r\n" + inner
	}},
	{"two lengths, longer first", func(start, inner string) string {
		return start + length(len(inner)) + length(0) + "\r\n" + inner
	}},
	{"list of lengths", func(start, inner string) string {
		return start + fmt.Sprintf("Content-Length: 0, %d\r\n\r\n", len(inner)) + inner
	}},
	{"length with a sign", func(start, inner string) string {
		return start + fmt.Sprintf("Content-Length: +%d\r\n\r\n", len(inner)) + inner
	}},
	{"length and blank before the colon", func(start, inner string) string {
		return start + fmt.Sprintf("Content-Length : %d\r\n\r\n", len(inner)) + inner
	}},
	{"chunked and blank before the colon", func(start, inner string) string {
		return start + length(5+len(inner)) + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + inner
	}},
	{"chunked after a tab", func(start, inner string) string {
		return start + length(5+len(inner)) + "Transfer-Encoding:\tchunked\r\n\r\n0\r\n\r\n" + inner
	}},
	{"unknown coding", func(start, inner string) string {
		return start + length(5+len(inner)) + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + inner
	}},
	{"chunked twice", func(start, inner string) string {
		return start + length(5+len(inner)) + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + inner
	}},
	{"chunked in a folded line", func(start, inner string) string {
		return start + length(5+len(inner)) + "X-Folded: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner
	}},
	{"folded coding", func(start, inner string) string {
		return start + length(5+len(inner)) + "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + inner
	}},
	{"bare line feeds", func(start, inner string) string {
		return start + length(5+len(inner)) + "X-Bare: a\nTransfer-Encoding: chunked\n\r\n0\r\n\r\n" + inner
	}},
	{"bare carriage return", func(start, inner string) string {
		return start + length(5+len(inner)) + "X-Bare: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + inner
	}},
	{"bare line feed in a chunk's extension", func(start, inner string) string {
		// One reading ends the extension at the line feed, the other at CR LF.
		return start + "Transfer-Encoding: chunked\r\n\r\n2;a\nxx\r\n" + fmt.Sprintf("%x\r\n", len(inner)+7) + "\r\n0\r\n\r\n" + inner + "\r\n0\r\n\r\n"
	}},
	{"chunk's extension", func(start, inner string) string {
		return start + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("%x;a=\"\r\n\"\r\n%s\r\n0\r\n\r\n", len(inner), inner)
	}},
	{"chunk's size overflows", func(start, inner string) string {
		return start + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("1%016x\r\n%s\r\n0\r\n\r\n", 0, inner)
	}},
	{"chunk's size with 0x", func(start, inner string) string {
		return start + "Transfer-Encoding: chunked\r\n\r\n" + fmt.Sprintf("0x%x\r\n%s\r\n0\r\n\r\n", len(inner), inner)
	}},
	{"body of a GET, forwarded", func(start, inner string) string {
		return start + length(len(inner)) + "\r\n" + inner
	}},
}

// paths are one that the edge answers itself and two that it passes on.
var paths = []string{"POST /api/v1/track", "POST /api/pulse/responses", "GET /api/v1/projects"}

// smuggling sends every disguise to every path; the flag must never be halted.
func smuggling(ctx context.Context, t *target) (string, []string, error) {
	// It takes as long as it takes, but no longer than this.
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Minute)
	defer stop()
	inner := smuggled(t)
	if err := control(ctx, t, inner); err != nil {
		return "", nil, err
	}
	var broken []string
	tried := 0
	statuses := map[int]int{}
	for _, path := range paths {
		start := path + " HTTP/1.1\r\nHost: edge\r\nContent-Type: application/json\r\nX-Api-Key: " + t.project.Key + "\r\n"
		for _, d := range disguises {
			for _, status := range converse(t, d.make(start, inner)) {
				statuses[status]++
			}
			tried++
			halted, err := isHalted(ctx, t)
			if err != nil {
				return "", nil, err
			}
			if halted {
				broken = append(broken, fmt.Sprintf("%s, %s: the smuggled request was carried out", path, d.name))
				if err := t.stage.Resume(ctx, t.project, "flag-000"); err != nil {
					return "", nil, err
				}
			}
		}
	}
	return fmt.Sprintf("%d requests with another one inside, answered %v", tried, statuses), broken, nil
}

// control shows that the smuggled request would do its work if anybody took it for one.
func control(ctx context.Context, t *target, inner string) error {
	statuses := converse(t, inner)
	halted, err := isHalted(ctx, t)
	if err != nil {
		return err
	}
	if !halted {
		return fmt.Errorf("the smuggled request has no effect when it is sent openly: answered %v", statuses)
	}
	return t.stage.Resume(ctx, t.project, "flag-000")
}

// converse sends bytes and gives the statuses of all answers until the edge has been
// silent for a while or ended the connection.
func converse(t *target, request string) (statuses []int) {
	conn, err := net.DialTimeout("tcp", t.edge.Address, 5*time.Second)
	if err != nil {
		return nil
	}
	defer func() { _ = conn.Close() }()
	if _, err := io.WriteString(conn, request); err != nil {
		return nil
	}
	_ = conn.SetReadDeadline(time.Now().Add(silence))
	all, _ := io.ReadAll(conn)
	reader := bufio.NewReader(bytes.NewReader(all))
	for {
		response, err := http.ReadResponse(reader, nil)
		if err != nil {
			return statuses
		}
		statuses = append(statuses, response.StatusCode)
		_, _ = io.Copy(io.Discard, response.Body)
		_ = response.Body.Close()
	}
}

// silence is how long nothing must come before a conversation counts as over: long
// enough for the way to the write plane and back.
const silence = 250 * time.Millisecond

func isHalted(ctx context.Context, t *target) (bool, error) {
	count, err := stage.Query[int](ctx, t.stage, "SELECT count(*)::int FROM flags WHERE project_id = $1 AND key = 'flag-000' AND halted_at IS NOT NULL", t.project.ID)
	return count > 0, err
}
