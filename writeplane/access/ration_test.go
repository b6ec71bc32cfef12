package access

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// issuerCalled counts what reaches the issuer and answers with the count.
type issuerCalled struct {
	calls int
	down  bool
}

func (i *issuerCalled) RoundTrip(req *http.Request) (*http.Response, error) {
	i.calls++
	status := http.StatusOK
	if i.down {
		status = http.StatusServiceUnavailable
	}
	return &http.Response{StatusCode: status, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(fmt.Sprint(i.calls))), Request: req}, nil
}

func fetch(t *testing.T, r http.RoundTripper) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://id.example.com/keys", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := r.RoundTrip(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(resp.StatusCode, " ", string(body)), nil
}

func TestUnknownKidsReachTheIssuerAtABoundedRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		issuer := &issuerCalled{}
		r := newRation(issuer)
		for range 1000 {
			if got, err := fetch(t, r); err != nil || !strings.HasPrefix(got, "200 ") {
				t.Fatalf("%q, %v", got, err)
			}
		}
		if issuer.calls != 5 {
			t.Errorf("a thousand unknown kids at once: %d calls to the issuer, want 5", issuer.calls)
		}
		time.Sleep(10 * time.Second)
		for range 1000 {
			if got, err := fetch(t, r); err != nil || got != "200 6" {
				t.Fatalf("after ten seconds: %q, %v; want the sixth answer", got, err)
			}
		}
		time.Sleep(time.Hour)
		for range 1000 {
			if _, err := fetch(t, r); err != nil {
				t.Fatal(err)
			}
		}
		if issuer.calls != 11 {
			t.Errorf("after an hour: %d calls, want 6 and no more than 5 on top", issuer.calls)
		}
	})
}

func TestIssuerThatIsAwayIsNotCalledWithoutBoundEither(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		issuer := &issuerCalled{down: true}
		r := newRation(issuer)
		for n := range 20 {
			got, err := fetch(t, r)
			if n < 5 && (err != nil || !strings.HasPrefix(got, "503")) || n >= 5 && err == nil {
				t.Fatalf("call %d: %q, %v", n, got, err)
			}
		}
		if issuer.calls != 5 {
			t.Errorf("%d calls, want 5", issuer.calls)
		}
		issuer.down = false
		time.Sleep(10 * time.Second)
		if got, err := fetch(t, r); err != nil || got != "200 6" {
			t.Errorf("after it is back: %q, %v", got, err)
		}
	})
}

// elsewhere redirects every fetch to another address, or answers with more than anybody wants.
type elsewhere struct{ redirects, endless int }

type endlessBody struct{}

func (endlessBody) Read(p []byte) (int, error) { return len(p), nil }

func (e *elsewhere) RoundTrip(req *http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("{}")), Request: req}
	switch req.URL.Path {
	case "/keys":
		e.redirects++
		resp.StatusCode = http.StatusFound
		resp.Header.Set("Location", fmt.Sprintf("https://id.example.com/keys/%d", e.redirects))
	case "/endless":
		e.endless++
		resp.StatusCode, resp.Body = http.StatusInternalServerError, io.NopCloser(endlessBody{})
	}
	return resp, nil
}

func TestIssuerThatRedirectsFillsNoMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		issuer := &elsewhere{}
		r := newRation(issuer)
		client := &http.Client{Transport: r}
		get := func(path string) (string, error) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://id.example.com"+path, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				return "", err
			}
			defer func() { _ = resp.Body.Close() }()
			body, err := io.ReadAll(resp.Body)
			return string(body), err
		}
		for range 20 {
			for range 7 {
				if body, err := get("/keys"); err != nil || body != "{}" {
					t.Fatalf("%q, %v", body, err)
				}
			}
			time.Sleep(rationEvery)
		}
		if len(r.kept) != 1 || issuer.redirects != 5+19 {
			t.Errorf("%d answers are kept of %d fetches; want one of 24", len(r.kept), issuer.redirects)
		}
		if _, err := get("/endless"); !errors.Is(err, errTooLong) || issuer.endless != 1 {
			t.Errorf("%v", err)
		}
	})
}
