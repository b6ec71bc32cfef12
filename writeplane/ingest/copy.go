package ingest

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"

	"skerry/replication/up"
)

// COPY's binary form, written by hand: the values are bytes already, and pgx's own row
// source would box each of them.
const (
	copySQL = `COPY events (received_at, timestamp, id, project_id, number, environment, rewritten, edge, event_name,
	distinct_id, anon_id, sent_anon_id, insert_id, lib_version, properties, default_properties) FROM STDIN (FORMAT binary)`
	copyColumns = 16
	copyHeader  = "PGCOPY\n\xff\r\n\x00\x00\x00\x00\x00\x00\x00\x00\x00"
	copyChunk   = 64 << 10
	// postgresEpoch is 2000-01-01 in µs since 1970.
	postgresEpoch = 946684800000000
)

// copyEvents stores the rows, none of which is a reference.
func copyEvents(ctx context.Context, tx pgx.Tx, l *load, rows []*row) error {
	_, err := tx.Conn().PgConn().CopyFrom(ctx, &copyReader{load: l, rows: rows, chunk: []byte(copyHeader)}, copySQL)
	if err != nil {
		return fmt.Errorf("copy events: %w", err)
	}
	return nil
}

// copyReader encodes rows while Postgres takes those before them.
type copyReader struct {
	load  *load
	rows  []*row
	chunk []byte // encoded
	read  int    // of chunk
	ended bool
}

func (c *copyReader) Read(p []byte) (int, error) {
	if c.read == len(c.chunk) {
		if c.ended {
			return 0, io.EOF
		}
		c.chunk, c.read = c.chunk[:0], 0
		for len(c.rows) > 0 && len(c.chunk) < copyChunk {
			r := c.rows[0]
			c.rows = c.rows[1:]
			c.chunk = appendFront(c.chunk, c.load, r)
			c.chunk = appendField(c.chunk, r.Properties)
			c.chunk = appendField(c.chunk, r.DefaultProperties)
		}
		if len(c.rows) == 0 && len(c.chunk) < copyChunk {
			c.chunk = append(c.chunk, 0xff, 0xff) // no more rows
			c.ended = true
		}
	}
	n := copy(p, c.chunk[c.read:])
	c.read += n
	return n, nil
}

// appendFront encodes all of a row but its properties.
func appendFront(b []byte, l *load, r *row) []byte {
	be := binary.BigEndian
	b = be.AppendUint16(b, copyColumns)
	b = be.AppendUint64(be.AppendUint32(b, 8), uint64(r.receivedAt-postgresEpoch))
	b = be.AppendUint64(be.AppendUint32(b, 8), uint64(r.Timestamp-postgresEpoch))
	id := eventID(l.edge, l.in, l.lane, r.number, r.receivedAt)
	b = append(be.AppendUint32(b, 16), id[:]...)
	b = append(be.AppendUint32(b, 16), r.scope.Project[:]...)
	b = be.AppendUint64(be.AppendUint32(b, 8), r.number)
	b = be.AppendUint16(be.AppendUint32(b, 2), uint16(r.scope.Environment))
	distinct, anon, sentAnon, rewritten := r.identity()
	b = append(be.AppendUint32(b, 1), rewritten)
	b = append(be.AppendUint32(b, uint32(len(l.edge))), l.edge...)
	b = appendField(b, r.EventName)
	b = appendField(b, distinct)
	b = appendField(b, anon)
	b = appendField(b, sentAnon)
	b = appendField(b, r.InsertID)
	return appendField(b, r.LibVersion)
}

// identity is the row's identifiers as they are stored: an alias's event belongs to the
// canonical id at once, and the sent one goes into anon_id.
func (r *row) identity() (distinct, anon, sentAnon []byte, rewritten byte) {
	if r.canonical == "" {
		return r.DistinctID, r.AnonID, nil, 0
	}
	if r.AnonID != nil && string(r.AnonID) != string(r.DistinctID) {
		sentAnon = r.AnonID
	}
	return []byte(r.canonical), r.DistinctID, sentAnon, 1
}

// appendField encodes a value; nil is NULL.
func appendField(b, value []byte) []byte {
	if value == nil {
		return binary.BigEndian.AppendUint32(b, 1<<32-1)
	}
	return append(binary.BigEndian.AppendUint32(b, uint32(len(value))), value...)
}

// copyReferred stores one row whose properties lie in the blob store, without holding
// them in memory.
func (s *Store) copyReferred(ctx context.Context, tx pgx.Tx, l *load, r *row) error {
	front := appendFront([]byte(copyHeader), l, r)
	parts := []io.Reader{}
	var open []io.Closer
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	for _, span := range [...]up.Span{r.Ref.Properties, r.Ref.DefaultProperties} {
		if span.Length == 0 {
			front = appendField(front, nil)
			continue
		}
		front = binary.BigEndian.AppendUint32(front, uint32(span.Length))
		blob, err := s.blobs.Open(ctx, r.Ref.Key)
		if err != nil {
			return fmt.Errorf("open payload: %w", err)
		}
		open = append(open, blob)
		if _, err := blob.Seek(span.Offset, io.SeekStart); err != nil {
			return fmt.Errorf("read payload: %w", err)
		}
		parts = append(parts, bytes.NewReader(front), io.LimitReader(blob, span.Length))
		front = nil
	}
	parts = append(parts, bytes.NewReader(append(front, 0xff, 0xff)))
	if _, err := tx.Conn().PgConn().CopyFrom(ctx, io.MultiReader(parts...), copySQL); err != nil {
		return fmt.Errorf("copy a large event: %w", err)
	}
	return nil
}
