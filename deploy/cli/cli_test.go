package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"skerry/pkg/pgserver/pgtest"
	"skerry/writeplane/postgres"
)

func TestMain(m *testing.M) {
	// Whoever runs the tests may have settings of their own in their environment.
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasPrefix(name, "SKERRY_") {
			_ = os.Unsetenv(name)
		}
	}
	pgtest.Main(m, postgres.Migrate)
}

// skerry runs one command line.
func skerry(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	var o, e bytes.Buffer
	code = Run(t.Context(), args, Streams{Out: &o, Err: &e}, "v-test")
	return code, o.String(), e.String()
}

// answering serves fixed bodies by "METHOD path?query" and remembers calls.
func answering(t *testing.T, answers map[string]string) (url string, calls *[]string) {
	t.Helper()
	calls = &[]string{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body bytes.Buffer
		_, _ = body.ReadFrom(r.Body)
		*calls = append(*calls, strings.TrimSpace(r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Authorization")+r.Header.Get("x-api-key")+" "+body.String()))
		w.Header().Set("X-Request-Id", "req-1")
		answer, ok := answers[r.Method+" "+r.URL.RequestURI()]
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			answer = `{"error":"not_found"}`
		}
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(srv.Close)
	return srv.URL, calls
}

func TestFaultsAreNamedOnOneLine(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	for _, c := range []struct {
		args []string
		code int
		err  string
	}{
		{[]string{"flags", "list", "--urll", "x"}, 2, "skerry: unknown flag --urll, did you mean \"--url\"?\ntry: skerry flags list --help\n"},
		{[]string{"nothing"}, 2, "skerry: unexpected argument nothing\ntry: skerry --help\n"},
		{[]string{"flags", "list"}, 2, "skerry flags list: --url (or SKERRY_URL, or --credentials) is required\n"},
		{[]string{"flags", "list", "--url", gone.URL}, 2, "skerry flags list: --token (or SKERRY_TOKEN, or --credentials) is required\n"},
		{[]string{"flags", "list", "--url", gone.URL, "--token", "t"}, 1, "skerry flags list: cannot reach " + gone.URL + ": connect: connection refused\n"},
		{[]string{"flags", "halt", "f", "--reason", "r", "--url", gone.URL}, 2, "skerry flags halt: --api-key (or SKERRY_API_KEY, or --credentials) is required\n"},
		{[]string{"flags", "list", "--url", "ftp://x"}, 2, "skerry flags list: --url \"ftp://x\" is not an address such as http://host:port\n"},
		{[]string{"flags", "halt", "f", "--reason", "r", "-e", "prod"}, 2, "skerry: --environment must be one of \"live\",\"test\" but got \"prod\"\ntry: skerry flags halt --help\n"},
		{[]string{"keys", "rotate", "k", "--grace", "3d"}, 2, "skerry: --grace: \"3d\" is not a time such as 30s, 5m or 24h\ntry: skerry keys rotate --help\n"},
		{[]string{"up", "--data"}, 2, "skerry: --data: a value is missing\ntry: skerry up --help\n"},
		{[]string{"up", "--edges", "-1"}, 2, "skerry: --edges: a value that begins with a dash is written --edges=-1\ntry: skerry up --help\n"},
		{[]string{"up", "--nats-url", "http://x"}, 2, "skerry up: --nats-url begins with http://; NATS servers are nats://, tls://, ws:// or wss://\n"},
		{[]string{"edge", "--trusted-proxy", "10.0.0.1"}, 2, "skerry: --trusted-proxy: \"10.0.0.1\" is not a network such as 10.0.0.0/8\ntry: skerry edge run --help\n"},
		{edgeWith("--id", "a b"), 2, "skerry edge: --id \"a b\" is not of [A-Za-z0-9_-]{1,64}\n"},
		{edgeWith("--listen", "8080"), 2, "skerry edge: --listen \"8080\" is not host:port, such as 0.0.0.0:8080\n"},
		{edgeWith("--buffer-bytes=-1"), 2, "skerry edge: --buffer-bytes -1 is negative\n"},
		{edgeWith("--shutdown-delay=-1s"), 2, "skerry edge: --shutdown-delay -1s is negative\n"},
		{edgeWith("--writeplane-url", "here"), 2, "skerry edge: --writeplane-url \"here\" is not http(s)://host[:port]\n"},
		{edgeWith("--nats-url", "nats://u:hid den@h:4222"), 2, "skerry edge: --nats-url is not of the form nats://user:password@host:4222; in a password, characters such as # or blanks are written %23, %20\n"},
		{edgeWith("--nats-credentials", "/nonexistent"), 2, "skerry edge: --nats-credentials: open /nonexistent: no such file or directory\n"},
		{edgeWith("--nats-ca", "/nonexistent"), 2, "skerry edge: --nats-ca: open /nonexistent: no such file or directory\n"},
		{edgeWith("--nats-ca", "cli_test.go"), 2, "skerry edge: --nats-ca: cli_test.go holds no certificate in PEM form\n"},
		{[]string{"migrate", "--postgres-url", "u:hidden@h"}, 2, "skerry migrate: --postgres-url is not of the form postgres://user:password@host:5432/database\n"},
		{planeWith("--stream-replicas", "9"), 2, "skerry writeplane: --stream-replicas 9 is not between 1 and 5\n"},
		{planeWith("--postgres-connections", "0"), 2, "skerry writeplane: --postgres-connections 0 is not between 1 and 10000\n"},
		{planeWith("--blob-url", "ftp://x"), 2, "skerry writeplane: --blob-url ftp://… is neither a folder nor s3://bucket?region=…\n"},
		{planeWith("--retention-days=-1"), 2, "skerry writeplane: --retention-days -1 is negative\n"},
		{planeWith("--audit-mirror-url", "u:hidden@h"), 2, "skerry writeplane: --audit-mirror-url is not of the form postgres://user:password@host:5432/database\n"},
		{planeWith("--public-url", "here"), 2, "skerry writeplane: --public-url \"here\" is not an address such as http://host:port\n"},
		{edgeWith("--public-url", "here"), 2, "skerry edge: --public-url \"here\" is not an address such as http://host:port\n"},
		{planeWith("--smtp-url", "mail"), 2, "skerry writeplane: --smtp-url: the mail server must be given as smtp://host:port or smtps://host:port\n"},
		{[]string{"edge", "retire", "e", "--ops", "here"}, 2, "skerry edge retire: --ops \"here\" is not an address such as http://host:port\n"},
		{[]string{"migrate", "--postgres-url", "postgres://u:hidden@127.0.0.1:1/d"}, 1, "skerry migrate: reach postgres at 127.0.0.1:1: connect: connection refused\n"},
		{[]string{"migrate"}, 2, "skerry: missing flags: --postgres-url=URL\ntry: skerry migrate --help\n"},
		{[]string{"edge"}, 2, "skerry: missing flags: --data=DIR, --id=ID, --nats-url=URL, --writeplane-url=URL\ntry: skerry edge run --help\n"},
		{[]string{"status", "--ops", gone.URL}, 1, "skerry status: 1 of 1 processes are not ready\n"},
	} {
		code, _, errs := skerry(t, c.args...)
		if code != c.code || errs != c.err {
			t.Errorf("skerry %s: code %d, %q; want %d, %q", strings.Join(c.args, " "), code, errs, c.code, c.err)
		}
	}
}

// edgeWith is a command line of an edge that is right but for more.
func edgeWith(more ...string) []string {
	return append([]string{"edge", "--id", "a", "--data", "/nonexistent", "--nats-url", "nats://127.0.0.1:1", "--writeplane-url", "http://127.0.0.1:1"}, more...)
}

// planeWith is a command line of a write plane that is right but for more.
func planeWith(more ...string) []string {
	return append([]string{"writeplane", "--postgres-url", "postgres://u:hidden@127.0.0.1:1/d", "--nats-url", "nats://127.0.0.1:1", "--blob-url", "/nonexistent"}, more...)
}

func TestFoundingsFaultIsSeenBeforeThePlanIsWritten(t *testing.T) {
	plan := filepath.Join(t.TempDir(), "plan.json")
	code, _, errs := skerry(t, "bootstrap", "--postgres-url", "postgres://u@127.0.0.1:1/d", "--organization", "A", "--project", "P", "--email", "nobody", "--plan", plan)
	if want := "skerry bootstrap: \"nobody\": email is not an address\n"; code != 2 || errs != want {
		t.Errorf("code %d, %q; want 2, %q", code, errs, want)
	}
	if _, err := os.Stat(plan); !os.IsNotExist(err) {
		t.Errorf("the plan stands there: %v", err)
	}
}

func TestOtherServersAreTold(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, "<html>")
	}))
	t.Cleanup(page.Close)
	if code, _, errs := skerry(t, "flags", "list", "--url", page.URL, "--token", "t"); code != 1 || errs != "skerry flags list: 404 from a server that is not Skerry's\n" {
		t.Errorf("a page: code %d, %q", code, errs)
	}
	operator := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":"not_found"}`)
	}))
	t.Cleanup(operator.Close)
	want := "skerry flags list: 404 not_found: this is not an edge's or a write plane's address for clients\n"
	if code, _, errs := skerry(t, "flags", "list", "--url", operator.URL, "--token", "t"); code != 1 || errs != want {
		t.Errorf("an operator listener: code %d, %q", code, errs)
	}
}

func TestServersWordsAndRequestIDAreShown(t *testing.T) {
	url, _ := answering(t, nil)
	code, _, errs := skerry(t, "flags", "resume", "x", "--url", url, "--token", "t")
	want := "skerry flags resume: 404 not_found: /api/v1/switch/flags/x/resume is not there, or not for this token to see (request req-1)\n"
	if code != 1 || errs != want {
		t.Errorf("code %d, %q; want 1, %q", code, errs, want)
	}
}

func TestListsFollowCursorsUpToTheLimit(t *testing.T) {
	url, calls := answering(t, map[string]string{
		"GET /api/v1/switch/flags?environment=live&limit=3":           `{"flags":[{"key":"a"},{"key":"b"}],"next_cursor":"c1","has_more":true}`,
		"GET /api/v1/switch/flags?cursor=c1&environment=live&limit=1": `{"flags":[{"key":"c","halted_at":"2026-01-02T03:04:05.678Z"}],"next_cursor":"c2","has_more":true}`,
	})
	code, out, errs := skerry(t, "flags", "list", "--limit", "3", "--url", url, "--token", "tok")
	if code != 0 {
		t.Fatalf("code %d: %s", code, errs)
	}
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 4 || !strings.HasPrefix(lines[0], "KEY") || !strings.Contains(lines[3], "2026-01-02T03:04:05.678Z") {
		t.Errorf("table:\n%s", out)
	}
	if len(*calls) != 2 || !strings.HasSuffix((*calls)[0], "Bearer tok") {
		t.Errorf("calls: %q", *calls)
	}
}

func TestHaltSendsTheKeyAloneAndJSONIsTheServersOwn(t *testing.T) {
	url, calls := answering(t, map[string]string{
		"POST /api/switch/halt-webhook": `{"flag":{"key":"checkout","environment":"live","halted_at":"2026-01-02T03:04:05.678Z","current_version":2,"halt_reason":"errors"}}`,
	})
	args := []string{"flags", "halt", "checkout", "--reason", "errors", "--api-key", "sk_live_x", "--url", url}
	code, out, errs := skerry(t, args...)
	if code != 0 || out != "halted checkout in live at 2026-01-02T03:04:05.678Z (version 2): errors\n" {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
	if want := `POST /api/switch/halt-webhook sk_live_x {"flag_key":"checkout","reason":"errors"}`; (*calls)[0] != want {
		t.Errorf("call %q, want %q", (*calls)[0], want)
	}
	_, out, _ = skerry(t, append(args, "--json")...)
	var answer struct{ Flag map[string]any }
	if err := json.Unmarshal([]byte(out), &answer); err != nil || answer.Flag["current_version"] != 2.0 {
		t.Errorf("--json: %q, %v", out, err)
	}
}

func TestHostileTextDoesNotReachTheTerminal(t *testing.T) {
	url, _ := answering(t, map[string]string{
		"GET /api/v1/ingest/dead-letters?environment=live&limit=50": `{"dead_letters":[{"id":"1","reason":"\u001b[2Jgone\nnext"}],"next_cursor":null}`,
	})
	_, out, _ := skerry(t, "deadletters", "list", "--url", url, "--token", "t")
	if strings.Contains(out, "\x1b") || !strings.Contains(out, `"\x1b[2Jgone\nnext"`) {
		t.Errorf("table: %q", out)
	}
}

func TestSecretStandsAloneOnStandardOutput(t *testing.T) {
	url, _ := answering(t, map[string]string{
		"GET /api/v1/projects?limit=2":      `{"projects":[{"id":"p1"}],"next_cursor":null}`,
		"POST /api/v1/projects/p1/api-keys": `{"api_key":{"id":"k1"},"secret":"sk_live_abc"}`,
	})
	code, out, errs := skerry(t, "keys", "create", "ci", "--url", url, "--token", "t")
	if code != 0 || out != "sk_live_abc\n" || !strings.Contains(errs, "id k1") {
		t.Errorf("code %d, out %q, err %q", code, out, errs)
	}
}

// Every command of administration asks for what its words say; answers are {} or absent.
func TestCommandsAskForWhatTheirWordsSay(t *testing.T) {
	for line, want := range map[string]string{
		"projects list":                           "GET /api/v1/projects?limit=50",
		"projects create Shop":                    "POST /api/v1/projects",
		"keys list":                               "GET /api/v1/projects/p1/api-keys?limit=50",
		"keys rotate k1":                          "POST /api/v1/api-keys/k1/rotate",
		"keys revoke k1":                          "DELETE /api/v1/api-keys/k1",
		"tokens list":                             "GET /api/v1/projects/p1/api-tokens?limit=50",
		"tokens create ci":                        "POST /api/v1/projects/p1/api-tokens",
		"tokens revoke t1":                        "DELETE /api/v1/api-tokens/t1",
		"config list -e test":                     "GET /api/v1/config/items?environment=test&limit=50",
		"config versions banner":                  "GET /api/v1/config/items?environment=live&limit=200",
		"webhooks list":                           "GET /api/v1/webhooks/subscriptions?limit=50",
		"webhooks create https://x.test switch.*": "POST /api/v1/webhooks/subscriptions",
		"webhooks delete s1":                      "DELETE /api/v1/webhooks/subscriptions/s1",
		"webhooks rotate-secret s1":               "POST /api/v1/webhooks/subscriptions/s1/rotate-secret",
		"webhooks test s1":                        "POST /api/v1/webhooks/subscriptions/s1/test",
		"webhooks deliveries s1 --status dead":    "GET /api/v1/webhooks/subscriptions/s1/deliveries?limit=50&status=dead",
		"webhooks dead-letters":                   "GET /api/v1/webhooks/dead-letters?limit=50",
		"webhooks retry d1":                       "POST /api/v1/webhooks/deliveries/d1/retry",
		"webhooks recover s1 --since now":         "POST /api/v1/webhooks/subscriptions/s1/recover",
		"deadletters replay l1":                   "POST /api/v1/ingest/dead-letters/l1/replay",
		"audit export --since now":                "POST /api/v1/audit/exports",
		"symbols list --release 1.2":              "GET /api/v1/catch/symbols?environment=live&limit=50&project_id=p1&release=1.2",
		"symbols delete a1":                       "DELETE /api/v1/catch/symbols/a1",
	} {
		url, calls := answering(t, map[string]string{"GET /api/v1/projects?limit=2": `{"projects":[{"id":"p1"}],"next_cursor":null}`})
		code, _, errs := skerry(t, append(strings.Fields(line), "--url", url, "--token", "t")...)
		if code != 1 || !strings.Contains(errs, "404 not_found") {
			t.Errorf("skerry %s: code %d, %q; want the server's 404", line, code, errs)
			continue
		}
		asked, _, _ := strings.Cut((*calls)[len(*calls)-1], " Bearer")
		if asked != want {
			t.Errorf("skerry %s asked %q, want %q", line, asked, want)
		}
	}
}

func TestPercentInAnIDStaysAsItIs(t *testing.T) {
	url, _ := answering(t, map[string]string{"DELETE /api/v1/api-keys/50%25d": `{"deleted":true}`})
	if code, out, errs := skerry(t, "keys", "revoke", "50%d", "--url", url, "--token", "t"); code != 0 || out != "revoked 50%d\n" {
		t.Errorf("code %d, %q, %q", code, out, errs)
	}
}

func TestBrokenChainFailsTheCommand(t *testing.T) {
	url, _ := answering(t, map[string]string{"GET /api/v1/audit/verify": `{"ok":false,"entries":9,"first_broken_seq":4}`})
	code, _, errs := skerry(t, "audit", "verify", "--url", url, "--token", "t")
	if code != 1 || errs != "skerry audit verify: the chain is broken at entry 4\n" {
		t.Errorf("code %d, %q", code, errs)
	}
}

func TestCredentialsFileGivesWhatIsLeftOpen(t *testing.T) {
	url, calls := answering(t, map[string]string{
		"POST /api/v1/switch/flags/f/resume?project_id=p9": `{"flag":{"key":"f","environment":"live","current_version":3}}`,
	})
	file := filepath.Join(t.TempDir(), "credentials.json")
	text := fmt.Sprintf(`{"writeplane":%q,"project_id":"p9","tokens":{"owner":"own"},"api_keys":{"live":"sk_live_1"}}`, url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := skerry(t, "flags", "resume", "f", "--credentials", file)
	if code != 0 || out != "resumed f in live (version 3)\n" {
		t.Fatalf("code %d, %q, %q", code, out, errs)
	}
	if !strings.Contains((*calls)[0], "Bearer own") {
		t.Errorf("call %q is not by the file's owner token", (*calls)[0])
	}
}

func TestFileIsBelowEnvironmentIsBelowFlags(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skerry.yaml")
	text := "url: http://127.0.0.1:1/file\nflags:\n  url: http://127.0.0.1:1/section\n  token: t\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	reach := func(args ...string) string {
		_, _, errs := skerry(t, append([]string{"flags", "list"}, args...)...)
		return errs
	}
	if got := reach("--config", file); !strings.Contains(got, "/section:") {
		t.Errorf("file: %q", got)
	}
	t.Setenv("SKERRY_CONFIG", file)
	if got := reach(); !strings.Contains(got, "/section:") {
		t.Errorf("file by environment: %q", got)
	}
	t.Setenv("SKERRY_URL", "http://127.0.0.1:1/env")
	if got := reach(); !strings.Contains(got, "/env:") {
		t.Errorf("environment: %q", got)
	}
	if got := reach("--url", "http://127.0.0.1:1/flag"); !strings.Contains(got, "/flag:") {
		t.Errorf("flag: %q", got)
	}
}

// YAML has numbers and times of its own, and would make other texts of them.
func TestValuesInTheFileAreTheTextThatStandsThere(t *testing.T) {
	url, calls := answering(t, nil)
	file := filepath.Join(t.TempDir(), "skerry.yaml")
	text := "url: " + url + "\ntoken: 0123\nproject: &p 1e3\naudit:\n  since: 2026-01-02\n  actor: *p\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	skerry(t, "audit", "export", "--until", "2026-01-03", "--config", file)
	want := `POST /api/v1/audit/exports Bearer 0123 {"actor_id":"1e3","project_id":"1e3","since":"2026-01-02","until":"2026-01-03"}`
	if len(*calls) != 1 || (*calls)[0] != want {
		t.Errorf("calls %q, want %q", *calls, want)
	}
}

func TestNumbersStayAsTheServerWroteThem(t *testing.T) {
	url, _ := answering(t, map[string]string{
		"GET /api/v1/audit?limit=50":                                       `{"entries":[{"id":"1","after":{"quota":9007199254740993,"big":1e999}}],"next_cursor":null}`,
		"GET /api/v1/catch/symbols?environment=live&limit=50&project_id=p": `{"artifacts":[{"id":"1","size_bytes":9007199254740993}],"next_cursor":null}`,
	})
	_, out, errs := skerry(t, "audit", "tail", "--json", "--url", url, "--token", "t")
	if want := `"after":{"big":1e999,"quota":9007199254740993}`; !strings.Contains(out, want) {
		t.Errorf("%q %q, want %s in it", out, errs, want)
	}
	_, out, errs = skerry(t, "symbols", "list", "--project", "p", "--url", url, "--token", "t")
	if !strings.Contains(out, "9007199254740993") {
		t.Errorf("%q %q", out, errs)
	}
}

func TestUnknownKeysInTheFileAreNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skerry.yaml")
	text := "log_format: json\nlisten-egde: x\nflags:\n  tokken: t\nplanes:\n  a: 1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := skerry(t, "flags", "list", "--config", file)
	want := "skerry: " + file + ": unknown: flags.tokken (did you mean token?), listen-egde (did you mean listen-edge?), planes\n"
	if code != 2 || !strings.HasPrefix(errs, want) {
		t.Errorf("code %d, %q; want %q", code, errs, want)
	}
}

func TestSealingKeysStandOneToALine(t *testing.T) {
	first, second := strings.Repeat("A", 43)+"=", strings.Repeat("B", 42)+"A="
	for text, says := range map[string]string{
		first:                            "",
		first + "\r\n\n" + second + "\n": "",
		"":                               "is empty",
		first + "\nAAAA\n":               "key 2 of",
		"not base64":                     "key 1 of",
	} {
		file := filepath.Join(t.TempDir(), "key")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, errs := skerry(t, planeWith("--sealing-key-file", file)...)
		switch {
		case says == "" && (code != 1 || !strings.Contains(errs, "reach postgres")):
			t.Errorf("%q: code %d, %q; want it to be taken", text, code, errs)
		case says != "" && (code != 2 || !strings.Contains(errs, says)):
			t.Errorf("%q: code %d, %q; want %q", text, code, errs, says)
		}
	}
}

func TestVariablesThatNoFlagReadsAreNamed(t *testing.T) {
	t.Setenv("SKERRY_POSTGRES_ULR", "postgres://u:hidden@127.0.0.1:1/d")
	t.Setenv("SKERRY_EDGE_PORT_8080_TCP", "x") // as Kubernetes sets it for a service called skerry-edge
	t.Setenv("SKERRY_TOKEN", "hidden")         // of another command
	_, _, errs := skerry(t, "migrate", "--postgres-url", "postgres://u:hidden@127.0.0.1:1/d")
	for _, want := range []string{"SKERRY_POSTGRES_ULR (did you mean SKERRY_POSTGRES_URL?)", "name=SKERRY_EDGE_PORT_8080_TCP\n"} {
		if !strings.Contains(errs, want) {
			t.Errorf("%q does not say %q", errs, want)
		}
	}
	if strings.Contains(errs, "hidden") || strings.Contains(errs, "SKERRY_TOKEN") {
		t.Errorf("%q", errs)
	}
	if _, _, errs = skerry(t, "flags", "list", "--url", "ftp://x"); strings.Contains(errs, "ULR") {
		t.Errorf("an administrator's command: %q", errs)
	}
}

func TestMalformedFileIsNamed(t *testing.T) {
	for text, says := range map[string]string{
		"a: [1":                      "line 1: did not find expected ',' or ']'",
		"- a\n":                      "line 1: expected lines of the form `flag: value`",
		"flags:\n  url:\n    a: b\n": "--url: takes a value, not a section",
		"edge: 7\n":                  "edge is a command: its flags stand indented below it",
		"url: a\ntoken: b\nurl: c\n": "line 3: mapping key \"url\" already defined at line 1",
	} {
		file := filepath.Join(t.TempDir(), "skerry.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, errs := skerry(t, "flags", "list", "--config", file)
		if !strings.HasPrefix(says, "--") {
			says = file + ": " + says
		}
		if code != 2 || errs != "skerry: "+says+"\ntry: skerry flags list --help\n" {
			t.Errorf("%q: code %d, %q; want %q", text, code, errs, says)
		}
	}
}

func TestEmptyFileSaysNothing(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skerry.yaml")
	if err := os.WriteFile(file, []byte("# nothing yet\nedge:\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, _, errs := skerry(t, "flags", "list", "--config", file)
	if want := "skerry flags list: --url (or SKERRY_URL, or --credentials) is required\n"; code != 2 || errs != want {
		t.Errorf("code %d, %q; want %q", code, errs, want)
	}
}

func TestHaltTakesTheKeyOfItsEnvironment(t *testing.T) {
	url, calls := answering(t, map[string]string{"POST /api/switch/halt-webhook": `{"flag":{"key":"f","environment":"test"}}`})
	file := filepath.Join(t.TempDir(), "credentials.json")
	if err := os.WriteFile(file, []byte(`{"writeplane":"`+url+`","api_keys":{"live":"sk_live_l","test":"sk_test_t"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for environment, key := range map[string]string{"test": "sk_test_t", "live": "sk_live_l"} {
		if code, _, errs := skerry(t, "flags", "halt", "f", "-e", environment, "--reason", "r", "--credentials", file); code != 0 {
			t.Fatalf("code %d: %s", code, errs)
		}
		if last := (*calls)[len(*calls)-1]; !strings.Contains(last, " "+key+" ") {
			t.Errorf("halt in %s was called as %q", environment, last)
		}
	}
}

func TestSubscriptionIsDisabledAndEnabled(t *testing.T) {
	url, calls := answering(t, map[string]string{"PATCH /api/v1/webhooks/subscriptions/s1": `{"subscription":{"id":"s1","url":"https://example.com/"}}`})
	for word, body := range map[string]string{"enable": `{"enabled":true}`, "disable": `{"enabled":false}`} {
		code, out, errs := skerry(t, "webhooks", word, "s1", "--url", url, "--token", "t")
		if want := word + "d s1 (https://example.com/)\n"; code != 0 || out != want {
			t.Errorf("code %d, %q, %q; want %q", code, out, errs, want)
		}
		if last := (*calls)[len(*calls)-1]; !strings.HasSuffix(last, body) {
			t.Errorf("%s: called as %q", word, last)
		}
	}
}

func TestHelpNamesTheEnvironmentVariables(t *testing.T) {
	code, out, _ := skerry(t, "flags", "list", "--help")
	if code != 0 || !strings.Contains(out, "$SKERRY_URL") || !strings.Contains(out, "$SKERRY_TOKEN") {
		t.Errorf("code %d:\n%s", code, out)
	}
}

func TestInterruptedFollowerEndsWell(t *testing.T) {
	url, _ := answering(t, map[string]string{
		"GET /api/v1/audit?limit=50": `{"entries":[{"id":"1","created_at":"2026-01-02T03:04:05.678Z","action":"switch.flag.halted"}],"next_cursor":null}`,
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var o, e bytes.Buffer
	// The first list already fails with a cancelled context; a person who
	// pressed Ctrl-C has seen enough either way.
	code := Run(ctx, []string{"audit", "tail", "-f", "--url", url, "--token", "t"}, Streams{Out: &o, Err: &e}, "v")
	if code != 1 || !strings.Contains(e.String(), "context canceled") {
		t.Errorf("code %d, %q", code, e.String())
	}
}

// The signal's disposition is the process's, so this is no parallel test. Each command ends at once for a wrong setting.
func TestWhatServesOutlivesTheReaderOfItsLog(t *testing.T) {
	defer signal.Reset(syscall.SIGPIPE)
	for _, args := range [][]string{{"up", "--edges", "65"}, edgeWith("--id", "a b"), planeWith("--stream-replicas", "9")} {
		signal.Reset(syscall.SIGPIPE)
		if code, _, errs := skerry(t, args...); code != 2 || !signal.Ignored(syscall.SIGPIPE) {
			t.Errorf("%s: code %d, %q; a broken pipe would end it", args[0], code, errs)
		}
	}
}

func TestBootstrapAgainWithItsPlanPrintsTheSame(t *testing.T) {
	plan := filepath.Join(t.TempDir(), "plan.json")
	args := []string{"bootstrap", "--postgres-url", pgtest.New(t).URL, "--organization", "Acme", "--project", "Shop",
		"--email", "ops@example.org", "--plan", plan}
	code, first, errs := skerry(t, args...)
	if code != 0 {
		t.Fatalf("code %d: %s", code, errs)
	}
	var printed struct {
		OrganizationID string `json:"organization_id"`
		ProjectID      string `json:"project_id"`
		Token          string
	}
	if err := json.Unmarshal([]byte(first), &printed); err != nil || len(printed.OrganizationID) != 36 || len(printed.ProjectID) != 36 || !strings.HasPrefix(printed.Token, "eyJ") {
		t.Fatalf("printed %s: %v", first, err)
	}
	if _, second, _ := skerry(t, args...); second != first {
		t.Errorf("the second time it printed %s, before %s", second, first)
	}
	if fi, err := os.Stat(plan); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("plan: %v, %v; want mode 0600", fi.Mode(), err)
	}
}

func TestBootstrapBeforeMigrationSaysSo(t *testing.T) {
	plan := filepath.Join(t.TempDir(), "plan.json")
	code, _, errs := skerry(t, "bootstrap", "--postgres-url", pgtest.NewEmpty(t).URL, "--organization", "Acme", "--project", "Shop",
		"--email", "ops@example.org", "--plan", plan)
	if code != 1 || !strings.Contains(errs, "migrate") || strings.Count(errs, "\n") != 1 {
		t.Errorf("code %d, %q; want one line that names migrate", code, errs)
	}
}
