package writeplane

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"

	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/replication/up"
	"skerry/writeplane/identity"
	"skerry/writeplane/ingest"
	"skerry/writeplane/lease"
	"skerry/writeplane/payloads"
	"skerry/writeplane/postgres"
	"skerry/writeplane/quota"
)

// ingestion is the way of events into this plane: what receives and stores them, what
// rewrites their history, what totals them.
type ingestion struct {
	store    *ingest.Store
	receiver *up.Receiver
	worker   *identity.Worker
	payloads *payloads.Module
}

// addIngestion builds ingestion and adds what runs in the background. crashes takes
// the reports of the crash lane; nil leaves them with the edges.
func (p *Plane) addIngestion(config Config, leases *lease.Store, crashes ingest.Crashes, registry *prometheus.Registry) (err error) {
	in := &p.ingestion
	if in.store, err = ingest.NewStore(config.Ingest, p.db, p.blobs, crashes); err != nil {
		return err
	}
	streams := up.StreamLimits{MaxBytes: config.IngestStreamBytes, Replicas: config.StreamReplicas}
	if in.receiver, err = up.NewReceiver(up.ReceiverConfig{Streams: streams}, heardSink{in.store, p.watch}, leases, p.conn); err != nil {
		return err
	}
	in.worker = identity.NewWorker(p.db.App, leases)
	in.payloads = payloads.New(p.blobs, p.Access.Sealer(), p.conn)
	totals := quota.New(p.Store)
	registry.MustRegister(ingest.NewCollector(in.store), identity.NewCollector(in.worker))
	p.group.Add("receiver", in.receiver.Run)
	p.group.Add("event store", in.store.Run)
	p.group.Add("payload sweep", func(ctx context.Context) error { return in.store.SweepLeftovers(ctx, leases.Acquire) })
	p.group.Add("history", in.worker.Run)
	p.group.Add("payloads", in.payloads.Run)
	p.group.Add("usage", func(ctx context.Context) error { return totals.Run(ctx, p.conn) })
	return nil
}

// heardSink does not wait for a database that has fallen silent. Its lanes try again,
// on new connections: another server may have taken its place, and a connection to one
// that is gone would be waited for until TCP gives it up.
type heardSink struct {
	up.Sink
	database *postgres.Watch
}

// Store implements up.Sink. When the database falls silent during a commit, the cursor
// tells afterwards whether it took effect.
func (s heardSink) Store(ctx context.Context, edge string, batches []up.Batch) (up.Outcome, error) {
	ctx, release := s.database.Context(ctx)
	defer release()
	return s.Sink.Store(ctx, edge, batches)
}

// Stored implements up.Sink.
func (s heardSink) Stored(ctx context.Context, edge string, lane up.Lane, in up.Incarnation) (uint64, error) {
	ctx, release := s.database.Context(ctx)
	defer release()
	return s.Sink.Stored(ctx, edge, lane, in)
}

// Lost implements up.Sink.
func (s heardSink) Lost(ctx context.Context, edge string, lane up.Lane, in up.Incarnation, through uint64) error {
	ctx, release := s.database.Context(ctx)
	defer release()
	return s.Sink.Lost(ctx, edge, lane, in, through)
}

// IngestionStatus is the events' part of /status.
type IngestionStatus struct {
	ingest.Status
	Receiving []up.ReceivedLane     `json:"receiving"` // lanes that this process works on
	History   identity.WorkerStatus `json:"history"`   // of this process
}

func (p *Plane) ingestionStatus(ctx context.Context) IngestionStatus {
	in := &p.ingestion
	return IngestionStatus{Status: in.store.Status(ctx), Receiving: in.receiver.Status(), History: in.worker.Status()}
}

// operatorRoutes are the operators' actions beside what serve.Operator offers. The
// listener has no authentication, since it is reached by operators alone; a page in an
// operator's browser reaches it too, so what changes anything is refused to other origins.
func (p *Plane) operatorRoutes(operator http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/", operator)
	mux.HandleFunc("POST /edges/{edge}/retire", p.ingestion.store.Retire(p.ingestion.receiver.Heard))
	protection := http.NewCrossOriginProtection()
	protection.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reply.Error(w, r, problem.Newf(problem.Forbidden, "cross_origin", "a web page of another origin may change nothing here"))
	}))
	return protection.Handler(mux)
}
