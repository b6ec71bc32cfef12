package up

import (
	"encoding/binary"
)

// Header is what the operations of a block have in common.
type Header struct {
	Lane        Lane
	Environment Environment
	First       uint64 // number of the first operation
	Count       uint32 // how many operations
	ReceivedAt  int64  // µs since 1970: when the edge received the request
	Project     [16]byte
	RequestID   string // "" when there is none; at most MaxRequestIDBytes
}

// BlockWriter builds one block. The zero value needs Reset first. Its memory is reused.
type BlockWriter struct {
	buf   []byte
	lane  Lane
	count uint32
}

// Reset starts a block; First and Count of h are ignored: the log numbers blocks when it
// commits them.
func (w *BlockWriter) Reset(h Header) {
	if len(h.RequestID) > MaxRequestIDBytes {
		h.RequestID = h.RequestID[:MaxRequestIDBytes]
	}
	w.lane, w.count = h.Lane, 0
	b := append(w.buf[:0], 0, 0, 0, 0, wireVersion, byte(h.Lane), byte(h.Environment), 0)
	b = append(b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint64(b, uint64(h.ReceivedAt))
	b = append(b, h.Project[:]...)
	b = append(b, byte(len(h.RequestID)))
	w.buf = append(b, h.RequestID...)
}

// Append adds an operation.
func (w *BlockWriter) Append(op *Operation) {
	w.buf = AppendOperation(w.buf, w.lane, op)
	w.count++
}

// Count is how many operations the block holds so far.
func (w *BlockWriter) Count() uint32 { return w.count }

// Len is how many bytes the block has so far.
func (w *BlockWriter) Len() int { return len(w.buf) }

// Bytes is the finished block, without a first number (see SetFirst). It is valid until
// the next Reset.
func (w *BlockWriter) Bytes() []byte {
	binary.LittleEndian.PutUint32(w.buf, uint32(len(w.buf)-4))
	binary.LittleEndian.PutUint32(w.buf[16:], w.count)
	return w.buf
}

// SetFirst writes the number of a block's first operation.
func SetFirst(block []byte, first uint64) { binary.LittleEndian.PutUint64(block[8:], first) }

// Block is one decoded block; Operations yields what it holds.
type Block struct {
	Header
	ops []byte
}

// DecodeBlock decodes the first block in src and returns what follows it. The block
// points into src. The operations are checked when they are read.
func DecodeBlock(src []byte) (b Block, rest []byte, err error) {
	if len(src) < blockHeaderBytes {
		return b, nil, corrupt("block header cut off")
	}
	size := uint64(binary.LittleEndian.Uint32(src)) + 4
	if size > uint64(len(src)) || size < blockHeaderBytes {
		return b, nil, corrupt("block of %d bytes in %d", size, len(src))
	}
	src, rest = src[:size:size], src[size:]
	if src[4] != wireVersion {
		return b, nil, corrupt("block version %d", src[4])
	}
	b.Lane, b.Environment = Lane(src[5]), Environment(src[6])
	b.First = binary.LittleEndian.Uint64(src[8:])
	b.Count = binary.LittleEndian.Uint32(src[16:])
	b.ReceivedAt = int64(binary.LittleEndian.Uint64(src[20:]))
	copy(b.Project[:], src[28:44])
	id := int(src[44])
	switch {
	case !b.Lane.Valid():
		return b, nil, corrupt("lane %d", src[5])
	case b.Environment != Live && b.Environment != Test:
		return b, nil, corrupt("environment %d", src[6])
	case src[7] != 0:
		return b, nil, corrupt("block flags %d", src[7])
	case b.Count == 0 || b.First > 1<<63:
		return b, nil, corrupt("block of %d operations from number %d", b.Count, b.First)
	case id > MaxRequestIDBytes || blockHeaderBytes+id > len(src):
		return b, nil, corrupt("request id of %d bytes", id)
	}
	b.RequestID = string(src[blockHeaderBytes : blockHeaderBytes+id])
	b.ops = src[blockHeaderBytes+id:]
	return b, rest, nil
}

// End is the number after the block's last operation.
func (b *Block) End() uint64 { return b.First + uint64(b.Count) }

// Operations starts reading the block's operations.
func (b *Block) Operations() Operations {
	return Operations{lane: b.Lane, b: b.ops, next: b.First, end: b.End()}
}

// Operations reads a block's operations one after the other:
//
//	for ops := b.Operations(); ops.Next(&op); { … ops.Number() … }
//
// with a look at Err behind the loop.
type Operations struct {
	lane      Lane
	b         []byte
	next, end uint64
	err       error
}

// Next decodes the next operation into op; it is false at the end and at a fault.
func (o *Operations) Next(op *Operation) bool {
	if o.err != nil {
		return false
	}
	if o.next == o.end {
		if len(o.b) != 0 {
			o.err = corrupt("%d bytes behind the last operation", len(o.b))
		}
		return false
	}
	if o.b, o.err = DecodeOperation(o.b, o.lane, op); o.err != nil {
		return false
	}
	o.next++
	return true
}

// Number is the number of the operation that Next decoded last.
func (o *Operations) Number() uint64 { return o.next - 1 }

// Err is the fault that ended the reading, or nil.
func (o *Operations) Err() error { return o.err }
