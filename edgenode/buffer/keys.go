package buffer

import (
	"encoding/binary"
	"fmt"

	"skerry/replication/up"
)

// The store's keys, big endian so that they sort:
//
//	'a'                                                      format of the store
//	'b' lane                                                 base: operations of incarnations that are gone (u64)
//	'd'                                                      the store's own id
//	'i' ordinal                                              incarnation: its id
//	'l' lane ordinal first                                   log entry, see below
//	'q' month project metric                                 counted events and calls (u64), see usage.go
//	's' ordinal spool lane first shape                       chunk of a spool: one block; first counts from 0
//	't' ordinal spool payload piece                          piece of a large payload
//	'w' lane ordinal                                         watermark: last number stored at the centre (u64)
//	'x' lane ordinal first                                   index of those log entries that lie in a spool: the spool
//
// A log entry covers [first, first+count) and carries its sums, so that opening a log of
// any size looks only at the first and last entry of a lane:
//
//	0       1       5              13            21           29
//	+-------+-------+--------------+-------------+------------+------------------ ─ ─
//	| shape | count | bytes of the | bytes of    | oldest     | inline: blocks, one behind the other
//	|  u8   | u32   | entry  u64   | lane so far | receipt µs | spooled: u64 spool, u64 payload …
//	+-------+-------+--------------+-------------+------------+------------------ ─ ─
const (
	prefixFormat      = 'a'
	prefixBase        = 'b'
	prefixStore       = 'd'
	prefixIncarnation = 'i'
	prefixLog         = 'l'
	prefixUsage       = 'q'
	prefixChunk       = 's'
	prefixPiece       = 't'
	prefixWatermark   = 'w'
	prefixSpooled     = 'x'

	format = 1

	entryInline      = 1
	entrySpooled     = 2
	entryHeaderBytes = 29
)

func u64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

func parseU64(b []byte) (uint64, error) {
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: number of %d bytes", up.ErrCorrupt, len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}

func incarnationKey(ordinal uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixIncarnation}, ordinal)
}

func baseKey(lane up.Lane) []byte { return []byte{prefixBase, byte(lane)} }

func watermarkKey(lane up.Lane, ordinal uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{prefixWatermark, byte(lane)}, ordinal)
}

func logKey(prefix byte, lane up.Lane, ordinal, first uint64) []byte {
	k := make([]byte, 0, 18)
	k = append(k, prefix, byte(lane))
	k = binary.BigEndian.AppendUint64(k, ordinal)
	return binary.BigEndian.AppendUint64(k, first)
}

func parseLogKey(k []byte) (first uint64, err error) {
	if len(k) != 18 {
		return 0, fmt.Errorf("%w: log key of %d bytes", up.ErrCorrupt, len(k))
	}
	return binary.BigEndian.Uint64(k[10:]), nil
}

func spoolKey(prefix byte, ordinal, spool uint64) []byte {
	k := make([]byte, 0, 38)
	k = append(k, prefix)
	k = binary.BigEndian.AppendUint64(k, ordinal)
	return binary.BigEndian.AppendUint64(k, spool)
}

func chunkKey(ordinal, spool uint64, lane up.Lane, first uint64) []byte {
	return binary.BigEndian.AppendUint64(append(spoolKey(prefixChunk, ordinal, spool), byte(lane)), first)
}

func pieceKey(ordinal, spool, payload, piece uint64) []byte {
	k := binary.BigEndian.AppendUint64(spoolKey(prefixPiece, ordinal, spool), payload)
	return binary.BigEndian.AppendUint64(k, piece)
}

// after is the first key behind every key that starts with k.
func after(k []byte) []byte {
	end := append([]byte(nil), k...)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i]++; end[i] != 0 {
			return end[:i+1]
		}
	}
	panic("BUG: a prefix of 0xff only")
}

// entry is a decoded log entry.
type entry struct {
	shape  byte
	first  uint64
	count  uint32
	size   int64 // bytes of this entry
	sum    int64 // bytes of the lane up to and with this entry
	oldest int64 // µs
	body   []byte
}

func (e *entry) end() uint64 { return e.first + uint64(e.count) }

func (e *entry) appendHeader(dst []byte) []byte {
	dst = append(dst, e.shape)
	dst = binary.BigEndian.AppendUint32(dst, e.count)
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.size))
	dst = binary.BigEndian.AppendUint64(dst, uint64(e.sum))
	return binary.BigEndian.AppendUint64(dst, uint64(e.oldest))
}

// decodeEntry reads an entry; its body points into value.
func decodeEntry(key, value []byte) (e entry, err error) {
	if e.first, err = parseLogKey(key); err != nil {
		return e, err
	}
	if len(value) < entryHeaderBytes {
		return e, fmt.Errorf("%w: log entry of %d bytes", up.ErrCorrupt, len(value))
	}
	e.shape = value[0]
	e.count = binary.BigEndian.Uint32(value[1:])
	e.size = int64(binary.BigEndian.Uint64(value[5:]))
	e.sum = int64(binary.BigEndian.Uint64(value[13:]))
	e.oldest = int64(binary.BigEndian.Uint64(value[21:]))
	e.body = value[entryHeaderBytes:]
	if e.shape != entryInline && e.shape != entrySpooled || e.count == 0 || e.size < 0 || e.sum < e.size {
		return e, fmt.Errorf("%w: log entry %d", up.ErrCorrupt, e.first)
	}
	return e, nil
}
