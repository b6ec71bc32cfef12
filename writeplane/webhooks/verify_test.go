package webhooks

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The verifiers are what receivers use: packages from the npm registry that nobody
// here wrote, unmodified.
func TestIndependentVerifiersAcceptOurSignatures(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("npm"); err != nil {
		t.Skip("npm is not installed")
	}
	dir := t.TempDir()
	for _, name := range []string{"package.json", "package-lock.json", "verify.mjs"} {
		content, err := os.ReadFile(filepath.Join("testdata", "verify", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	install.Dir = dir
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci: %v\n%s", err, out)
	}

	f := newFixture(t)
	url, requests := receiver(t, status(200))
	subscriptionID, old := f.subscribe(url, nil, "*")
	f.run(f.dispatcher)
	f.emit("switch.flag.halted", map[string]string{"reason": "ü \"quoted\""})
	before := <-requests
	<-f.recorded
	newer, sealed := newSecret(f.sealer, subscriptionID)
	f.exec("UPDATE webhook_subscriptions SET previous_secret = secret, secret = $2, previous_until = $3 WHERE id = $1",
		subscriptionID, sealed, f.clock.Now().Add(time.Hour))
	f.emit("switch.flag.halted", nil)
	during := <-requests

	var input bytes.Buffer
	ask := func(secret string, r received) {
		headers := map[string]string{}
		for name := range r.header {
			headers[strings.ToLower(name)] = r.header.Get(name)
		}
		line, _ := json.Marshal(map[string]any{"secret": secret, "headers": headers, "body": string(r.body), "altered": string(r.body) + " "})
		input.Write(append(line, '\n'))
	}
	ask(old, before)
	ask(old, during) // either secret holds while both are valid
	ask(newer, during)
	run := exec.CommandContext(t.Context(), "node", "verify.mjs")
	run.Dir, run.Stdin = dir, &input
	out, err := run.CombinedOutput()
	if err != nil {
		t.Fatalf("node: %v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 6 {
		t.Fatalf("%d verdicts, want 6:\n%s", len(lines), out)
	}
	for _, line := range lines {
		if !strings.Contains(line, `"sent":true,"altered":false`) {
			t.Errorf("verdict %s", line)
		}
	}
	t.Logf("verdicts:\n%s", out)
}
