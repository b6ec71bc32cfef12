// Package intake takes what clients send: track, people, alias, batch (specification,
// Endpoints; supplement §3) and crash reports (supplement §6).
//
// It promises: an answer of success means that all of the request is on this edge's disk,
// any other that nothing is; the order of checks and the bodies of the specification;
// memory under 16 MiB per request whatever the body's size, and under a budget for all
// requests together, for which a request waits a while and is then answered 503; no
// project and no client keeps others from that memory, however slowly its bodies come. It
// asks nobody: the centre can be gone.
package intake

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"skerry/edgenode/buffer"
	"skerry/edgenode/gate"
	"skerry/pkg/event"
	"skerry/replication/up"
)

// Config says what an intake works with. Zero values mean the defaults.
type Config struct {
	Gate   *gate.Gate
	Buffer *buffer.Buffer
	// MaxBodyBytes bounds a body as sent and as decoded; 0 means 500 MiB.
	MaxBodyBytes int64
	// MemoryBytes bounds what all requests with bodies over 64 KiB, or compressed ones,
	// hold at once; 0 means 128 MiB.
	MemoryBytes int64
	// Patience is how long a request waits for its part of MemoryBytes before it is
	// answered 503; 0 means 10 s.
	Patience time.Duration
	// Log gets faults of the buffer; nil means slog.Default().
	Log *slog.Logger
}

// Validate names the first field that is wrong.
func (c *Config) Validate() error {
	switch {
	case c.Gate == nil:
		return errors.New("intake: Gate is missing")
	case c.Buffer == nil:
		return errors.New("intake: Buffer is missing")
	case c.MaxBodyBytes < 0:
		return fmt.Errorf("intake: MaxBodyBytes is %d", c.MaxBodyBytes)
	case c.MemoryBytes < 0:
		return fmt.Errorf("intake: MemoryBytes is %d", c.MemoryBytes)
	case c.Patience < 0:
		return fmt.Errorf("intake: Patience is %s", c.Patience)
	}
	return nil
}

// Module is the intake. Its handlers may be called concurrently.
type Module struct {
	cfg    Config
	memory memory
	works  sync.Pool // *work
	coders decoders
	stats  stats
}

type stats struct{ track, people, alias, crashes, garbage, full, spooled atomic.Uint64 }

// Stats is what was counted since the start.
type Stats struct {
	Track, People, Alias, Crashes uint64 // accepted operations
	Garbage                       uint64 // operations left out for their ids
	Full                          uint64 // requests answered 503 because disk or memory was short
	Spooled                       uint64 // requests that went through the disk while they were checked
	Memory                        int64  // bytes taken of the budget at this moment
}

// New returns an intake.
func New(cfg Config) (*Module, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.MaxBodyBytes == 0 {
		cfg.MaxBodyBytes = 500 << 20
	}
	if cfg.MemoryBytes == 0 {
		cfg.MemoryBytes = 128 << 20
	}
	if cfg.Patience == 0 {
		cfg.Patience = 10 * time.Second
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	m := &Module{cfg: cfg, memory: memory{limit: cfg.MemoryBytes, press: pressAfter}}
	m.works.New = func() any { return newWork(m) }
	return m, nil
}

// Stats tells what was counted.
func (m *Module) Stats() Stats {
	s := &m.stats
	return Stats{Track: s.track.Load(), People: s.people.Load(), Alias: s.alias.Load(), Crashes: s.crashes.Load(),
		Garbage: s.garbage.Load(), Full: s.full.Load(), Spooled: s.spooled.Load(), Memory: m.memory.inUse()}
}

// Track serves POST /api/v1/track.
func (m *Module) Track(ctx *fasthttp.RequestCtx, _ []byte) {
	m.take(ctx, gate.Ingestion, func(w *work) (event.Counts, error) { return w.single(event.Track) }, answerOK)
}

// People serves POST /api/v1/people.
func (m *Module) People(ctx *fasthttp.RequestCtx, _ []byte) {
	m.take(ctx, gate.Profiles, func(w *work) (event.Counts, error) { return w.single(event.People) }, answerOK)
}

// Alias serves POST /api/v1/alias.
func (m *Module) Alias(ctx *fasthttp.RequestCtx, _ []byte) {
	m.take(ctx, gate.Profiles, func(w *work) (event.Counts, error) { return w.single(event.Alias) }, answerAlias)
}

// Batch serves POST /api/v1/batch.
func (m *Module) Batch(ctx *fasthttp.RequestCtx, _ []byte) {
	m.take(ctx, gate.Ingestion, (*work).batch, answerBatch)
}

// answer writes what the client gets when its request is on the disk, or was all garbage.
type answer func(ctx *fasthttp.RequestCtx, pass gate.Pass, counts event.Counts)

// take is the way of every request: gate, parse with validation and the garbage filter,
// store, answer.
func (m *Module) take(ctx *fasthttp.RequestCtx, family *gate.Family, read func(*work) (event.Counts, error), answer answer) {
	pass := m.cfg.Gate.Admit(ctx, family)
	if pass.Refusal != gate.Admitted {
		family.Refuse(ctx, pass)
		return
	}
	counts, stored, err := m.store(ctx, &pass, read)
	if err == nil && counts.Accepted() > 0 {
		err = stored.Wait()
	}
	if err != nil {
		m.fail(ctx, err)
		return
	}
	m.count(counts)
	answer(ctx, pass, counts)
}

// store reads a request and puts what it accepts into the buffer. The memory that it
// takes is free again when it returns: the wait for the disk is the longest part of a
// request, and hundreds wait at once.
func (m *Module) store(ctx *fasthttp.RequestCtx, pass *gate.Pass, read func(*work) (event.Counts, error)) (counts event.Counts, stored buffer.Pending, err error) {
	w := m.works.Get().(*work)
	defer w.end()
	if err = w.begin(ctx, pass, inPieces); err != nil {
		return counts, stored, err
	}
	if counts, err = read(w); err == nil && counts.Accepted() > 0 {
		stored, err = w.lanes.commit()
	}
	return counts, stored, err
}

func (m *Module) count(c event.Counts) {
	m.stats.track.Add(uint64(c.Track))
	m.stats.people.Add(uint64(c.People))
	m.stats.alias.Add(uint64(c.Alias))
	m.stats.garbage.Add(uint64(c.Garbage))
}

const (
	okBody        = `{"ok":true}`
	discardedBody = `{"ok":true,"status":"discarded"}`
	discardedAll  = `{"ok":true,"status":"discarded_all"}`
	unavailable   = `{"error":"Service temporarily unavailable"}`
	tooLargeBody  = `{"error":"payload_too_large"}`
	encodingBody  = `{"error":"unsupported_encoding"}`
)

func respond(ctx *fasthttp.RequestCtx, status int, body string) {
	ctx.Response.Header.SetContentType("application/json")
	ctx.SetStatusCode(status)
	ctx.SetBodyString(body)
}

func answerOK(ctx *fasthttp.RequestCtx, _ gate.Pass, counts event.Counts) {
	if counts.Accepted() == 0 {
		respond(ctx, fasthttp.StatusAccepted, discardedBody)
		return
	}
	respond(ctx, fasthttp.StatusOK, okBody)
}

func answerAlias(ctx *fasthttp.RequestCtx, _ gate.Pass, counts event.Counts) {
	if counts.Accepted() == 0 {
		respond(ctx, fasthttp.StatusAccepted, discardedBody)
		return
	}
	ctx.SetStatusCode(fasthttp.StatusOK)
}

func answerBatch(ctx *fasthttp.RequestCtx, pass gate.Pass, counts event.Counts) {
	if counts.Accepted() == 0 {
		respond(ctx, fasthttp.StatusAccepted, discardedAll)
		return
	}
	b := append([]byte(nil), `{"ok":true,"project_id":`...)
	b = appendText(b, pass.Key.ProjectID)
	b = appendText(append(b, `,"project_name":`...), pass.Env.ProjectName)
	b = appendText(append(b, `,"environment":`...), pass.Key.Environment)
	b = strconv.AppendInt(append(b, `,"operations_received":`...), int64(counts.Accepted()), 10)
	b = strconv.AppendInt(append(b, `,"events_received":`...), int64(counts.Track), 10)
	b = strconv.AppendInt(append(b, `,"people_received":`...), int64(counts.People), 10)
	b = strconv.AppendInt(append(b, `,"aliases_received":`...), int64(counts.Alias), 10)
	b = append(b, `,"commands":[]}`...)
	ctx.Response.Header.SetContentType("application/json")
	ctx.SetStatusCode(fasthttp.StatusOK)
	ctx.SetBody(b)
}

func appendText(b []byte, s string) []byte {
	text, err := json.Marshal(s)
	if err != nil {
		panic("BUG: a string does not marshal: " + err.Error())
	}
	return append(b, text...)
}

// fail answers a request of which nothing was stored.
func (m *Module) fail(ctx *fasthttp.RequestCtx, err error) {
	var fault event.Fault
	switch {
	case errors.As(err, &fault):
		respond(ctx, fasthttp.StatusBadRequest, string(appendText([]byte(`{"error":`), string(fault)))+"}")
	case errors.Is(err, errTooLarge):
		respond(ctx, fasthttp.StatusRequestEntityTooLarge, tooLargeBody)
	case errors.Is(err, errEncoding):
		respond(ctx, fasthttp.StatusUnsupportedMediaType, encodingBody)
	case errors.Is(err, buffer.ErrFull), errors.Is(err, errBusy), errors.Is(err, buffer.ErrClosed):
		m.stats.full.Add(1)
		respond(ctx, fasthttp.StatusServiceUnavailable, unavailable)
	default:
		m.stats.full.Add(1)
		m.cfg.Log.Error("ingest buffer", "error", err, "request_id", string(gate.RequestID(ctx)))
		respond(ctx, fasthttp.StatusServiceUnavailable, unavailable)
	}
}

// header is what the blocks of a request have in common. Its request id points into ctx's
// memory: block writers copy it.
func header(ctx *fasthttp.RequestCtx, pass *gate.Pass) (up.Header, error) {
	project, err := uuid.Parse(pass.Key.ProjectID)
	if err != nil {
		return up.Header{}, fmt.Errorf("project id of the key: %w", err)
	}
	environment, ok := up.ParseEnvironment(pass.Key.Environment)
	if !ok {
		return up.Header{}, fmt.Errorf("environment of the key: %q", pass.Key.Environment)
	}
	request := gate.RequestID(ctx)
	return up.Header{Environment: environment, ReceivedAt: ctx.Time().UnixMicro(), Project: project,
		RequestID: unsafe.String(unsafe.SliceData(request), len(request))}, nil
}
