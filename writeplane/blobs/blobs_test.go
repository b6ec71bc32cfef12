package blobs

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"skerry/pkg/openapi/openapitest"
	"skerry/pkg/reply"
	"skerry/writeplane/blobs/s3test"
	"skerry/writeplane/postgres"
	"skerry/writeplane/postgres/dbtest"
)

func TestMain(m *testing.M) { dbtest.Main(m) }

func openFolder(t testing.TB, db *postgres.DB) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{URL: t.TempDir(), PublicURL: "http://skerry.example"}, db.App)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func write(t testing.TB, s *Store, key, text string) {
	t.Helper()
	w, err := s.Create(t.Context(), key, "text/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if _, err := io.WriteString(w, text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, s *Store, key string) (string, error) {
	t.Helper()
	r, err := s.Open(t.Context(), key)
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Close() }()
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text), nil
}

// suite is what any place of files does.
func suite(t *testing.T, s *Store) {
	write(t, s, "a/b/one.txt", "first")
	write(t, s, "a/b/one.txt", "second")
	write(t, s, "a/two.txt", "")
	if got, err := read(t, s, "a/b/one.txt"); err != nil || got != "second" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := read(t, s, "a/none"); !errors.Is(err, ErrNotFound) {
		t.Error(err)
	}
	aborted, err := s.Create(t.Context(), "a/aborted", "text/plain")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = aborted.Write(bytes.Repeat([]byte("x"), 100_000))
	aborted.Abort()
	if _, err := read(t, s, "a/aborted"); !errors.Is(err, ErrNotFound) {
		t.Error("an aborted object exists")
	}
	var names []string
	if err := s.Walk(t.Context(), "a/", func(key string, _ int64, _ time.Time) error { names = append(names, key); return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(names, []string{"a/b/one.txt", "a/two.txt"}) {
		t.Errorf("%v", names)
	}
	for range 2 {
		if err := s.Delete(t.Context(), "a/two.txt"); err != nil {
			t.Error(err)
		}
	}
	if _, err := read(t, s, "a/two.txt"); !errors.Is(err, ErrNotFound) {
		t.Error("a deleted object exists")
	}
	for _, bad := range []string{"", "/a", "a/", "a//b", "../a", "a/../b", ".hidden", "a\\b", "a b", "ü", strings.Repeat("a", 600)} {
		if _, err := s.Create(t.Context(), bad, ""); err == nil {
			t.Errorf("%q was created", bad)
		}
		if _, err := s.Open(t.Context(), bad); !errors.Is(err, ErrNotFound) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestFolderKeepsFiles(t *testing.T) {
	t.Parallel()
	suite(t, openFolder(t, dbtest.New(t)))
}

func TestS3KeepsFilesAndSignsDownloads(t *testing.T) {
	s, err := Open(t.Context(), Config{URL: s3test.New(t)}, dbtest.New(t).App)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	suite(t, s)

	write(t, s, "exports/x.csv", "a,b\r\n")
	write(t, s, "exports/y.csv", "other")
	signed, expires, err := s.SignedURL(t.Context(), "exports/x.csv", `audit "2026".csv`, DefaultExpiry)
	if err != nil || time.Until(expires) < 9*time.Minute || time.Until(expires) > 10*time.Minute {
		t.Fatal(err, expires)
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	do := func(method, address string) (int, http.Header, string) {
		request, err := http.NewRequestWithContext(t.Context(), method, address, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := (&http.Client{Transport: transport}).Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = response.Body.Close() }()
		body, _ := io.ReadAll(response.Body)
		return response.StatusCode, response.Header, string(body)
	}
	status, header, body := do("GET", signed)
	if status != 200 || body != "a,b\r\n" || !strings.HasPrefix(header.Get("Content-Disposition"), "attachment") || header.Get("Content-Type") != "text/csv; charset=utf-8" {
		t.Errorf("%d %q %v", status, body, header)
	}
	for name, trick := range map[string][2]string{
		"another object": {"GET", strings.Replace(signed, "x.csv?", "y.csv?", 1)},
		"deletion":       {"DELETE", signed},
		"no signature":   {"GET", strings.Split(signed, "?")[0]},
	} {
		if status, _, _ := do(trick[0], trick[1]); status != 403 {
			t.Errorf("%s: %d", name, status)
		}
	}
	if got, _ := read(t, s, "exports/x.csv"); got != "a,b\r\n" {
		t.Error("the object was deleted by a URL for reading")
	}
}

// 100 MB through the S3 client while the process's heap stays small.
func TestS3UploadIsBoundedInMemory(t *testing.T) {
	s, err := Open(t.Context(), Config{URL: s3test.New(t)}, dbtest.New(t).App)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	w, err := s.Create(t.Context(), "large", "application/octet-stream")
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	noise := rand.NewChaCha8([32]byte{})
	chunk := make([]byte, 1<<20)
	var highest uint64
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range 100 {
		_, _ = noise.Read(chunk)
		if _, err := w.Write(chunk); err != nil {
			t.Fatal(err)
		}
		if i%10 == 9 {
			runtime.GC() // what is held, not what is garbage
		}
		runtime.ReadMemStats(&now)
		if i%10 != 9 {
			continue
		}
		highest = max(highest, now.HeapAlloc-min(before.HeapAlloc, now.HeapAlloc))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	t.Logf("highest heap above the start: %d MiB", highest>>20)
	if highest > 32<<20 {
		t.Errorf("%d MiB were held for one upload", highest>>20)
	}
	r, err := s.Open(t.Context(), "large")
	if err != nil || r.Size() != 100<<20 {
		t.Fatal(err)
	}
	_ = r.Close()
}

// download serves the folder's handler as the plane does.
func download(t *testing.T, s *Store) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc(DownloadPath+"{key...}", func(w http.ResponseWriter, r *http.Request) {
		if err := s.Download(w, r, nil); err != nil {
			reply.Error(w, r, err)
		}
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server
}

// fetch asks for an address of a server.
func fetch(t *testing.T, server *httptest.Server, method, address string, header ...string) (int, http.Header, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, _ := io.ReadAll(response.Body)
	openapitest.Check(t, method, request.URL.EscapedPath(), response.StatusCode, response.Header, body)
	return response.StatusCode, response.Header, string(body)
}

func TestFoldersURLOpensOneObjectByOneMethodUntilItExpires(t *testing.T) {
	t.Parallel()
	s := openFolder(t, dbtest.New(t))
	server := download(t, s)
	write(t, s, "exports/x.csv", "=1+1\r\n")
	write(t, s, "exports/y.csv", "other")
	signed, _, err := s.SignedURL(t.Context(), "exports/x.csv", "Prüfung\r\nX-Evil: 1.html", DefaultExpiry)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(signed, "http://skerry.example/api/v1/downloads/exports/x.csv?") {
		t.Fatal(signed)
	}
	address := strings.Replace(signed, "http://skerry.example", server.URL, 1)
	get := func(method, address string, header ...string) (int, http.Header, string) {
		t.Helper()
		return fetch(t, server, method, address, header...)
	}
	status, header, body := get("GET", address)
	if status != 200 || body != "=1+1\r\n" || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("X-Evil") != "" ||
		!strings.HasPrefix(header.Get("Content-Disposition"), "attachment") || header.Get("Content-Type") != "application/octet-stream" {
		t.Errorf("%d %q %v", status, body, header)
	}
	if status, head, body := get("HEAD", address); status != 200 || body != "" || head.Get("Content-Length") != "6" || head.Get("Content-Disposition") != header.Get("Content-Disposition") {
		t.Errorf("HEAD: %d %q %v", status, body, head)
	}
	if status, _, body := get("GET", address, "Range", "bytes=1-3"); status != 206 || body != "1+1" {
		t.Errorf("range: %d %q", status, body)
	}
	change := func(name, value string) string {
		parsed, _ := url.Parse(address)
		query := parsed.Query()
		query.Set(name, value)
		parsed.RawQuery = query.Encode()
		return parsed.String()
	}
	expired, _, _ := s.SignedURL(t.Context(), "exports/x.csv", "x", -time.Second)
	for name, trick := range map[string][2]string{
		"another object":   {"GET", strings.Replace(address, "x.csv?", "y.csv?", 1)},
		"outside":          {"GET", strings.Replace(address, "exports/x.csv?", "..%2f..%2fidentity?", 1)},
		"PUT":              {"PUT", address},
		"DELETE":           {"DELETE", address},
		"longer":           {"GET", change("expires", strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10))},
		"another filename": {"GET", change("filename", "x.html")},
		"no signature":     {"GET", change("signature", "")},
		"expired":          {"GET", strings.Replace(expired, "http://skerry.example", server.URL, 1)},
	} {
		if status, _, body := get(trick[0], trick[1]); status != 403 || body != `{"error":"invalid_signature"}` {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
	if err := s.Delete(t.Context(), "exports/x.csv"); err != nil {
		t.Fatal(err)
	}
	if status, _, body := get("GET", address); status != 404 || body != `{"error":"not_found"}` {
		t.Errorf("deleted: %d %s", status, body)
	}
}

func TestFolderRefusesASecondWritePlane(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	folder := t.TempDir()
	first, err := Open(t.Context(), Config{URL: folder}, db.App)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), Config{URL: "file://" + folder}, db.App); !errors.Is(err, ErrFolderTaken) {
		t.Errorf("beside the first: %v", err)
	}
	if _, err := Open(t.Context(), Config{URL: t.TempDir()}, db.App); err == nil || !strings.Contains(err.Error(), "is not the one") {
		t.Errorf("with a folder of its own: %v", err)
	}
	write(t, first, "kept", "text")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Open(t.Context(), Config{URL: folder}, db.App)
	if err != nil {
		t.Fatalf("after the first: %v", err)
	}
	defer func() { _ = again.Close() }()
	if got, err := read(t, again, "kept"); err != nil || got != "text" {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := Open(t.Context(), Config{URL: folder}, dbtest.New(t).App); err == nil {
		t.Error("another installation took the folder")
	}
}

func TestWhatADeadProcessWasWritingIsSwept(t *testing.T) {
	t.Parallel()
	db, folder := dbtest.New(t), t.TempDir()
	first, err := Open(t.Context(), Config{URL: folder}, db.App)
	if err != nil {
		t.Fatal(err)
	}
	write(t, first, "x/kept", "text")
	_ = first.Close()
	stranded := filepath.Join(folder, "objects", "x", "y.18f.tmp")
	if err := os.WriteFile(stranded, []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	again, err := Open(t.Context(), Config{URL: folder}, db.App)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = again.Close() }()
	if _, err := os.Stat(stranded); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if got, err := read(t, again, "x/kept"); err != nil || got != "text" {
		t.Errorf("%q, %v", got, err)
	}
}

func TestUnfinishedObjectLeavesNoFile(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	s, err := Open(t.Context(), Config{URL: folder}, dbtest.New(t).App)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	w, err := s.Create(t.Context(), "x/y", "")
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(w, "text")
	if err := s.Walk(t.Context(), "", func(key string, _ int64, _ time.Time) error { t.Errorf("%s is listed", key); return nil }); err != nil {
		t.Fatal(err)
	}
	w.Abort()
	var files []string
	_ = filepath.WalkDir(filepath.Join(folder, "objects"), func(path string, d os.DirEntry, _ error) error {
		if !d.IsDir() {
			files = append(files, path)
		}
		return nil
	})
	if len(files) > 0 {
		t.Errorf("%v", files)
	}
}
