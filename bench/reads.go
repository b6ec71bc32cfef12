package bench

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"skerry/bench/load"
	"skerry/bench/stage"
)

const readConns = 32

// flagCount is how many flags the decisions of the design's figures have.
const flagCount = 100

// reads measures what an edge answers from its own state.
func reads(ctx context.Context, b *bench) error {
	edge, err := b.stage.AddEdge(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = edge.Stop(stopTime) }()
	project, err := b.stage.NewProject(ctx, "bench reads")
	if err != nil {
		return err
	}
	surveyID, err := b.stage.AddSurveys(ctx, project, 5)
	if err != nil {
		return err
	}
	if err := b.stage.AddFlags(ctx, project, flagCount); err != nil {
		return err
	}
	if err := b.stage.Settled(ctx, edge); err != nil {
		return err
	}
	for _, p := range readPairs(edge, project, surveyID) {
		p.scenario, p.edge, p.conns = "reads", edge, readConns
		if p.status == 304 {
			if p.sample, err = revalidation(edge.Address, p.sample); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
		if p.requests == nil {
			p.requests = load.Same(p.sample)
		}
		if err := b.measure(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

func readPairs(edge *stage.Edge, project stage.Project, surveyID string) []pair {
	key := map[string]string{"X-Api-Key": project.Key}
	get := func(path string) []byte { return load.Render("GET", path, edge.Address, key, nil) }
	fresh := newUsers(edge.Address, project.Key)
	return []pair{
		{name: "survey list 304", target: 0.80, status: 304, file: get("/api/pulse/surveys"), sample: get("/api/pulse/surveys")},
		{name: "survey list 200", target: 0.75, status: 200, file: get("/api/pulse/surveys"), sample: get("/api/pulse/surveys")},
		{name: "survey bundle 200", target: 0.70, status: 200, sample: get("/api/pulse/surveys/" + surveyID)},
		{name: "handshake 304", target: 0.80, status: 304, sample: get("/api/v1/handshake?distinct_id=user-1")},
		{name: "handshake, same user", status: 200, sample: get("/api/v1/handshake?distinct_id=user-1")},
		{name: "handshake, fresh users", target: 40_000, absolute: true, status: 200, sample: fresh.handshake(0)(), requests: fresh.handshake},
		{name: "OpenFeature bulk, fresh users", target: 40_000, absolute: true, status: 200, sample: fresh.bulk(0)(), requests: fresh.bulk},
		{name: "OpenFeature single flag, fresh users", target: 75_000, absolute: true, status: 200, sample: fresh.single(0)(), requests: fresh.single},
	}
}

// revalidation is the request with the tag that its response now has.
func revalidation(address string, request []byte) ([]byte, error) {
	_, head, _, err := load.Get(address, request)
	if err != nil {
		return nil, err
	}
	for line := range bytes.SplitSeq(head, []byte("\r\n")) {
		if name, value, ok := bytes.Cut(line, []byte(": ")); ok && bytes.EqualFold(name, []byte("etag")) {
			end := bytes.Index(request, []byte("\r\n\r\n"))
			with := append(bytes.Clone(request[:end]), "\r\nIf-None-Match: "...)
			return append(append(with, value...), "\r\n\r\n"...), nil
		}
	}
	return nil, fmt.Errorf("the response has no ETag: %s", head)
}

// users makes requests of users who were never seen before: nothing can be cached.
type users struct{ address, key string }

func newUsers(address, key string) users { return users{address, key} }

// serial is a place in a request for a number that counts up.
const serialWidth = 12

// counting returns a Source that writes a fresh number into a copy of the request.
// Workers count in ranges of their own.
func counting(request []byte, worker int) load.Source {
	request = bytes.Clone(request)
	at := bytes.Index(request, bytes.Repeat([]byte("0"), serialWidth))
	next := int64(worker) * 100_000_000 // room for 9,000 workers
	return func() []byte {
		next++
		strconv.AppendInt(request[:at], 100_000_000_000+next, 10) // in place: twelve digits over twelve
		return request
	}
}

var noSerial = string(bytes.Repeat([]byte("0"), serialWidth))

func (u users) handshake(worker int) load.Source {
	return counting(load.Render("GET", "/api/v1/handshake?distinct_id="+noSerial, u.address, map[string]string{"X-Api-Key": u.key}, nil), worker)
}

func (u users) ofrep(path string, worker int) load.Source {
	body := []byte(`{"context":{"targetingKey":"` + noSerial + `","plan":"pro"}}`)
	headers := map[string]string{"X-Api-Key": u.key, "Content-Type": "application/json"}
	return counting(load.Render("POST", path, u.address, headers, body), worker)
}

func (u users) bulk(worker int) load.Source { return u.ofrep("/ofrep/v1/evaluate/flags", worker) }

func (u users) single(worker int) load.Source {
	return u.ofrep("/ofrep/v1/evaluate/flags/flag-042", worker)
}
