package relay

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// With a key that stands in a web page somebody sends as many bodies as there are places,
// and none of them ends.
func TestSlowBodiesOfOneKeyKeepNoHaltOut(t *testing.T) {
	t.Parallel()
	const places = 16
	begun := make(chan struct{}, 2*places)
	centre := writePlane(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/slow" {
			begun <- struct{}{}
			_, _ = io.Copy(io.Discard, r.Body)
		}
		_, _ = io.WriteString(w, "ok")
	})
	address := relayed(t, Config{WritePlane: centre, InFlight: places})
	var all sync.WaitGroup
	ends := make([]*io.PipeWriter, 2*places)
	statuses := make(chan int, 2*places)
	for i := range ends {
		var body *io.PipeReader
		body, ends[i] = io.Pipe()
		all.Go(func() {
			response, _ := do(t, "POST", "http://"+address+"/slow", body, "x-api-key", "sk_live_public")
			_ = body.CloseWithError(io.ErrClosedPipe)
			statuses <- response.StatusCode
		})
		all.Go(func() { _, _ = io.WriteString(ends[i], strings.Repeat("x", 10<<10)) })
	}
	for range places / 2 {
		<-begun
	}
	for range 2*places - places/2 {
		if status := <-statuses; status != 503 {
			t.Errorf("one beyond half of the places: %d", status)
		}
	}
	for i, credential := range []string{"x-api-key: sk_live_other", "Authorization: Bearer token", "Accept: */*"} {
		name, value, _ := strings.Cut(credential, ": ")
		if response, got := do(t, "POST", "http://"+address+"/halt", strings.NewReader("{}"), name, value); response.StatusCode != 200 || got != "ok" {
			t.Errorf("%d: %d %s", i, response.StatusCode, got)
		}
	}
	for _, end := range ends {
		_ = end.Close()
	}
	all.Wait()
	for range places / 2 {
		if status := <-statuses; status != 200 {
			t.Errorf("one of those that had a place: %d", status)
		}
	}
}
