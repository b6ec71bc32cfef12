package writeplane

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"skerry/pkg/jsonbody"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
)

func TestLongCallsOfOneOrganizationLeavePlacesToOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLongCalls(4, 10*time.Second)
		var mu sync.Mutex
		var order []string
		var leaves []func()
		enter := func(ctx context.Context, organization string) {
			go func() {
				leave, err := l.enter(ctx, organization)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.Is(err, errManyLong):
					order = append(order, "no "+organization)
				case err != nil:
					order = append(order, "gone "+organization)
				default:
					order = append(order, organization)
					leaves = append(leaves, leave)
				}
			}()
			synctest.Wait()
		}
		want := func(what string, names ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if !slices.Equal(order, names) {
				t.Errorf("%s: %q, want %q", what, order, names)
			}
			order = nil
		}
		leave := func(i int) {
			mu.Lock()
			go leaves[i]()
			leaves = slices.Delete(leaves, i, i+1)
			mu.Unlock()
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		for range 4 {
			enter(t.Context(), "a")
		}
		want("half are one organization's", "a", "a")
		enter(ctx, "b")
		enter(t.Context(), "b")
		want("the others are others'", "b", "b")
		enter(ctx, "b")
		enter(t.Context(), "c")
		want("all are taken")
		leave(0)
		want("who has none is next", "c")
		cancel()
		want("a client that goes away", "gone b")
		leave(0)
		want("the oldest", "a")
		time.Sleep(11 * time.Second)
		want("too long", "no a")
		for range 4 {
			leave(0)
		}
		if l.total != 0 || len(l.atWork)+len(l.waiting) != 0 {
			t.Errorf("what is left: %d, %v, %d", l.total, l.atWork, len(l.waiting))
		}
	})
}

// Each of these holds a connection for as long as it runs, and there are eight of those.
func TestLongCallsLeaveConnectionsToAllOthers(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	const callers = 20
	began, end := make(chan struct{}, callers), make(chan struct{})
	long := func(w http.ResponseWriter, r *http.Request, _ *access.Call) error {
		conn, err := p.db.App.Acquire(r.Context())
		if err != nil {
			return err
		}
		defer conn.Release()
		began <- struct{}{}
		<-end
		return reply.JSON(w, http.StatusOK, map[string]string{})
	}
	server := p.serve(t, HandlerConfig{LongCalls: 4},
		Route{Method: "GET", Path: "/long", Needs: Viewer, Handle: long, Long: true},
		Route{Method: "POST", Path: "/long", Needs: Viewer, Handle: func(w http.ResponseWriter, r *http.Request, c *access.Call) error {
			var in struct{}
			if err := jsonbody.Strict(r, &in); err != nil {
				return err
			}
			return long(w, r, c)
		}, Long: true},
		Route{Method: "GET", Path: "/short", Needs: Viewer, Handle: ok})
	var all sync.WaitGroup
	answers := make(chan exchange, callers)
	for i := range callers {
		all.Go(func() {
			answers <- call(t, server, []string{"GET", "POST"}[i%2], "/long", "{}", bearer(p.tokens["viewer"])...)
		})
	}
	<-began
	<-began
	for i := range 10 {
		if got := call(t, server, "GET", "/short", "", bearer(p.tokens["viewer"])...); got.status != 200 {
			t.Errorf("call %d beside them: %d %s", i, got.status, got.body)
		}
	}
	if len(began) > 0 {
		t.Error("more than half of the places are one organization's")
	}
	close(end)
	all.Wait()
	for range callers {
		if got := <-answers; got.status != 200 {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
}

func TestALongCallThatFindsNoPlaceIsToldSo(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	began, end := make(chan struct{}), make(chan struct{})
	server := p.serve(t, HandlerConfig{LongCalls: 2, LongPatience: time.Millisecond},
		Route{Method: "GET", Path: "/long", Needs: Viewer, Long: true, Handle: func(w http.ResponseWriter, _ *http.Request, _ *access.Call) error {
			began <- struct{}{}
			<-end
			return reply.JSON(w, http.StatusOK, map[string]string{})
		}},
		Route{Method: "POST", Path: "/long", Needs: Viewer, Long: true, Handle: func(_ http.ResponseWriter, r *http.Request, _ *access.Call) error {
			var in struct{}
			return jsonbody.Strict(r, &in)
		}})
	first := make(chan exchange)
	go func() { first <- call(t, server, "GET", "/long", "", bearer(p.tokens["viewer"])...) }()
	<-began
	const refused = `{"error":"Service temporarily unavailable","message":"too many calls that take long (audit log, events, summaries, member lists) are at work; nothing was done"}`
	for method, body := range map[string]string{"GET": "", "POST": "{}"} {
		if got := call(t, server, method, "/long", body, bearer(p.tokens["viewer"])...); got.status != 503 || got.body != refused {
			t.Errorf("%s: %d %s", method, got.status, got.body)
		}
	}
	close(end)
	if got := <-first; got.status != 200 {
		t.Errorf("the first: %d", got.status)
	}
}

// A caller whose body is on its way holds no place.
func TestABodyIsWaitedForWithoutAPlace(t *testing.T) {
	t.Parallel()
	p := newPlane(t)
	reading := make(chan struct{}, 10)
	server := p.serve(t, HandlerConfig{LongCalls: 1}, Route{Method: "POST", Path: "/long", Needs: Viewer, Long: true,
		Handle: func(w http.ResponseWriter, r *http.Request, _ *access.Call) error {
			reading <- struct{}{}
			var in struct{}
			if err := jsonbody.Strict(r, &in); err != nil {
				return err
			}
			return reply.JSON(w, http.StatusOK, in)
		}})
	body, rest := io.Pipe()
	request, err := http.NewRequestWithContext(t.Context(), "POST", server.URL+"/long", body)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+p.tokens["viewer"])
	slow := make(chan int)
	go func() {
		response, err := server.Client().Do(request)
		if err != nil {
			t.Error(err)
			close(slow)
			return
		}
		_ = response.Body.Close()
		slow <- response.StatusCode
	}()
	_, _ = io.WriteString(rest, "{")
	<-reading
	for i := range 3 {
		if got := call(t, server, "POST", "/long", "{}", bearer(p.tokens["viewer"])...); got.status != 200 {
			t.Errorf("call %d: %d %s", i, got.status, got.body)
		}
	}
	_, _ = io.WriteString(rest, "}")
	_ = rest.Close()
	if status := <-slow; status != 200 {
		t.Errorf("the slow one: %d", status)
	}
}

func TestRoutesThatMayTakeLongKnowTheirOrganization(t *testing.T) {
	t.Parallel()
	n := 0
	for _, route := range newWhole(t).plane.table {
		if !route.Long {
			continue
		}
		n++
		if route.Needs == Public || route.Needs == Key {
			t.Errorf("%s %s: its caller has no organization", route.Method, route.Path)
		}
		if strings.Contains(route.Path, "halt") || strings.Contains(route.Path, "resume") {
			t.Errorf("%s %s waits for others", route.Method, route.Path)
		}
	}
	if n < 10 {
		t.Errorf("%d routes", n)
	}
}
