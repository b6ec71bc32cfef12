package campaign

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"skerry/replication"
)

// ledger is the clients: what they send, and what they were told.
type ledger struct {
	c        *cluster
	item     string // config item that is changed
	survey   string
	question string

	requests, failures atomic.Int64
	reads, readsFailed atomic.Int64
	changes            atomic.Int64
	confirmed          atomic.Int64 // changes since the last restore of the database
	events             atomic.Int64 // number of the newest event

	mu        sync.Mutex
	forgiven  int64            // events up to this number may be gone with a database that was replaced
	restores  int              // of the database
	fallen    string           // the first revision that fell
	answered  []span           // events whose request was answered 200
	unknown   []span           // events whose request had no answer
	responses map[string]int64 // ids told by a 201, with the number of the newest event when they were first sent
	firstRead string           // what failed first at a living edge
}

// span are the events first … first+count-1.
type span struct{ first, count int64 }

// newLedger makes what the load needs.
func newLedger(ctx context.Context, c *cluster) (*ledger, error) {
	l := &ledger{c: c, responses: map[string]int64{}}
	var key struct{ Secret string }
	project := "/api/v1/projects/" + c.project
	unlimited := map[string]any{"rate_limits": map[string]any{"ingest_per_minute": 1_000_000, "handshake_per_minute": 1_000_000}}
	var item struct{ Item struct{ ID string } }
	var flag json.RawMessage
	var bundle struct {
		Survey    struct{ ID string }
		Questions []struct{ ID string }
	}
	steps := []struct {
		method, path string
		body, into   any
	}{
		{"PATCH", project, unlimited, nil},
		{"POST", project + "/api-keys", map[string]any{"name": "campaign", "environment": "live"}, &key},
		{"POST", "/api/v1/config/items?project_id=" + c.project, map[string]any{"environment": "live", "key": "limit", "type": "int", "default_value": "0"}, &item},
		{"POST", "/api/v1/switch/flags?project_id=" + c.project, map[string]any{"environment": "live", "key": "flag", "kind": "boolean", "default_value": "false"}, &flag},
		{"POST", "/api/v1/pulse/surveys?project_id=" + c.project, map[string]any{
			"name": "Campaign", "kind": "nps", "slug": "campaign",
			"questions": []map[string]any{{"kind": "nps", "prompt": "?", "required": true, "order_index": 0}},
		}, &bundle},
	}
	for _, s := range steps {
		if err := l.manage(ctx, s.method, s.path, s.body, s.into); err != nil {
			return nil, err
		}
	}
	c.key, l.item, l.survey, l.question = key.Secret, item.Item.ID, bundle.Survey.ID, bundle.Questions[0].ID
	if err := l.manage(ctx, "POST", "/api/v1/pulse/surveys/"+l.survey+"/publish", nil, nil); err != nil {
		return nil, err
	}
	for _, e := range c.edges { // before the load: an edge must know the key
		err := eventually(ctx, func() error {
			_, err := l.handshake(ctx, e)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return l, nil
}

// run starts the clients; the channel is closed when the last has ended.
func (l *ledger) run(ctx context.Context) <-chan struct{} {
	var group sync.WaitGroup
	for _, e := range l.c.edges {
		for range 2 {
			group.Go(func() { l.every(ctx, 3*time.Millisecond, func() { l.track(e) }) })
		}
		group.Go(func() { l.every(ctx, 20*time.Millisecond, func() { l.batch(e) }) })
		group.Go(func() { l.every(ctx, 3*time.Millisecond, func() { l.read(ctx, e) }) })
		group.Go(func() { l.every(ctx, 50*time.Millisecond, func() { l.submit(ctx, e) }) })
	}
	group.Go(func() { l.every(ctx, 100*time.Millisecond, func() { l.change(ctx) }) })
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	return done
}

func (l *ledger) every(ctx context.Context, pause time.Duration, do func()) {
	for ctx.Err() == nil {
		do()
		sleep(ctx, pause)
	}
}

func event(number int64) string {
	return fmt.Sprintf(`{"event_name":"campaign","distinct_id":"campaign-%d","properties":{"number":%d}}`, number, number)
}

func (l *ledger) track(e *edge) {
	number := l.events.Add(1)
	_ = l.send(context.Background(), e, "/api/v1/track", event(number), span{number, 1})
}

func (l *ledger) batch(e *edge) {
	const size = 20
	last := l.events.Add(size)
	operations := make([]string, size)
	for i := range operations {
		operations[i] = `{"type":"track","payload":` + event(last-size+1+int64(i)) + `}`
	}
	_ = l.send(context.Background(), e, "/api/v1/batch", `{"operations":[`+strings.Join(operations, ",")+`]}`, span{last - size + 1, size})
}

// send is not to be cut off by the end of the run: an event's answer is part of the books.
func (l *ledger) send(ctx context.Context, e *edge, path, body string, events span) error {
	_, err := l.ask(context.WithoutCancel(ctx), e.at, "POST", path, []byte(body), nil)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.answered = append(l.answered, events)
	} else {
		l.unknown = append(l.unknown, events)
	}
	return err
}

func (l *ledger) read(ctx context.Context, e *edge) {
	shaken := e.shaken.Load()
	_, err := l.handshake(context.WithoutCancel(ctx), e)
	l.reads.Add(1)
	if err == nil || shaken || e.shaken.Load() {
		return
	}
	l.readsFailed.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.firstRead == "" {
		l.firstRead = e.id + ": " + err.Error()
	}
}

// handshake reads from an edge and notes a revision that falls. Each edge has one reader
// at a time, so answers come in order.
func (l *ledger) handshake(ctx context.Context, e *edge) ([]byte, error) {
	life := e.life.Load()
	answer, err := l.ask(ctx, e.at, "GET", "/api/v1/handshake?distinct_id=u", nil, nil)
	if err != nil {
		return nil, err
	}
	var body struct{ Revision string }
	if err := json.Unmarshal(answer, &body); err != nil {
		return nil, fmt.Errorf("handshake: %w: %.200s", err, answer)
	}
	revision, err := replication.ParseRevision(body.Revision)
	if err != nil {
		return nil, fmt.Errorf("handshake: %w", err)
	}
	if life != e.life.Load() {
		return answer, nil // whose answer that is cannot be told
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if fell := e.seen.next(revision); fell != "" && l.fallen == "" {
		l.fallen = "the revision at " + e.id + " fell " + fell
	}
	return answer, nil
}

// submit sends one response until it is told its fate, always with the same key.
func (l *ledger) submit(ctx context.Context, e *edge) {
	number := l.events.Load()
	key := e.id + "-" + strconv.FormatInt(time.Now().UnixNano(), 36)
	body := fmt.Appendf(nil, `{"survey_id":%q,"respondent":{"external_id":%q},"answers":{%q:%d}}`, l.survey, key, l.question, number%11)
	for ctx.Err() == nil {
		answer, err := l.ask(ctx, e.at, "POST", "/api/pulse/responses", body, map[string]string{"Idempotency-Key": key})
		if err == nil {
			var made struct{ ID string }
			if json.Unmarshal(answer, &made) == nil {
				l.mu.Lock()
				l.responses[made.ID] = number
				l.mu.Unlock()
			}
			return
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// change edits the config item and halts or resumes the flag.
func (l *ledger) change(ctx context.Context) {
	number := l.changes.Load()
	err := l.manage(ctx, "PATCH", "/api/v1/config/items/"+l.item, map[string]any{"default_value": strconv.FormatInt(number+1, 10)}, nil)
	if err == nil {
		l.changes.Add(1)
		l.confirmed.Add(1)
	}
	if number%2 == 0 {
		_, _ = l.ask(ctx, l.c.planeAt, "POST", "/api/switch/halt-webhook", []byte(`{"flag_key":"flag","reason":"campaign"}`), nil)
	} else {
		_ = l.manage(ctx, "POST", "/api/v1/switch/flags/flag/resume?project_id="+l.c.project, map[string]string{"environment": "live"}, nil)
	}
}

// ask makes a call with the project's key; anything but a 2xx is an error.
func (l *ledger) ask(ctx context.Context, at, method, path string, body []byte, header map[string]string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+at+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("X-Api-Key", l.c.key)
	for name, value := range header {
		request.Header.Set(name, value)
	}
	return l.do(request)
}

// manage makes a call with the owner's token at the write plane.
func (l *ledger) manage(ctx context.Context, method, path string, body, into any) error {
	raw, err := json.Marshal(body)
	if err != nil {
		return err
	}
	if body == nil {
		raw = nil
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://"+l.c.planeAt+path, bytes.NewReader(raw))
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+l.c.token)
	answer, err := l.do(request)
	if err != nil || into == nil {
		return err
	}
	return json.Unmarshal(answer, into)
}

func (l *ledger) do(request *http.Request) ([]byte, error) {
	l.requests.Add(1)
	answer, err := l.exchange(request)
	if err != nil {
		l.failures.Add(1)
		return nil, fmt.Errorf("%s %s: %w", request.Method, request.URL.Path, err)
	}
	return answer, nil
}

func (l *ledger) exchange(request *http.Request) ([]byte, error) {
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	if response.StatusCode > 299 {
		return nil, fmt.Errorf("%s: %.200s", response.Status, answer)
	}
	return answer, nil
}
