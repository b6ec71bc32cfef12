// Package load sends HTTP requests as fast as one core can, or at a given rate, and
// measures how long each took.
//
// It promises that an open-loop measurement counts from the moment a request was due,
// not from when it could be sent (no coordinated omission), and that a closed-loop one
// keeps every connection busy. It speaks just enough HTTP/1.1 for the servers here:
// responses with Content-Length or without a body, on connections that stay open.
package load

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// client is one connection. It writes requests that are rendered beforehand and reads
// responses without keeping them, so that the generator is not what is measured.
type client struct {
	address string
	conn    net.Conn
	reader  *bufio.Reader
}

const (
	readBuffer   = 64 << 10
	replyTimeout = 30 * time.Second
)

func (c *client) connect() error {
	conn, err := net.DialTimeout("tcp", c.address, 5*time.Second)
	if err != nil {
		return fmt.Errorf("connect to the server under load: %w", err)
	}
	c.conn = conn
	c.reader = bufio.NewReaderSize(conn, readBuffer)
	return nil
}

func (c *client) close() {
	if c.conn != nil {
		_ = c.conn.Close()
		c.conn = nil
	}
}

// do sends one request and reads its response. After an error the connection is
// closed and the next call opens a new one.
func (c *client) do(request []byte) (status int, size int, err error) {
	if c.conn == nil {
		if err := c.connect(); err != nil {
			return 0, 0, err
		}
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return 0, 0, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return 0, 0, err
	}
	status, length, closes, err := readHead(c.reader)
	if err != nil {
		return 0, 0, err
	}
	if _, err := c.reader.Discard(length); err != nil {
		return 0, 0, err
	}
	if closes {
		c.close()
	}
	return status, length, nil
}

var (
	errNoLength    = errors.New("a response without Content-Length")
	contentLength  = []byte("content-length:")
	connectionHead = []byte("connection: close")
)

// readHead reads a status line and headers up to the empty line.
func readHead(r *bufio.Reader) (status, length int, closes bool, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return 0, 0, false, err
	}
	// HTTP/1.1 200 OK
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.")) {
		return 0, 0, false, fmt.Errorf("not a response: %q", line)
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, 0, false, fmt.Errorf("not a status line: %q", line)
	}
	length = -1
	for {
		if line, err = r.ReadSlice('\n'); err != nil {
			return 0, 0, false, err
		}
		line = bytes.TrimRight(line, "\r\n")
		switch {
		case len(line) == 0:
			if status == 304 || status == 204 {
				return status, 0, closes, nil
			}
			if length < 0 {
				return 0, 0, false, errNoLength
			}
			return status, length, closes, nil
		case hasPrefixFold(line, contentLength):
			if length, err = strconv.Atoi(string(bytes.TrimSpace(line[len(contentLength):]))); err != nil {
				return 0, 0, false, fmt.Errorf("not a length: %q", line)
			}
		case hasPrefixFold(line, connectionHead):
			closes = true
		}
	}
}

func hasPrefixFold(line, prefix []byte) bool {
	return len(line) >= len(prefix) && bytes.EqualFold(line[:len(prefix)], prefix)
}

// Get sends one request on a connection of its own and returns the whole response
// body: for looking at what a measurement asks for before it starts.
func Get(address string, request []byte) (status int, head, body []byte, err error) {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return 0, nil, nil, err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(replyTimeout))
	if _, err := conn.Write(request); err != nil {
		return 0, nil, nil, err
	}
	var seen bytes.Buffer
	reader := bufio.NewReader(io.TeeReader(conn, &seen))
	status, length, _, err := readHead(reader)
	if err != nil {
		return 0, nil, nil, err
	}
	body = make([]byte, length)
	if _, err := io.ReadFull(reader, body); err != nil {
		return 0, nil, nil, err
	}
	whole := seen.Bytes()
	if end := bytes.Index(whole, []byte("\r\n\r\n")); end >= 0 {
		head = whole[:end]
	}
	return status, head, body, nil
}
