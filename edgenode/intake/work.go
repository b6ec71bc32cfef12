package intake

import (
	"bytes"
	"io"
	"time"

	"github.com/valyala/fasthttp"

	"skerry/edgenode/buffer"
	"skerry/edgenode/gate"
	"skerry/pkg/event"
	"skerry/replication/up"
)

// work is the memory of one request. It is reused.
type work struct {
	m      *Module
	body   body
	parser *event.Parser
	lanes  lanes
	ahead  []byte // the body's first bytes; of most bodies, all
	now    time.Time
}

func newWork(m *Module) *work {
	return &work{m: m, parser: event.NewParser(), lanes: lanes{buffer: m.cfg.Buffer}}
}

// begin prepares for a request; whole means that its body is decoded as one.
func (w *work) begin(ctx *fasthttp.RequestCtx, pass *gate.Pass, whole bool) error {
	h, err := header(ctx, pass)
	if err != nil {
		return err
	}
	w.now = ctx.Time()
	w.lanes.begin(h)
	return w.body.begin(w.m, ctx, scope{project: pass.Key.ProjectID, whole: whole})
}

// end gives back what the request held, and w itself; what is not committed is forgotten.
func (w *work) end() {
	if w.lanes.spool != nil {
		w.m.stats.spooled.Add(1)
	}
	if err := w.lanes.abort(); err != nil {
		w.m.cfg.Log.Error("forget a spooled request", "error", err)
	}
	w.body.end()
	w.lanes.header = up.Header{} // its request id is the server's memory
	if cap(w.ahead) > 2*free {
		w.ahead = nil // the pool is not to hold what one large request needed
	}
	w.m.works.Put(w)
}

// single reads a body that is one payload.
func (w *work) single(kind event.Kind) (event.Counts, error) {
	return w.read(
		func(b []byte) (event.Counts, error) { return w.parser.Single(b, kind, w.now, &w.lanes) },
		func(r io.Reader) (event.Counts, error) { return w.parser.SingleFrom(r, kind, w.now, &w.lanes) })
}

// batch reads a batch.
func (w *work) batch() (event.Counts, error) {
	return w.read(
		func(b []byte) (event.Counts, error) { return w.parser.Batch(b, w.now, &w.lanes) },
		func(r io.Reader) (event.Counts, error) { return w.parser.BatchFrom(r, w.now, &w.lanes) })
}

// read parses the body from memory if it is small, and else as it comes.
func (w *work) read(whole func([]byte) (event.Counts, error), stream func(io.Reader) (event.Counts, error)) (event.Counts, error) {
	complete, err := w.readAhead()
	if err != nil {
		w.body.drain()
		return event.Counts{}, err
	}
	if complete {
		return whole(w.ahead)
	}
	counts, err := stream(io.MultiReader(bytes.NewReader(w.ahead), &w.body))
	if err != nil {
		w.body.drain()
	}
	return counts, err
}

// readAhead reads up to inMemory bytes; complete tells whether that is all.
func (w *work) readAhead() (complete bool, err error) {
	w.ahead = w.ahead[:0]
	for {
		if len(w.ahead) == cap(w.ahead) {
			if len(w.ahead) >= inMemory {
				return false, nil
			}
			w.grow()
		}
		n, err := w.body.Read(w.ahead[len(w.ahead):cap(w.ahead)])
		w.ahead = w.ahead[:len(w.ahead)+n]
		if err == io.EOF {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// grow makes room for the announced length at once, or for twice what is there.
func (w *work) grow() {
	size := max(2*cap(w.ahead), 4096)
	if announced := w.body.raw.length; w.body.dec == nil && announced >= 0 {
		size = max(size, int(min(announced+1, inMemory)))
	}
	w.ahead = append(make([]byte, 0, min(size, inMemory)), w.ahead...)
}

// lanes sorts a request's operations into blocks. It is the parser's Sink.
type lanes struct {
	buffer  *buffer.Buffer
	header  up.Header
	writers [up.LaneCrash + 1]up.BlockWriter
	open    [up.LaneCrash + 1]bool // the writer holds operations
	full    [][]byte               // finished blocks of a request that has no spool
	blocks  [][]byte               // memory of commit
	size    int                    // bytes of full
	spool   *buffer.Spool          // of a large request, from the first large operation or the inMemory-th byte on
	op      up.Operation
}

func (l *lanes) begin(h up.Header) {
	l.header, l.open, l.full, l.size, l.spool = h, [up.LaneCrash + 1]bool{}, nil, 0, nil
}

// Operation implements event.Sink.
func (l *lanes) Operation(op *event.Operation) error {
	lane := laneOf(op.Kind)
	l.op = up.Operation{Unstorable: up.Reason(op.Unstorable), DistinctID: op.DistinctID}
	switch {
	case op.Unstorable != 0:
		l.op.Raw = op.Payload
	case op.Kind == event.Alias:
		l.op.AliasID, l.op.Timestamp = op.AliasID, op.Timestamp
	case op.Kind == event.People:
		l.op.Properties = op.Properties
	default:
		l.op.EventName, l.op.Timestamp = op.EventName, op.Timestamp
		l.op.AnonID, l.op.InsertID, l.op.LibVersion = op.AnonID, op.InsertID, op.LibVersion
		l.op.Properties, l.op.DefaultProperties = op.Properties, op.DefaultProperties
	}
	if op.Large {
		return l.large(lane, op)
	}
	w := &l.writers[lane]
	if l.open[lane] && w.Len()+len(op.Payload) > up.TargetBlockBytes {
		if err := l.finish(lane); err != nil {
			return err
		}
	}
	if !l.open[lane] {
		h := l.header
		h.Lane = lane
		w.Reset(h)
		l.open[lane] = true
	}
	w.Append(&l.op)
	return nil
}

func laneOf(k event.Kind) up.Lane {
	switch k {
	case event.Alias:
		return up.LaneAlias
	case event.People:
		return up.LanePeople
	case event.Track:
		return up.LaneEvent
	}
	panic("BUG: no such kind of operation")
}

// large writes an operation whose payload is in the spool. What an alias needs of it is
// in the operation already.
func (l *lanes) large(lane up.Lane, op *event.Operation) error {
	if lane == up.LaneAlias {
		if err := l.DropLarge(); err != nil {
			return err
		}
		plain := *op
		plain.Large = false
		return l.Operation(&plain)
	}
	if err := l.finish(lane); err != nil { // the order within the lane
		return err
	}
	h := l.header
	h.Lane = lane
	return l.spool.Large(h, l.op, up.Span(op.PropertiesAt), up.Span(op.DefaultsAt))
}

// Large implements event.Sink.
func (l *lanes) Large(piece []byte) error {
	if err := l.startSpool(); err != nil {
		return err
	}
	return l.spool.Piece(piece)
}

// DropLarge implements event.Sink.
func (l *lanes) DropLarge() error {
	if l.spool == nil {
		return nil
	}
	return l.spool.DropPieces()
}

// Restart implements event.Sink.
func (l *lanes) Restart() error {
	l.open, l.full, l.size = [up.LaneCrash + 1]bool{}, nil, 0
	if l.spool == nil {
		return nil
	}
	return l.spool.Restart()
}

// finish ends the lane's present block.
func (l *lanes) finish(lane up.Lane) error {
	if !l.open[lane] {
		return nil
	}
	l.open[lane] = false
	block := l.writers[lane].Bytes()
	if l.spool == nil {
		l.full = append(l.full, bytes.Clone(block))
		if l.size += len(block); l.size <= inMemory {
			return nil
		}
		return l.startSpool()
	}
	return l.spool.Block(block)
}

// startSpool begins to write to the disk, with what is finished already.
func (l *lanes) startSpool() error {
	if l.spool != nil {
		return nil
	}
	l.spool = l.buffer.NewSpool()
	for _, block := range l.full {
		if err := l.spool.Block(block); err != nil {
			return err
		}
	}
	l.full, l.size = nil, 0
	return nil
}

// commit puts all operations into the buffer. They are stored when the wait for what it
// returns has ended.
func (l *lanes) commit() (buffer.Pending, error) {
	if l.spool != nil {
		for _, lane := range up.Lanes {
			if err := l.finish(lane); err != nil {
				return buffer.Pending{}, err
			}
		}
		return l.spool.Put()
	}
	blocks := append(l.blocks[:0], l.full...)
	for _, lane := range up.Lanes {
		if l.open[lane] {
			blocks = append(blocks, l.writers[lane].Bytes())
		}
	}
	stored, err := l.buffer.Put(blocks...)
	clear(blocks)
	l.blocks = blocks[:0]
	return stored, err
}

// abort forgets what was not committed.
func (l *lanes) abort() error {
	if l.spool == nil {
		return nil
	}
	spool := l.spool
	l.spool = nil
	return spool.Abort()
}
