package serve

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"
)

func TestWorkGoesOnForTheShutdownDelay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told, stop := context.WithCancel(t.Context())
		s := Shutdown{Delay: 10 * time.Second}
		working, cancel := s.Context(told)
		defer cancel()
		synctest.Wait()
		if s.Begun() {
			t.Error("it has begun before anybody said so")
		}
		stop()
		synctest.Wait()
		if !s.Begun() || working.Err() != nil {
			t.Errorf("told to stop: begun %v, work %v; want begun, and work going on", s.Begun(), working.Err())
		}
		time.Sleep(9 * time.Second)
		synctest.Wait()
		if working.Err() != nil {
			t.Error("work ended before the delay was over")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if working.Err() == nil {
			t.Error("work goes on after the delay")
		}
	})
}

func TestWithoutADelayWorkEndsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told, stop := context.WithCancel(t.Context())
		var s Shutdown
		working, cancel := s.Context(told)
		defer cancel()
		stop()
		synctest.Wait()
		if working.Err() == nil {
			t.Error("work goes on")
		}
	})
}

// What fails by itself does not wait for the end of the delay.
func TestTheDelayEndsWithTheWork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		told, stop := context.WithCancel(t.Context())
		s := Shutdown{Delay: time.Hour}
		_, cancel := s.Context(told)
		stop()
		synctest.Wait()
		cancel() // synctest fails the test if anything still waits for the hour
	})
}

func TestAProcessToldToStopIsNotReadyAndClosesConnections(t *testing.T) {
	t.Parallel()
	s := Shutdown{Delay: time.Hour}
	operator := Operator{Ready: func(context.Context) error { return nil }, Shutdown: &s, Metrics: NewRegistry()}.Handler()
	api := s.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	ask := func() (ready int, connection string) {
		r, a := httptest.NewRecorder(), httptest.NewRecorder()
		operator.ServeHTTP(r, httptest.NewRequest("GET", "/readyz", nil))
		api.ServeHTTP(a, httptest.NewRequest("GET", "/", nil))
		return r.Code, a.Header().Get("Connection")
	}
	if ready, connection := ask(); ready != 200 || connection != "" {
		t.Errorf("before: %d, Connection: %q", ready, connection)
	}
	s.begun.Store(true)
	if ready, connection := ask(); ready != 503 || connection != "close" {
		t.Errorf("told to stop: %d, Connection: %q; want 503, close", ready, connection)
	}
}
