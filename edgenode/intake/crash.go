package intake

import (
	"errors"
	"io"

	"github.com/google/uuid"
	"github.com/valyala/fasthttp"

	"skerry/edgenode/gate"
	"skerry/pkg/crash"
	"skerry/pkg/id"
	"skerry/pkg/problem"
	"skerry/replication/up"
)

const moduleDisabled = `{"error":"module_disabled"}`

// Crash serves POST /api/catch/events: 202 with the report's id when the report is on the
// disk. Order of checks: key, allowlist, module, body.
func (m *Module) Crash(ctx *fasthttp.RequestCtx, _ []byte) {
	pass := m.cfg.Gate.Admit(ctx, gate.Crashes)
	if pass.Refusal != gate.Admitted {
		gate.Crashes.Refuse(ctx, pass)
		return
	}
	if !pass.Env.Settings.Modules.Catch {
		respond(ctx, fasthttp.StatusForbidden, moduleDisabled)
		return
	}
	w := m.works.Get().(*work)
	defer w.end()
	if err := w.begin(ctx, &pass, asOne); err != nil {
		m.fail(ctx, err)
		return
	}
	fresh, err := w.crash()
	var said *problem.Error
	switch {
	case errors.As(err, &said):
		respond(ctx, said.Kind.Status(), string(said.Body()))
	case err != nil:
		m.fail(ctx, err)
	default:
		m.stats.crashes.Add(1)
		respond(ctx, fasthttp.StatusAccepted, `{"id":"`+fresh+`"}`)
	}
}

// crash reads, checks and stores one report.
func (w *work) crash() (string, error) {
	report, err := w.readReport()
	if err != nil {
		w.body.drain()
		return "", err
	}
	e, err := crash.Decode(report, w.now)
	if err != nil {
		return "", err
	}
	record, err := e.Marshal()
	if err != nil {
		return "", err
	}
	fresh := id.New()
	own, err := uuid.Parse(fresh)
	if err != nil {
		return "", err
	}
	h := w.lanes.header
	h.Lane = up.LaneCrash
	block := &w.lanes.writers[up.LaneCrash]
	block.Reset(h)
	block.Append(&up.Operation{ID: own, Raw: record})
	return fresh, w.lanes.buffer.Append(block.Bytes())
}

// readReport reads the body whole. One that may be large takes what it can become of the
// memory budget first.
func (w *work) readReport() ([]byte, error) {
	complete, err := w.readAhead()
	if err != nil || complete {
		return w.ahead, err
	}
	// Without waiting: it holds a part already, and many such would wait for each other.
	if !w.body.sized() && !w.body.take(wholeCost*crash.MaxBodyBytes, 0) {
		return nil, errBusy
	}
	rest, err := io.ReadAll(io.LimitReader(&w.body, crash.MaxBodyBytes-inMemory+1))
	switch {
	case err != nil:
		return nil, err
	case len(rest) > crash.MaxBodyBytes-inMemory:
		return nil, errTooLarge
	}
	return append(w.ahead, rest...), nil
}
