package up

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/klauspost/compress/zstd"
)

// Batch is what one message carries: whole blocks of one incarnation and lane, covering
// [First, First+Count).
type Batch struct {
	Incarnation Incarnation
	Lane        Lane
	First       uint64
	Count       uint32
	// Data holds the encoded blocks, one behind the other. See Blocks.
	Data []byte
}

// End is the number after the batch's last operation.
func (b *Batch) End() uint64 { return b.First + uint64(b.Count) }

// Blocks decodes the batch's blocks and checks that they are what the header says: one
// lane, no gaps.
func (b *Batch) Blocks() ([]Block, error) {
	var blocks []Block
	next := b.First
	for data := b.Data; len(data) > 0; {
		block, rest, err := DecodeBlock(data)
		if err != nil {
			return nil, err
		}
		if block.Lane != b.Lane || block.First != next {
			return nil, corrupt("block %s %d in a batch of %s at %d", block.Lane, block.First, b.Lane, next)
		}
		blocks, data, next = append(blocks, block), rest, block.End()
	}
	if next != b.End() {
		return nil, corrupt("blocks end at %d, batch at %d", next, b.End())
	}
	return blocks, nil
}

// weight is how many bytes the store has to handle for the batch, with a payload that
// lies in the blob store. There is one at most, in front: see Log.Read.
func (b *Batch) weight() int64 {
	n := int64(len(b.Data))
	block, _, err := DecodeBlock(b.Data)
	if err != nil {
		return n
	}
	var op Operation
	if ops := block.Operations(); ops.Next(&op) && op.Ref != nil {
		n += op.Ref.Size
	}
	return n
}

// Packer turns batches into messages. It is safe for use by several goroutines.
type Packer struct{ enc *zstd.Encoder }

// NewPacker returns a Packer that compresses fast rather than small.
func NewPacker() (*Packer, error) {
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1),
		zstd.WithWindowSize(MaxMessageBytes), zstd.WithLowerEncoderMem(true))
	if err != nil {
		return nil, fmt.Errorf("make zstd encoder: %w", err)
	}
	return &Packer{enc: enc}, nil
}

// PackBudget is how many bytes of blocks a shipper should read for one message:
// whatever they hold, the message then fits. A single block may be larger; Pack cuts it
// into parts.
const PackBudget = MaxMessageBytes - 16<<10

// Pack encodes the batch as one message, or as several parts to be sent one behind the
// other when it does not fit.
func (p *Packer) Pack(b *Batch) ([][]byte, error) {
	if len(b.Data) == 0 || len(b.Data) > MaxRawBytes || b.Count == 0 {
		return nil, fmt.Errorf("pack %d bytes with %d operations: out of bounds", len(b.Data), b.Count)
	}
	head := make([]byte, messageHeaderBytes, messageHeaderBytes+len(b.Data)/2)
	copy(head, "SKU")
	head[3], head[4] = wireVersion, byte(b.Lane)
	binary.LittleEndian.PutUint32(head[12:], b.Count)
	binary.LittleEndian.PutUint64(head[16:], b.First)
	binary.LittleEndian.PutUint64(head[24:], b.Incarnation.Ordinal)
	copy(head[32:], b.Incarnation.ID[:])
	binary.LittleEndian.PutUint32(head[48:], uint32(len(b.Data)))
	whole := p.enc.EncodeAll(b.Data, head)
	const room = MaxMessageBytes - messageHeaderBytes
	frame := whole[messageHeaderBytes:]
	parts := (len(frame) + room - 1) / room
	binary.LittleEndian.PutUint16(whole[8:], uint16(parts))
	if parts == 1 {
		return [][]byte{whole}, nil
	}
	messages := make([][]byte, parts)
	for i := range messages {
		part := frame[i*room : min((i+1)*room, len(frame))]
		m := append(append(make([]byte, 0, messageHeaderBytes+len(part)), whole[:messageHeaderBytes]...), part...)
		binary.LittleEndian.PutUint16(m[6:], uint16(i))
		messages[i] = m
	}
	return messages, nil
}

// ErrOutOfTurn reports a part that does not follow the part before it. Nothing is lost:
// the receiver drops it and asks for the batch again, as for any gap.
var ErrOutOfTurn = errors.New("part of a message out of turn")

// Unpacker turns the messages of one edge and lane back into batches. It holds the parts
// of at most one batch, so at most MaxRawBytes. It is not safe for use by several
// goroutines.
type Unpacker struct {
	dec     *zstd.Decoder
	pending messageHeader
	next    int // the part that must come next; 0: none is pending
	frame   []byte
}

// NewUnpacker returns an Unpacker that never decompresses a message to more than
// MaxRawBytes.
func NewUnpacker() (*Unpacker, error) {
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(MaxRawBytes), zstd.WithDecoderLowmem(true))
	if err != nil {
		return nil, fmt.Errorf("make zstd decoder: %w", err)
	}
	return &Unpacker{dec: dec}, nil
}

// Close frees the decoder.
func (u *Unpacker) Close() { u.dec.Close() }

type messageHeader struct {
	batch       Batch // without Data
	part, parts int
	raw         uint32
}

func (h *messageHeader) continues(p *messageHeader) bool {
	a, b := &h.batch, &p.batch
	return a.Incarnation == b.Incarnation && a.Lane == b.Lane && a.First == b.First && a.Count == b.Count &&
		h.parts == p.parts && h.raw == p.raw
}

func decodeMessageHeader(m []byte) (h messageHeader, err error) {
	if len(m) <= messageHeaderBytes || len(m) > MaxMessageBytes || string(m[:3]) != "SKU" {
		return h, corrupt("no ingest message")
	}
	if m[3] != wireVersion {
		return h, corrupt("message version %d", m[3])
	}
	h.batch.Lane = Lane(m[4])
	h.part, h.parts = int(binary.LittleEndian.Uint16(m[6:])), int(binary.LittleEndian.Uint16(m[8:]))
	h.batch.Count = binary.LittleEndian.Uint32(m[12:])
	h.batch.First = binary.LittleEndian.Uint64(m[16:])
	h.batch.Incarnation.Ordinal = binary.LittleEndian.Uint64(m[24:])
	copy(h.batch.Incarnation.ID[:], m[32:48])
	h.raw = binary.LittleEndian.Uint32(m[48:])
	switch {
	case !h.batch.Lane.Valid() || m[5] != 0 || m[10] != 0 || m[11] != 0:
		return h, corrupt("message header")
	case h.part >= h.parts || h.parts > MaxRawBytes/(MaxMessageBytes/2):
		return h, corrupt("part %d of %d", h.part, h.parts)
	case h.batch.Count == 0 || h.batch.First == 0 || h.batch.First > 1<<63 || h.raw > MaxRawBytes:
		return h, corrupt("message of %d operations from number %d in %d bytes", h.batch.Count, h.batch.First, h.raw)
	}
	return h, nil
}

// Add takes the next message. When it completes a batch, ok is true; Batch.Data is the
// caller's to keep. A part in the middle gives ok=false and no error. After any error the
// pending parts are gone.
func (u *Unpacker) Add(m []byte) (b Batch, ok bool, err error) {
	h, err := decodeMessageHeader(m)
	if err != nil {
		u.next, u.frame = 0, nil
		return b, false, err
	}
	if h.part != 0 && (h.part != u.next || !h.continues(&u.pending)) {
		u.next, u.frame = 0, nil
		return b, false, fmt.Errorf("%w: %s %d part %d", ErrOutOfTurn, h.batch.Lane, h.batch.First, h.part)
	}
	frame := m[messageHeaderBytes:]
	if h.parts > 1 {
		if h.part == 0 {
			u.pending, u.frame = h, nil
		}
		u.frame = append(u.frame, frame...)
		u.next = h.part + 1
		if u.next < h.parts {
			return b, false, nil
		}
		frame = u.frame
	}
	u.next, u.frame = 0, nil
	b = h.batch
	b.Data, err = u.dec.DecodeAll(frame, make([]byte, 0, h.raw))
	if err != nil {
		return Batch{}, false, corrupt("decompress message: %v", err)
	}
	if len(b.Data) != int(h.raw) {
		return Batch{}, false, corrupt("message of %d bytes, %d announced", len(b.Data), h.raw)
	}
	return b, true, nil
}

// Subject is the NATS subject of an edge's lane. Edge ids are tokens of [A-Za-z0-9_-].
func Subject(lane Lane, edge string) string { return "ingest." + lane.String() + "." + edge }
