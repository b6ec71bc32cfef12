// Package writeplane is the central plane: the one place where things are changed,
// and the final store of what edges send.
//
// New builds everything from top to bottom; Run serves until its context ends. A
// process holds no state of its own: several may run on one database, and leases and
// row locks share the work among them.
//
// This file is the assembly, on one page; routes.go lists every route; handler.go is
// what every request goes through.
package writeplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/prometheus/client_golang/prometheus"

	"skerry/pkg/id"
	"skerry/pkg/natsclient"
	"skerry/pkg/serve"
	"skerry/replication/down"
	"skerry/writeplane/access"
	"skerry/writeplane/audit"
	"skerry/writeplane/blobs"
	"skerry/writeplane/cohorts"
	"skerry/writeplane/commit"
	"skerry/writeplane/flags"
	"skerry/writeplane/identity"
	"skerry/writeplane/ingest"
	"skerry/writeplane/lease"
	"skerry/writeplane/postgres"
	"skerry/writeplane/publish"
	"skerry/writeplane/remoteconfig"
	"skerry/writeplane/surveys"
	"skerry/writeplane/surveys/responses"
	"skerry/writeplane/symbols"
	"skerry/writeplane/webhooks"
	"skerry/writeplane/webhooks/target"
)

// Config says what a process of the plane connects to and where it listens.
type Config struct {
	Listen         string // of the API; "127.0.0.1:0" picks a free port
	ListenOperator string // of /healthz, /readyz, /metrics, /status, pprof
	Postgres       postgres.Config
	NATS           string // URL of the NATS server or cluster
	NATSOptions    []nats.Option
	StreamReplicas int           // of the state streams; 0 means 1
	ShutdownDelay  time.Duration // for which requests are still answered when the process is told to stop; 0 means none

	Access access.Config
	// TrustedProxies are the peers whose X-Forwarded-For is believed: the edges.
	TrustedProxies []netip.Prefix
	Webhooks       target.Config
	// Blobs says where files lie: symbols, exports, large payloads.
	Blobs blobs.Config
	// Symbols bounds symbol uploads and says how their files are parsed.
	Symbols symbols.Config
	// CrashRetentionDays is how many days of crash reports are kept, by receipt. 0 keeps
	// them for ever.
	CrashRetentionDays int
	// Ingest says how events are kept, IngestStreamBytes how many may wait between
	// edges and this plane (0 means 2 GiB).
	Ingest            ingest.Config
	IngestStreamBytes int64
	Audit             AuditConfig
}

// Plane is one process of the write plane.
type Plane struct {
	db       *postgres.DB
	watch    *postgres.Watch
	conn     *nats.Conn
	blobs    *blobs.Store
	mirror   *pgxpool.Pool // of the audit mirror
	api, ops net.Listener
	group    serve.Group
	shutdown serve.Shutdown

	publisher *down.Publisher

	ingestion ingestion
	table     []Route

	// Access and Store are what `skerry up` founds the first organization with.
	Access *access.Store
	Store  *commit.Store
}

// New connects, builds every module and listens. The schema must be current: see
// postgres.Migrate. What New opened, Run or Close closes.
func New(ctx context.Context, config Config) (_ *Plane, err error) {
	p := &Plane{shutdown: serve.Shutdown{Delay: config.ShutdownDelay}}
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	if err = p.connect(ctx, config); err != nil {
		return nil, err
	}
	p.Store = commit.New(p.db.App, commit.Sinks{Audit: audit.Append, Deliveries: webhooks.Enqueue})
	if err = p.openAccess(ctx, config.Access); err != nil {
		return nil, err
	}

	registry := serve.NewRegistry()
	leases := lease.New(p.db.App, id.New())
	if err = p.openPublisher(leases, config.StreamReplicas); err != nil {
		return nil, err
	}
	if p.blobs, err = blobs.Open(ctx, config.Blobs, p.db.App); err != nil {
		return nil, err
	}
	if err := p.addIngestion(config, leases, takeCrashes, registry); err != nil {
		return nil, err
	}

	guard := target.New(config.Webhooks)
	dispatcher := webhooks.NewDispatcher(p.Store, p.Access.Sealer(), guard, registry, webhooks.Config{})
	p.group.Add("webhooks", dispatcher.Run)

	survey := surveys.New(p.Store, p.Access)
	submissions, err := responses.New(responses.Config{}, p.Store, p.Access, survey, registry)
	if err != nil {
		return nil, err
	}
	p.group.Add("survey responses", submissions.Run)

	exporter, err := p.openAudit(ctx, config, registry)
	if err != nil {
		return nil, err
	}
	artifacts, reports, err := p.openCatch(config.Symbols, config.CrashRetentionDays, leases)
	if err != nil {
		return nil, err
	}

	p.table = Routes(Modules{
		Access:   access.NewModule(p.Store, p.Access),
		Audit:    audit.NewModule(exporter, p.Access),
		Blobs:    p.blobs,
		Webhooks: webhooks.New(p.Store, p.Access, guard),

		Symbols: artifacts,
		Crashes: reports,

		Flags:        flags.New(p.Store, p.Access),
		RemoteConfig: remoteconfig.New(p.Store, p.Access),
		Cohorts:      cohorts.New(p.Store, p.Access),

		Surveys:   survey,
		Responses: submissions,

		Ingest:   ingest.New(p.ingestion.store, p.Access),
		Persons:  identity.New(p.Store, p.Access),
		Payloads: p.ingestion.payloads,
	})
	return p, p.listen(config, p.table, registry)
}

// connect opens the ways to the database and to NATS.
func (p *Plane) connect(ctx context.Context, config Config) (err error) {
	if p.db, err = postgres.Open(ctx, config.Postgres); err != nil {
		return err
	}
	if p.conn, err = connectNATS(config); err != nil {
		return err
	}
	if p.watch, err = postgres.NewWatch(config.Postgres.URL, postgres.WatchConfig{}); err != nil {
		return err
	}
	p.group.Add("database watch", p.watch.Run)
	return nil
}

// openAccess builds what knows who calls, and adds what notes the use of keys.
func (p *Plane) openAccess(ctx context.Context, config access.Config) (err error) {
	if p.Access, err = access.New(ctx, config, p.db.App); err != nil {
		return err
	}
	p.group.Add("key usage", p.Access.Run)
	p.group.Add("key usage at edges", func(ctx context.Context) error { return p.Access.HearUses(ctx, p.conn) })
	return nil
}

// openPublisher builds what brings changes to the streams of state, and adds it.
func (p *Plane) openPublisher(leases *lease.Store, replicas int) (err error) {
	ledger := publish.New(p.db.App)
	p.publisher, err = down.NewPublisher(p.conn, ledger, leases, ledger.Listen, down.PublisherConfig{Replicas: replicas})
	if err != nil {
		return err
	}
	p.group.Add("publisher", p.publisher.Run)
	return nil
}

// listen opens both listeners and adds the servers as parts.
func (p *Plane) listen(config Config, routes []Route, registry *prometheus.Registry) (err error) {
	requests := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "skerry_http_request_seconds", Help: "Answers of the write plane by route, method and status class.",
		Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10},
	}, []string{"route", "method", "status"})
	registry.MustRegister(requests)
	handler := NewHandler(HandlerConfig{
		TrustedProxies: config.TrustedProxies,
		Database:       p.watch,
		LongCalls:      max(int(p.db.App.Config().MaxConns)/4, 1),
		Observe: func(method, path string, status int, took time.Duration) {
			requests.WithLabelValues(path, method, fmt.Sprintf("%dxx", status/100)).Observe(took.Seconds())
		},
	}, p.Access, routes)
	if p.api, err = serve.Listen("--listen", config.Listen); err != nil {
		return err
	}
	p.blobs.DefaultPublicURL(p.URL())
	if p.ops, err = serve.Listen("--listen-operator", config.ListenOperator); err != nil {
		return err
	}
	operator := p.operatorRoutes(serve.Operator{Ready: p.Ready, Shutdown: &p.shutdown, Status: p.status, Metrics: registry}.Handler())
	p.serve("api", p.api, p.shutdown.Handler(handler))
	p.serve("operator", p.ops, operator)
	return nil
}

func (p *Plane) serve(name string, listener net.Listener, handler http.Handler) {
	p.group.Add(name, func(ctx context.Context) error { return serve.HTTP(ctx, listener, handler, serve.Limits{}) })
}

// connectNATS connects in the background if it must: changes wait in Postgres
// meanwhile, so an absent NATS keeps nobody from administering.
func connectNATS(config Config) (*nats.Conn, error) {
	if config.NATS == "" {
		return nil, errors.New("the NATS URL is empty; give --nats-url")
	}
	return natsclient.Connect("skerry writeplane", config.NATS, slog.Default(), config.NATSOptions...)
}

// URL is the base address of the API.
func (p *Plane) URL() string { return "http://" + p.api.Addr().String() }

// OperatorURL is the base address of the operator's listener.
func (p *Plane) OperatorURL() string { return "http://" + p.ops.Addr().String() }

// Run serves until ctx ends and Config.ShutdownDelay is over, or a part fails.
func (p *Plane) Run(ctx context.Context) error {
	defer p.Close()
	ctx, cancel := p.shutdown.Context(ctx)
	defer cancel()
	return p.group.Run(ctx)
}

// Close ends connections and listeners of a plane that does not run any more.
func (p *Plane) Close() {
	for _, listener := range []net.Listener{p.api, p.ops} {
		if listener != nil {
			_ = listener.Close()
		}
	}
	if p.conn != nil {
		p.conn.Close()
	}
	if p.blobs != nil {
		_ = p.blobs.Close() // everything written was synced before it was answered
	}
	if p.mirror != nil {
		p.mirror.Close()
	}
	if p.db != nil {
		p.db.Close()
	}
}

// Ready is nil when Postgres answers and the schema is current (supplement §9).
func (p *Plane) Ready(ctx context.Context) error { return postgres.CheckVersion(ctx, p.db.Owner) }

// Status is what /status shows.
type Status struct {
	Postgres string `json:"postgres"` // "ok" or what is wrong
	NATS     string `json:"nats"`     // connected, reconnecting, …

	// State is how far what edges serve is on its way to them; null when Postgres is away.
	State      []publish.LaneStatus `json:"state"`
	Publishing PublishingStatus     `json:"publishing"`
	Ingestion  IngestionStatus      `json:"ingestion"`
}

// PublishingStatus is this process's part in sending state to the edges: one of the
// planes leads at a time.
type PublishingStatus struct {
	Leading bool   `json:"leading"`
	Fault   string `json:"fault,omitempty"` // why it cannot lead, or why a lane stands still
}

func (p *Plane) publishingStatus() PublishingStatus {
	publisher := p.publisher.Status()
	s := PublishingStatus{Leading: publisher.Leading}
	faults := []error{publisher.Err}
	for _, lane := range publisher.Lanes {
		faults = append(faults, lane.Err)
	}
	if err := errors.Join(faults...); err != nil {
		s.Fault = err.Error()
	}
	return s
}

func (p *Plane) status(ctx context.Context) any {
	s := Status{Postgres: "ok", NATS: p.conn.Status().String(), Publishing: p.publishingStatus(), Ingestion: p.ingestionStatus(ctx)}
	if err := p.Ready(ctx); err != nil {
		s.Postgres = err.Error()
	}
	var err error
	if s.State, err = publish.New(p.db.App).Status(ctx); err != nil && s.Postgres == "ok" {
		s.Postgres = err.Error()
	}
	return s
}
