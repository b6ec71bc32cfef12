package audit

import (
	"bufio"
	"errors"
	"io"
	"strconv"
	"strings"

	"encoding/hex"

	"skerry/pkg/instant"
)

// errTooLarge ends an export that would pass its limit: a cut-off file would be taken
// for a whole one.
var errTooLarge = errors.New("export_too_large")

// csvWriter writes entries as RFC 4180 with CRLF, one at a time, and counts.
type csvWriter struct {
	out   *bufio.Writer
	limit int64
	rows  int64
	bytes int64
	line  []byte
}

// csvHeader are the entry's fields in the API's order.
var csvHeader = []string{"id", "actor_id", "actor_email", "action", "resource_type", "resource_id",
	"before", "after", "metadata", "created_at", "seq", "hash", "project_id"}

func newCSV(w io.Writer, limit int64) (*csvWriter, error) {
	c := &csvWriter{out: bufio.NewWriterSize(w, 64<<10), limit: limit}
	return c, c.write(csvHeader)
}

func (c *csvWriter) entry(e *Entry) error {
	c.rows++
	return c.write([]string{e.ID, e.ActorID, deref(e.ActorEmail), e.Action, e.ResourceType, e.ResourceID,
		string(e.Before), string(e.After), string(e.Metadata), instant.Format(e.CreatedAt),
		strconv.FormatInt(e.Seq, 10), hex.EncodeToString(e.Hash), deref(e.ProjectID)})
}

func (c *csvWriter) write(cells []string) error {
	c.line = c.line[:0]
	for i, cell := range cells {
		if i > 0 {
			c.line = append(c.line, ',')
		}
		c.line = appendCell(c.line, cell)
	}
	c.line = append(c.line, '\r', '\n')
	if c.bytes += int64(len(c.line)); c.bytes > c.limit {
		return errTooLarge
	}
	_, err := c.out.Write(c.line)
	return err
}

// appendCell quotes where RFC 4180 wants it. A cell that a spreadsheet would run as a
// formula gets an apostrophe in front, which makes it text.
func appendCell(b []byte, cell string) []byte {
	if cell != "" && strings.IndexByte("=+-@\t\r", cell[0]) >= 0 {
		cell = "'" + cell
	}
	if !strings.ContainsAny(cell, "\",\r\n") {
		return append(b, cell...)
	}
	b = append(b, '"')
	for i := range len(cell) {
		if cell[i] == '"' {
			b = append(b, '"')
		}
		b = append(b, cell[i])
	}
	return append(b, '"')
}

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
