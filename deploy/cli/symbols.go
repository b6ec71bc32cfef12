package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"time"

	"skerry/writeplane/symbolicate"
)

type symbolCommands struct {
	Upload symbolUpload `cmd:"" help:"Upload source maps, debug files and mappings found in files and folders."`
	List   symbolList   `cmd:"" help:"List symbol artifacts, newest first."`
	Delete symbolDelete `cmd:"" help:"Delete symbol artifacts."`
}

const symbolsPath = "/api/v1/catch/symbols"

type symbolUpload struct {
	connection
	ofProject
	inEnvironment
	Paths     []string         `arg:"" name:"path" help:"Files, or folders to search."`
	Release   string           `help:"Release that the symbols belong to, as in captured events." required:""`
	Kind      symbolicate.Kind `help:"Kind of the files named (js_sourcemap, ios_dsym, android_mapping, android_ndk, flutter_symbols); found out when absent." placeholder:"KIND"`
	MatchKey  string           `help:"Key to look the file up by; only with one file." placeholder:"KEY"`
	CommitSHA string           `name:"commit-sha" help:"Source revision, for attribution." placeholder:"SHA"`
	Again     bool             `help:"Send also what is there already: the server mends with it an artifact whose stored file was lost."`
	Retries   int              `help:"How often an upload is tried again after a failure that may pass." default:"3"`
}

// Run uploads what it finds.
func (cmd *symbolUpload) Run(ctx context.Context, c *client) error {
	if cmd.Kind != "" && !cmd.Kind.Valid() {
		return usagef("--kind %q is none of %v", cmd.Kind, symbolicate.Kinds())
	}
	c.http.Timeout = 0 // an upload takes as long as it takes
	project, err := c.inProject(ctx, cmd.Project)
	if err != nil {
		return err
	}
	files, err := findSymbols(cmd.Paths, cmd.Kind)
	if err != nil {
		return err
	}
	if len(files) == 0 {
		return errors.New("no symbols found; --kind tells what a file is")
	}
	if cmd.MatchKey != "" && len(files) > 1 {
		return usagef("--match-key fits one file, and %d were found", len(files))
	}
	var failed, skipped int
	for _, f := range files {
		was, err := cmd.one(ctx, c, project, f)
		switch {
		case errors.Is(err, context.Canceled):
			return err
		case err != nil:
			failed++
			fmt.Fprintf(c.streams.Err, "%s: %v\n", f.path, err)
		case was:
			skipped++
		}
	}
	fmt.Fprintf(c.streams.Err, "%d uploaded, %d already there, %d failed\n", len(files)-failed-skipped, skipped, failed)
	if failed > 0 {
		return fmt.Errorf("%d of %d uploads failed", failed, len(files))
	}
	return nil
}

// one uploads a file unless the release has it and that is enough; was tells that it is.
func (cmd *symbolUpload) one(ctx context.Context, c *client, project string, f symbolFile) (was bool, err error) {
	file, size, done, err := f.open()
	if err != nil {
		return false, err
	}
	defer done()
	if !cmd.Again && cmd.MatchKey == "" {
		if was, err = cmd.there(ctx, c, project, f, file); was || err != nil {
			return was, err
		}
	}
	for try := 0; ; try++ {
		var raw json.RawMessage
		var again bool
		if raw, again, err = cmd.send(ctx, c, project, f, file, size); err == nil {
			return false, uploaded(c, f, raw)
		}
		if !again || try == cmd.Retries {
			return false, err
		}
		wait := time.Second << try
		fmt.Fprintf(c.streams.Err, "%s: %v; trying again in %s\n", f.path, err, wait)
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(wait):
		}
	}
}

// there reports whether the release has the file already.
func (cmd *symbolUpload) there(ctx context.Context, c *client, project string, f symbolFile, file io.Reader) (bool, error) {
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return false, err
	}
	there, err := c.list(ctx, symbolsPath, "artifacts", map[string]string{
		"project_id": project, "environment": cmd.Environment, "release": cmd.Release, "kind": string(f.kind), "sha256": hex.EncodeToString(sum.Sum(nil)),
	}, 1)
	if err != nil || len(there) == 0 {
		return false, err
	}
	fmt.Fprintf(c.streams.Err, "%s: already there (%s)\n", f.path, there[0].text("match_key"))
	return true, nil
}

// uploaded reports a success with the server's warnings.
func uploaded(c *client, f symbolFile, raw json.RawMessage) error {
	if c.json {
		return c.value(raw)
	}
	var answer struct {
		Artifact struct {
			ID       string   `json:"id"`
			MatchKey string   `json:"match_key"`
			Warnings []string `json:"warnings"`
		} `json:"artifact"`
	}
	if err := json.Unmarshal(raw, &answer); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	fmt.Fprintf(c.streams.Out, "%s\t%s\t%s\t%s\n", answer.Artifact.ID, f.kind, printable(answer.Artifact.MatchKey), f.path)
	for _, w := range answer.Artifact.Warnings {
		fmt.Fprintf(c.streams.Err, "%s: warning: %s\n", f.path, printable(w))
	}
	return nil
}

// send makes one attempt; again tells that another may succeed.
func (cmd *symbolUpload) send(ctx context.Context, c *client, project string, f symbolFile, file *os.File, size int64) (raw json.RawMessage, again bool, err error) {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return nil, false, err
	}
	head, tail, contentType, err := cmd.form(f)
	if err != nil {
		return nil, false, err
	}
	target := c.base + symbolsPath + "?" + url.Values{"project_id": {project}}.Encode()
	p := &progress{out: c.streams.Err, name: f.name, size: size, begun: time.Now()}
	body := io.MultiReader(bytes.NewReader(head), io.TeeReader(io.LimitReader(file, size), p), bytes.NewReader(tail))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target, body)
	if err != nil {
		return nil, false, err
	}
	req.ContentLength = int64(len(head)) + size + int64(len(tail))
	req.Header.Set("Content-Type", contentType)
	if c.token == "" {
		return nil, false, usagef("--token (or SKERRY_TOKEN, or --credentials) is required")
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	res, err := c.http.Do(req)
	if err != nil {
		return nil, ctx.Err() == nil, unreachable(c.base, err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return nil, true, fmt.Errorf("read the answer of %s: %w", c.base, err)
	}
	if res.StatusCode != http.StatusCreated {
		return nil, res.StatusCode >= 500 || res.StatusCode == http.StatusTooManyRequests, answerError(res, answer)
	}
	return answer, false, nil
}

// form is what stands before and behind the file's bytes.
func (cmd *symbolUpload) form(f symbolFile) (head, tail []byte, contentType string, err error) {
	var out bytes.Buffer
	w := multipart.NewWriter(&out)
	for _, field := range [][2]string{
		{"kind", string(f.kind)}, {"environment", cmd.Environment}, {"release", cmd.Release}, {"match_key", cmd.MatchKey}, {"commit_sha", cmd.CommitSHA},
	} {
		if field[1] == "" {
			continue
		}
		if err := w.WriteField(field[0], field[1]); err != nil {
			return nil, nil, "", err
		}
	}
	if _, err := w.CreateFormFile("file", f.name); err != nil {
		return nil, nil, "", err
	}
	head = bytes.Clone(out.Bytes())
	out.Reset()
	if err := w.Close(); err != nil {
		return nil, nil, "", err
	}
	return head, bytes.Clone(out.Bytes()), w.FormDataContentType(), nil
}

// progress prints a line a second for uploads that take longer.
type progress struct {
	out   io.Writer
	name  string
	size  int64
	begun time.Time
	done  int64
	last  time.Duration
}

func (p *progress) Write(b []byte) (int, error) {
	p.done += int64(len(b))
	if took := time.Since(p.begun); took-p.last >= time.Second {
		p.last = took
		left := time.Duration(float64(took) / float64(p.done) * float64(p.size-p.done))
		fmt.Fprintf(p.out, "%s: %s of %s, %s left\n", p.name, megabytes(p.done), megabytes(p.size), left.Round(time.Second))
	}
	return len(b), nil
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

type symbolList struct {
	connection
	ofProject
	inEnvironment
	listing
	Release string `help:"Only this release."`
	Kind    string `help:"Only this kind." placeholder:"KIND"`
}

// Run lists artifacts.
func (cmd *symbolList) Run(ctx context.Context, c *client) error {
	project, err := c.inProject(ctx, cmd.Project)
	if err != nil {
		return err
	}
	query := map[string]string{"project_id": project, "environment": cmd.Environment, "release": cmd.Release, "kind": cmd.Kind}
	return c.show(ctx, cmd.listing, symbolsPath, query, "artifacts",
		"ID=id", "KIND=kind", "RELEASE=release", "MATCH KEY=match_key", "BYTES=size_bytes", "UPLOADED=uploaded_at")
}

type symbolDelete struct {
	connection
	IDs []string `arg:"" name:"id" help:"Ids of the artifacts."`
}

// Run deletes artifacts.
func (cmd *symbolDelete) Run(ctx context.Context, c *client) error {
	for _, artifactID := range cmd.IDs {
		if err := c.remove(ctx, symbolsPath+"/", artifactID, "deleted"); err != nil {
			return fmt.Errorf("%s: %w", printable(artifactID), err)
		}
	}
	return nil
}
