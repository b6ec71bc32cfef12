package responses_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"skerry/writeplane/surveys/responses"
	"skerry/writeplane/surveys/surveystest"
)

// Whoever announces all the room there is, and sends little of it, keeps nobody out.
func TestAnnouncedBodyTakesNoRoomBeforeItComes(t *testing.T) {
	t.Parallel()
	w := surveystest.New(t, responses.Config{MaxBody: 4 << 20, Bodies: 4 << 20})
	w.Published(everyKind)
	ask := func(body io.Reader, length int64) int {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		r := httptest.NewRequestWithContext(ctx, "POST", submit, body)
		r.Header.Set("X-Api-Key", w.Live)
		r.ContentLength = length
		recorder := httptest.NewRecorder()
		w.Handler.ServeHTTP(recorder, r)
		return recorder.Code
	}
	slow, sent := io.Pipe()
	answered := make(chan int)
	go func() { answered <- ask(slow, 4<<20) }()
	for _, part := range []string{oneAnswer + strings.Repeat(" ", 64<<10), " "} { // the second is read when there is room
		if _, err := io.WriteString(sent, part); err != nil {
			t.Fatal(err)
		}
	}
	large := oneAnswer + strings.Repeat(" ", 100<<10)
	if status := ask(strings.NewReader(large), int64(len(large))); status != http.StatusCreated {
		t.Errorf("a body of 100 KiB beside one that does not come: %d, want 201", status)
	}
	_ = sent.Close()
	if status := <-answered; status != http.StatusCreated {
		t.Errorf("the slow body, when it has ended: %d, want 201", status)
	}
}

// Bodies that have begun to come do not wait for each other: there is room for more of one,
// or it is sent away.
func TestLargestBodiesAreTakenOrRefused(t *testing.T) {
	t.Parallel()
	w := surveystest.New(t, responses.Config{MaxBody: 4 << 20, Bodies: 4 << 20})
	w.Published(everyKind)
	large := oneAnswer + strings.Repeat(" ", 3<<20)
	for range 2 { // all room is given back
		statuses, _ := together(20, func(int) surveystest.Answer { return w.Do(w.Live, "POST", submit, large) })
		if statuses[201]+statuses[503] != 20 {
			t.Errorf("%v, want each stored or 503", statuses)
		}
	}
	w.Must(http.StatusCreated, w.Live, "POST", submit, large)
}
