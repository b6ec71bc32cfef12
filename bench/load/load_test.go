package load_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"skerry/bench/load"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func server(t *testing.T, handler http.HandlerFunc) (address string) {
	t.Helper()
	s := httptest.NewServer(handler)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func TestClosedLoopCountsEveryAnswerOnce(t *testing.T) {
	t.Parallel()
	var served atomic.Int64
	address := server(t, func(w http.ResponseWriter, r *http.Request) {
		served.Add(1)
		if r.Header.Get("X-Api-Key") != "k" || r.URL.Path != "/a" {
			w.WriteHeader(400)
		}
		_, _ = w.Write([]byte("hello"))
	})
	result, err := load.Run(t.Context(), load.Plan{
		Address: address, Conns: 3, Length: 300 * time.Millisecond,
		Requests: load.Same(load.Render("GET", "/a", address, map[string]string{"X-Api-Key": "k"}, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	if !result.OnlyStatus(200) || result.Requests != served.Load() || result.Bytes != 5*result.Requests || result.Latency.TotalCount() != result.Requests {
		t.Errorf("%d requests, %d served, %d bytes, statuses %v, errors %d (%s)", result.Requests, served.Load(), result.Bytes, result.Statuses, result.Errors, result.Error)
	}
}

// A server that stalls once must show in the latency of the requests that were due
// meanwhile, though none of them could be sent.
func TestOpenLoopCountsFromWhenARequestWasDue(t *testing.T) {
	t.Parallel()
	const stall = 200 * time.Millisecond
	var n atomic.Int64
	address := server(t, func(http.ResponseWriter, *http.Request) {
		if n.Add(1) == 10 {
			time.Sleep(stall) // the fault under test
		}
	})
	result, err := load.Run(t.Context(), load.Plan{
		Address: address, Conns: 1, Length: 500 * time.Millisecond, Rate: 200,
		Requests: load.Same(load.Render("GET", "/", address, nil, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	// About 40 requests were due during the stall; half of them waited 100 ms or more.
	if slow := result.Latency.ValueAtQuantile(85); time.Duration(slow) < stall/4 {
		t.Errorf("p85 %s after a stall of %s: the requests that were due meanwhile are not counted", time.Duration(slow), stall)
	}
	if result.Requests < 90 || result.Requests > 101 {
		t.Errorf("%d requests in 0.5 s at 200/s", result.Requests)
	}
}

func TestAbsentServerIsCountedAsErrors(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	result, err := load.Run(t.Context(), load.Plan{Address: address, Conns: 2, Length: 50 * time.Millisecond, Requests: load.Same([]byte("GET / HTTP/1.1\r\n\r\n"))})
	if err != nil || result.Errors == 0 || result.Requests != 0 || result.Error == "" {
		t.Errorf("%+v %v", result, err)
	}
}

func TestNotModifiedHasNoBodyToWaitFor(t *testing.T) {
	t.Parallel()
	address := server(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("ETag", `"a"`)
		w.WriteHeader(304)
	})
	result, err := load.Run(t.Context(), load.Plan{Address: address, Conns: 1, Length: 50 * time.Millisecond, Requests: load.Same(load.Render("GET", "/", address, nil, nil))})
	if err != nil || !result.OnlyStatus(304) {
		t.Errorf("%+v %v", result, err)
	}
}

func TestPlanNamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	good := load.Plan{Address: "a", Conns: 1, Length: 1, Requests: load.Same(nil)}
	for name, change := range map[string]func(*load.Plan){
		"Address": func(p *load.Plan) { p.Address = "" }, "Requests": func(p *load.Plan) { p.Requests = nil },
		"Conns": func(p *load.Plan) { p.Conns = 0 }, "Length": func(p *load.Plan) { p.Length = 0 }, "Rate": func(p *load.Plan) { p.Rate = -1 },
	} {
		bad := good
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s wrong: %v", name, err)
		}
	}
}
