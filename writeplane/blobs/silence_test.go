package blobs

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"skerry/writeplane/postgres/dbtest"
)

// A silent S3 server answers some requests, begins to answer others, and then says nothing.
func TestASilentS3ServerIsNotWaitedForWithoutAnEnd(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "tester")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "tester-secret-0123456789")
	over := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.URL.Path == "/files/begun" {
			w.Header().Set("Content-Length", "1000000")
			_, _ = w.Write([]byte("the beginning"))
			w.(http.Flusher).Flush()
		}
		<-over
	}))
	defer server.Close()
	defer close(over)
	s, err := Open(t.Context(), Config{URL: "s3://files?region=us-east-1&use_path_style=true&endpoint=" + server.URL}, dbtest.New(t).App)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	s.silence = 100 * time.Millisecond
	if _, err := s.Open(t.Context(), "silent"); !errors.Is(err, errSilent) {
		t.Errorf("open: %v", err)
	}
	if err := s.Delete(t.Context(), "silent"); !errors.Is(err, errSilent) {
		t.Errorf("delete: %v", err)
	}
	if err := s.Walk(t.Context(), "", func(string, int64, time.Time) error { return nil }); !errors.Is(err, errSilent) {
		t.Errorf("list: %v", err)
	}
	s.accepting = 100 * time.Millisecond
	for name, size := range map[string]int{"one request": 10, "parts": 3 * partSize} {
		w, err := s.Create(t.Context(), "silent", "text/plain")
		if err != nil {
			t.Fatal(err)
		}
		if _, err = w.Write(make([]byte, size)); err == nil {
			err = w.Close()
		}
		if !errors.Is(err, errSilent) {
			t.Errorf("write %s: %v", name, err)
		}
		w.Abort()
	}
	r, err := s.Open(t.Context(), "begun")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = r.Close() }()
	time.Sleep(2 * s.silence) // the fault under test: a user who takes their time, which nobody may take for silence
	if text, err := io.ReadAll(r); !errors.Is(err, errSilent) || string(text) != "the beginning" {
		t.Errorf("read: %q, %v", text, err)
	}
}
