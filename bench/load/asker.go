package load

import (
	"io"
	"time"
)

// Asker asks one server again and again on one connection and returns whole bodies.
type Asker struct{ client client }

// NewAsker returns an Asker of host:port.
func NewAsker(address string) *Asker { return &Asker{client{address: address}} }

// Ask sends a rendered request and returns the body of its response, of whatever
// status. After an error the next call connects anew.
func (a *Asker) Ask(request []byte) (body []byte, err error) {
	c := &a.client
	if c.conn == nil {
		if err := c.connect(); err != nil {
			return nil, err
		}
	}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if err := c.conn.SetDeadline(time.Now().Add(replyTimeout)); err != nil {
		return nil, err
	}
	if _, err := c.conn.Write(request); err != nil {
		return nil, err
	}
	_, length, closes, err := readHead(c.reader)
	if err != nil {
		return nil, err
	}
	body = make([]byte, length)
	if _, err := io.ReadFull(c.reader, body); err != nil {
		return nil, err
	}
	if closes {
		c.close()
	}
	return body, nil
}

// Close ends the connection.
func (a *Asker) Close() { a.client.close() }
