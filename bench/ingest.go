package bench

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"time"

	"skerry/bench/load"
	"skerry/bench/report"
	"skerry/bench/stage"
)

const (
	ingestConns = 512 // enough to keep the core busy while each of them waits for the disk
	batchSize   = 100
	stopTime    = 15 * time.Second
)

// eventJSON is an event of about 300 bytes whose user is a number that counts up.
const eventJSON = `{"event_name":"checkout_completed","distinct_id":"user-` + "000000000000" + `","properties":{"$session_id":"0198c000-aaaa-7000-8000-000000000001","plan":"pro","amount":1299,"currency":"EUR","items":3,"coupon":"none","referrer":"newsletter"},"default_properties":{"$os":"iOS 19.1","$device_model":"iPhone17,2"},"lib_version":"3.2.1"}`

// trackRequest is one event in a request.
func trackRequest(e *stage.Edge, p stage.Project) []byte {
	return load.Render("POST", "/api/v1/track", e.Address, map[string]string{"X-Api-Key": p.Key, "Content-Type": "application/json"}, []byte(eventJSON))
}

// batchRequest is a batch of events.
func batchRequest(e *stage.Edge, p stage.Project, events int) []byte {
	operation := `{"type":"track","payload":` + eventJSON + `}`
	body := `{"operations":[` + strings.Repeat(operation+",", events-1) + operation + `]}`
	return load.Render("POST", "/api/v1/batch", e.Address, map[string]string{"X-Api-Key": p.Key, "Content-Type": "application/json"}, []byte(body))
}

// ingest measures what an edge takes in: every answer waits for the disk.
func ingest(ctx context.Context, b *bench) error {
	edge, project, err := b.ownEdge(ctx, "bench ingest")
	if err != nil {
		return err
	}
	defer func() { _ = edge.Stop(stopTime) }()
	if err := b.takeIn(ctx, edge, project, ""); err != nil {
		return err
	}
	// The generator has one core with the centre together. This shows what the edge
	// does when the other half of that core is the generator's too.
	if err := b.stage.PausePostgres(ctx); err != nil {
		return err
	}
	defer b.stage.ResumePostgres()
	return b.takeIn(ctx, edge, project, ", database stopped")
}

// takeIn measures single events and batches at an edge.
func (b *bench) takeIn(ctx context.Context, edge *stage.Edge, project stage.Project, condition string) error {
	track := trackRequest(edge, project)
	single := pair{
		scenario: "ingest", name: "single track, synced" + condition, status: 200, edge: edge, conns: ingestConns, sample: track,
		requests: func(worker int) load.Source { return counting(track, worker) },
	}
	if condition == "" {
		single.target = 0.5
	}
	if err := b.measure(ctx, single); err != nil {
		return err
	}
	batch := batchRequest(edge, project, batchSize)
	return b.measure(ctx, pair{
		scenario: "ingest", name: "batches of 100, one core" + condition, status: 200, edge: edge, conns: 8, sample: batch,
		requests: load.Same(batch), times: batchSize, unit: "events/s",
	})
}

// ownEdge starts an edge for one scenario and makes a project for it.
func (b *bench) ownEdge(ctx context.Context, name string) (*stage.Edge, stage.Project, error) {
	edge, err := b.stage.AddEdge(ctx)
	if err != nil {
		return nil, stage.Project{}, err
	}
	if err := b.stage.PlaneReady(ctx); err != nil {
		return nil, stage.Project{}, err
	}
	project, err := b.stage.NewProject(ctx, name)
	if err != nil {
		return nil, stage.Project{}, err
	}
	return edge, project, b.stage.Settled(ctx, edge)
}

// drain measures accepted → stored: events are sent for the scenario's length at full
// speed, and the time runs until the last has its row.
func drain(ctx context.Context, b *bench) error {
	edge, project, err := b.ownEdge(ctx, "bench drain")
	if err != nil {
		return err
	}
	defer func() { _ = edge.Stop(stopTime) }()
	batch := batchRequest(edge, project, batchSize)
	stored := report.Figure{Scenario: "drain", Name: "accepted → stored, sustained", Unit: "events/s", BaselineName: "plain COPY", Target: 60_000}
	var total int64
	for range b.config.Repetitions {
		plain, err := b.stage.PlainCopy(ctx, 200_000)
		if err != nil {
			return err
		}
		began := time.Now()
		result, err := load.Run(ctx, load.Plan{Address: edge.Address, Requests: load.Same(batch), Conns: 4, Length: b.config.Length, Progress: b.progress("drain")})
		if err != nil {
			return err
		}
		if !result.OnlyStatus(200) {
			stored.Invalid = result.Answers()
		}
		total += result.Requests * batchSize
		wait, cancel := context.WithTimeout(ctx, 5*time.Minute)
		_, err = b.stage.Stored(wait, edge, total)
		cancel()
		if err != nil {
			return err
		}
		rate := float64(result.Requests*batchSize) / time.Since(began).Seconds()
		stored.AddPair(rate, plain)
	}
	b.add(stored)
	return nil
}

// burstEvents is how many events must be absorbed while PostgreSQL is stopped.
const burstEvents = 5_000_000

// burst stops the centre's database, sends events as fast as they are taken, and
// counts afterwards that each is stored once.
func burst(ctx context.Context, b *bench) error {
	edge, project, err := b.ownEdge(ctx, "bench burst")
	if err != nil {
		return err
	}
	defer func() { _ = edge.Stop(stopTime) }()
	if err := b.stage.PausePostgres(ctx); err != nil {
		return err
	}
	defer b.stage.ResumePostgres()
	batch := batchRequest(edge, project, batchSize)
	var sent int64
	var most int64
	began := time.Now()
	for sent < burstEvents && time.Since(began) < 2*time.Minute {
		result, err := load.Run(ctx, load.Plan{Address: edge.Address, Requests: load.Same(batch), Conns: 4, Length: time.Second})
		if err != nil {
			return err
		}
		if !result.OnlyStatus(200) {
			return fmt.Errorf("%s after %d events", result.Answers(), sent)
		}
		sent += result.Requests * batchSize
		memory, err := edge.Memory()
		if err != nil {
			return err
		}
		most = max(most, memory)
		if progress := b.progress("burst"); progress != nil {
			progress(min(0.99, float64(sent)/burstEvents))
		}
	}
	absorbed := time.Since(began)
	b.stage.ResumePostgres()
	wait, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	resumed := time.Now()
	stored, err := b.stage.Stored(wait, edge, sent)
	if err != nil {
		return err
	}
	b.add(report.Figure{Scenario: "burst", Name: "absorbed with PostgreSQL stopped", Unit: "events/s", Values: []float64{float64(sent) / absorbed.Seconds()},
		Note: fmt.Sprintf("%d events sent, %d stored", sent, stored)})
	b.add(report.Figure{Scenario: "burst", Name: "drained afterwards", Unit: "events/s", Values: []float64{float64(sent) / time.Since(resumed).Seconds()}})
	b.add(report.Figure{Scenario: "burst", Name: "memory of the edge", Unit: "MB", Values: []float64{float64(most) / (1 << 20)}, Target: 256, LowerIsBetter: true})
	if stored != sent {
		return fmt.Errorf("%d events were answered and %d are stored", sent, stored)
	}
	return nil
}

// submit measures survey submissions, which are relayed and stored in one transaction.
func submit(ctx context.Context, b *bench) error {
	edge, project, err := b.ownEdge(ctx, "bench submit")
	if err != nil {
		return err
	}
	defer func() { _ = edge.Stop(stopTime) }()
	surveyID, err := b.stage.AddSurveys(ctx, project, 1)
	if err != nil {
		return err
	}
	questions, err := b.stage.Questions(ctx, surveyID)
	if err != nil {
		return err
	}
	if err := b.stage.Settled(ctx, edge); err != nil {
		return err
	}
	body := fmt.Appendf(nil, `{"survey_id":%q,"respondent":{"external_id":"user-%s"},"answers":{%q:9,%q:"fine"}}`, surveyID, noSerial, questions[0], questions[1])
	request := load.Render("POST", "/api/pulse/responses", edge.Address, map[string]string{"X-Api-Key": project.Key, "Content-Type": "application/json"}, body)
	requests := func(worker int) load.Source { return counting(request, worker) }
	if err := b.rates(ctx, report.Figure{Scenario: "submit", Name: "stored, closed loop", Unit: "responses/s", Target: 1500}, load.Plan{Address: edge.Address, Requests: requests, Conns: 32}, 201); err != nil {
		return err
	}
	rate := b.config.Rate
	if rate == 0 {
		rate = 500
	}
	return b.rates(ctx, report.Figure{Scenario: "submit", Name: fmt.Sprintf("at %g a second", rate), Unit: "responses/s"}, load.Plan{Address: edge.Address, Requests: requests, Conns: 32, Rate: rate}, 201)
}

// rates measures without a yardstick: the plan's requests, all of which must be
// answered with the status. The plan's times are the benchmark's.
func (b *bench) rates(ctx context.Context, f report.Figure, plan load.Plan, status int) error {
	plan.Warmup, plan.Length, plan.Progress = b.config.Warmup, b.config.Length, b.progress(f.Name)
	for range b.config.Repetitions {
		result, err := load.Run(ctx, plan)
		if err != nil {
			return err
		}
		if !result.OnlyStatus(status) {
			f.Invalid = fmt.Sprintf("%s; want only %d", result.Answers(), status)
		}
		f.Values = append(f.Values, result.Throughput())
		f.Latency, f.PerSecond = report.Quantiles(result.Latency), result.PerSec[:len(result.PerSec)-1]
	}
	b.add(f)
	return nil
}

// contains reports whether an edge's answer to a request holds some bytes.
func contains(e *stage.Edge, request, want []byte) (bool, error) {
	_, _, body, err := load.Get(e.Address, request)
	return bytes.Contains(body, want), err
}
