package cli

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// buildFolder is what a build leaves: artifacts among other files.
func buildFolder(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	so, err := os.ReadFile(filepath.Join("..", "..", "writeplane", "symbolicate", "native", "testdata", "tiny.so"))
	if err != nil {
		t.Fatal(err)
	}
	const sourceMap = `{"version":3,"sources":["a.ts"],"names":["run"],"mappings":"AAAAA,SACA"}`
	for name, content := range map[string]string{
		"app.js": "code", "app.js.map": sourceMap, "app.css.map": sourceMap, "README.txt": "words", "readme.map": "no JSON",
		"lib/arm64/libtiny.so": string(so), "mapping.txt": "shop.Main -> a:\n    1:1:void go():5:5 -> b\n",
		"node_modules/x/x.js.map": sourceMap, "App.dSYM/Contents/Resources/DWARF/App": "\xcf\xfa\xed\xfe", "__MACOSX/._app.js.map": sourceMap,
	} {
		path := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestArtifactsAreFoundInABuildFolder(t *testing.T) {
	t.Parallel()
	found, err := findSymbols([]string{buildFolder(t)}, "")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range found {
		names = append(names, string(f.kind)+" "+f.name)
	}
	slices.Sort(names)
	if got := strings.Join(names, ", "); got != "android_mapping mapping.txt, android_ndk libtiny.so, ios_dsym App.dSYM.zip, js_sourcemap app.js.map" {
		t.Error(got)
	}
}

func TestUploadSkipsWhatIsThereAndTriesAgainWhatMayPass(t *testing.T) {
	t.Parallel()
	var posts int
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			there := `[]`
			if r.URL.Query().Get("kind") == "android_mapping" {
				there = `[{"match_key":"77"}]`
			}
			fmt.Fprintf(w, `{"artifacts":%s,"next_cursor":null,"has_more":false}`, there)
			return
		}
		if posts++; posts == 1 {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, `{"error":"Service temporarily unavailable"}`)
			return
		}
		file, header, err := r.FormFile("file")
		if err != nil || r.FormValue("release") != "1.0" || r.FormValue("kind") == "" {
			t.Errorf("form: %v %v", err, r.Form)
			return
		}
		content, _ := io.ReadAll(file)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"artifact":{"id":"id-%s","match_key":"k","warnings":["%d bytes"]}}`, header.Filename, len(content))
	}))
	t.Cleanup(srv.Close)
	dir := buildFolder(t)
	code, out, errs := skerry(t, "symbols", "upload", filepath.Join(dir, "app.js.map"), filepath.Join(dir, "mapping.txt"), "--release", "1.0",
		"--url", srv.URL, "--token", "t", "--project", "p")
	if code != 0 || !strings.Contains(out, "id-app.js.map\tjs_sourcemap\tk\t") || !strings.Contains(errs, "warning: 72 bytes") ||
		!strings.Contains(errs, "503 Service temporarily unavailable; trying again") || !strings.Contains(errs, "1 uploaded, 1 already there, 0 failed") {
		t.Errorf("%d\n%s\n%s", code, out, errs)
	}
	code, out, errs = skerry(t, "symbols", "upload", filepath.Join(dir, "mapping.txt"), "--release", "1.0", "--again", "--url", srv.URL, "--token", "t", "--project", "p")
	if code != 0 || !strings.Contains(out, "id-mapping.txt") || !strings.Contains(errs, "1 uploaded, 0 already there, 0 failed") {
		t.Errorf("again: %d\n%s\n%s", code, out, errs)
	}
}

func TestReportIsMadeReadableOffline(t *testing.T) {
	t.Parallel()
	dir := buildFolder(t)
	report := filepath.Join(t.TempDir(), "crash.json")
	err := os.WriteFile(report, []byte(`{"release":"1","platform":"ndk","exception":{"type":"SIGSEGV","value":"at 0"},"frames":[{"address":"0x102e"},{"address":"0x1"}]}`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	code, out, errs := skerry(t, "symbolicate", report, "--symbols", filepath.Join(dir, "lib"))
	const want = "SIGSEGV: at 0\n#0   twice at /src/tiny.c:1:47\n     inlined into helper at /src/tiny.c:5:10\n#1   0x1 (no_match)\n"
	if code != 0 || out != want {
		t.Errorf("%d %s\n%q", code, errs, out)
	}
	if code, _, errs := skerry(t, "symbolicate", report, "--symbols", filepath.Join(dir, "nowhere")); code != 2 || !strings.Contains(errs, "nowhere") {
		t.Errorf("%d %s", code, errs)
	}
}
