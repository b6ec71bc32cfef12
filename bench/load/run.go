package load

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Plan is one measurement.
type Plan struct {
	Address  string                  // host:port
	Requests func(worker int) Source // what each connection sends
	Conns    int                     // connections; each has one request in flight
	Warmup   time.Duration           // sent, not counted
	Length   time.Duration           // counted
	Rate     float64                 // requests a second over all connections; 0: as fast as answered (closed loop)
	Progress func(done float64)      // called about ten times a second with 0…1; may be nil
}

// Validate names the field that is wrong.
func (p Plan) Validate() error {
	switch {
	case p.Address == "":
		return errors.New("load: Address is empty")
	case p.Requests == nil:
		return errors.New("load: Requests is nil")
	case p.Conns < 1:
		return errors.New("load: Conns is under 1")
	case p.Length <= 0:
		return errors.New("load: Length is not positive")
	case p.Rate < 0:
		return errors.New("load: Rate is negative")
	}
	return nil
}

// Result is what a measurement saw. Latencies are in nanoseconds.
type Result struct {
	Requests int64
	Bytes    int64 // of response bodies
	Statuses map[int]int64
	Errors   int64  // requests without a response
	Error    string // the first of them
	Took     time.Duration
	Latency  *hdrhistogram.Histogram
	PerSec   []int64 // answers in each second of the counted time
}

// Throughput is answered requests a second.
func (r *Result) Throughput() float64 { return float64(r.Requests) / r.Took.Seconds() }

// OnlyStatus reports whether every request was answered with the status.
func (r *Result) OnlyStatus(status int) bool {
	return r.Errors == 0 && len(r.Statuses) == 1 && r.Statuses[status] == r.Requests && r.Requests > 0
}

// Answers tells what came back, for saying that it was not what was wanted.
func (r *Result) Answers() string {
	return fmt.Sprintf("answers %v, %d without one (%s)", r.Statuses, r.Errors, r.Error)
}

const (
	lowest    = int64(time.Microsecond)
	highest   = int64(time.Minute)
	precision = 3
)

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(lowest, highest, precision) }

// Run carries a plan out. It ends early only when ctx does.
func Run(ctx context.Context, p Plan) (*Result, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	begin := time.Now()
	counted := begin.Add(p.Warmup)
	end := counted.Add(p.Length)
	results := make([]*Result, p.Conns)
	var group sync.WaitGroup
	for i := range p.Conns {
		w := &worker{
			client: client{address: p.Address}, next: p.Requests(i), counted: counted, end: end,
			result: &Result{Statuses: map[int]int64{}, Latency: newHistogram(), PerSec: make([]int64, int(p.Length/time.Second)+1)},
		}
		results[i] = w.result
		if p.Rate > 0 {
			// Connections take turns, so that the whole is evenly spaced.
			w.interval = time.Duration(float64(p.Conns) / p.Rate * float64(time.Second))
			w.due = begin.Add(time.Duration(float64(i) / p.Rate * float64(time.Second)))
		}
		group.Go(func() { w.run(ctx) })
	}
	stop := report(p, begin, end)
	group.Wait()
	stop()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("measurement cut short: %w", err)
	}
	return merge(results, p.Length), nil
}

// worker is one connection's loop.
type worker struct {
	client       client
	next         Source
	counted, end time.Time
	interval     time.Duration // 0: closed loop
	due          time.Time
	result       *Result
}

func (w *worker) run(ctx context.Context) {
	defer w.client.close()
	for ctx.Err() == nil {
		from := time.Now()
		if w.interval > 0 {
			if wait := w.due.Sub(from); wait > 0 {
				time.Sleep(wait)
			}
			from = w.due // the delay of a request that could not be sent in time counts
			w.due = w.due.Add(w.interval)
		}
		if !from.Before(w.end) {
			return
		}
		status, size, err := w.client.do(w.next())
		w.count(from, time.Now(), status, size, err)
		if err != nil {
			// A server that is away must not be asked in a tight loop.
			select {
			case <-ctx.Done():
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

func (w *worker) count(from, now time.Time, status, size int, err error) {
	if from.Before(w.counted) {
		return
	}
	r := w.result
	if err != nil {
		if r.Errors++; r.Error == "" {
			r.Error = err.Error()
		}
		return
	}
	r.Requests++
	r.Bytes += int64(size)
	r.Statuses[status]++
	_ = r.Latency.RecordValue(min(max(int64(now.Sub(from)), lowest), highest))
	if second := int(now.Sub(w.counted) / time.Second); second < len(r.PerSec) {
		r.PerSec[second]++
	}
}

func merge(results []*Result, length time.Duration) *Result {
	total := &Result{Statuses: map[int]int64{}, Latency: newHistogram(), Took: length}
	for _, r := range results {
		total.Requests += r.Requests
		total.Bytes += r.Bytes
		total.Errors += r.Errors
		if total.Error == "" {
			total.Error = r.Error
		}
		for status, n := range r.Statuses {
			total.Statuses[status] += n
		}
		total.Latency.Merge(r.Latency)
		if total.PerSec == nil {
			total.PerSec = make([]int64, len(r.PerSec))
		}
		for i, n := range r.PerSec {
			total.PerSec[i] += n
		}
	}
	return total
}

// report calls the plan's Progress until stopped.
func report(p Plan, begin, end time.Time) (stop func()) {
	if p.Progress == nil {
		return func() {}
	}
	quit := make(chan struct{})
	var group sync.WaitGroup
	group.Go(func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-quit:
				p.Progress(1)
				return
			case now := <-tick.C:
				p.Progress(min(1, float64(now.Sub(begin))/float64(end.Sub(begin))))
			}
		}
	})
	return func() { close(quit); group.Wait() }
}
