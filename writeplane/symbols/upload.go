package symbols

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"skerry/pkg/id"
	"skerry/pkg/problem"
	"skerry/pkg/reply"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/symbolicate"
)

// Upload serves POST /api/v1/catch/symbols. The body streams into the blob store,
// hashed on the way; then the sandbox reads the file's ids; then one transaction
// stores the row. Form fields may come before or behind the file.
func (m *Module) Upload(w http.ResponseWriter, r *http.Request, c *access.Call) error {
	project, err := m.access.ProjectRow(r.Context(), c, r)
	if err != nil {
		return err
	}
	if r.ContentLength > m.config.MaxBodyBytes {
		return ErrPayloadTooLarge
	}
	if err := m.room(r.Context(), project, 1); err != nil {
		return err
	}
	u := &upload{m: m, ctx: r.Context(), project: project, fields: map[string]string{}}
	defer u.drop()
	if err := u.read(r); err != nil {
		return err
	}
	a, err := u.artifact()
	if err != nil {
		return err
	}
	stored, err := m.keep(r.Context(), c, a)
	if err != nil {
		var refusal *problem.Error
		u.kept = !errors.As(err, &refusal) // the row may be stored all the same: the cleaner will know
		return err
	}
	if stored.ID != a.ID {
		if err := m.mend(r.Context(), stored, a); err != nil {
			u.kept = true // as above
			return err
		}
	}
	u.kept = stored.StoragePath == a.StoragePath
	return reply.Resource(w, http.StatusCreated, "artifact", stored.view(), nil)
}

// upload is one request's way into the store.
type upload struct {
	m       *Module
	ctx     context.Context
	project access.ProjectRow
	fields  map[string]string

	id, path string // of the file, once it came
	writer   *blobs.Writer
	spool    *os.File // the file, where the store is no folder; unlinked
	name     string
	size     int64
	sum      string
	kept     bool // the file is not ours to remove
}

// drop leaves nothing behind unless the row was stored. The request may be over by
// then, so the clean-up has a time of its own; what even that misses the cleaner finds.
func (u *upload) drop() {
	if u.spool != nil {
		_ = u.spool.Close()
	}
	if u.writer == nil || u.kept {
		return
	}
	u.writer.Abort()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(u.ctx), 10*time.Second)
	defer cancel()
	_ = u.m.blobs.Delete(ctx, u.path)
}

// capped fails with ErrPayloadTooLarge past the body's limit.
type capped struct {
	r    io.Reader
	left int64
}

func (c *capped) Read(p []byte) (int, error) {
	if c.left <= 0 {
		// One byte more tells an end from a body that goes on.
		var probe [1]byte
		if n, err := c.r.Read(probe[:]); n == 0 {
			return 0, err
		}
		return 0, ErrPayloadTooLarge
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

// maxParts bounds the form; maxField bounds one text of it in bytes.
const (
	maxParts = 64
	maxField = 8 << 10
)

func (u *upload) read(r *http.Request) error {
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || params["boundary"] == "" {
		return ErrMissingFile // whatever the body is, no field `file` is in it
	}
	form := multipart.NewReader(&capped{r.Body, u.m.config.MaxBodyBytes}, params["boundary"])
	for range maxParts {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			return u.complete()
		}
		if err != nil {
			return broken(err)
		}
		if err := u.part(part); err != nil {
			return err
		}
	}
	return invalidBody("the form has more than %d fields", maxParts)
}

// broken words a body that ends early or is no multipart; a refusal stays itself.
func broken(err error) error {
	if errors.Is(err, ErrPayloadTooLarge) {
		return ErrPayloadTooLarge
	}
	return invalidBody("the multipart body is malformed or broke off")
}

// part takes one part of the form. It leaves a part that it refuses unread: closing it
// would read it to its end, and a file may be half a gigabyte that is still to come.
func (u *upload) part(part *multipart.Part) error {
	name := part.FormName()
	if name == "file" {
		return u.file(part)
	}
	value, err := io.ReadAll(io.LimitReader(part, maxField+1))
	if err != nil {
		return broken(err)
	}
	if len(value) > maxField {
		return invalidBody("%.40q is longer than %d bytes", name, maxField)
	}
	if name != "" {
		u.fields[name] = string(value)
	}
	return nil
}

// complete checks the form once all of it was read, in the interface's order.
func (u *upload) complete() error {
	if u.writer == nil {
		return ErrMissingFile
	}
	return u.check(true)
}

// check refuses what the fields so far show to be wrong.
func (u *upload) check(whole bool) error {
	kind, given := u.fields["kind"]
	if (whole || given) && !symbolicate.Kind(kind).Valid() {
		return ErrInvalidKind
	}
	if environment := u.fields["environment"]; environment != "" && environment != "live" && environment != "test" {
		return ErrInvalidEnvironment
	}
	for name, limit := range map[string]length{"release": maxRelease, "match_key": maxKey, "commit_sha": maxCommit} {
		value := u.fields[name]
		if !utf8.ValidString(value) || strings.ContainsRune(value, 0) || !limit.holds(value) {
			return invalidBody("%s must be UTF-8 text of at most %d characters and %d bytes", name, limit.characters, limit.bytes)
		}
	}
	return nil
}

// file streams the file into the store.
func (u *upload) file(part *multipart.Part) (err error) {
	if u.writer != nil {
		return invalidBody("the form has two files")
	}
	if err := u.check(false); err != nil {
		return err // before 500 MB travel for nothing
	}
	u.id = id.New()
	u.path = storagePath(u.project.ID, u.id)
	u.name = cleanName(part.FileName())
	if u.writer, err = u.m.blobs.Create(u.ctx, u.path, "application/octet-stream"); err != nil {
		return err
	}
	to := &sink{hash: sha256.New(), blob: u.writer, left: u.m.config.MaxFileBytes}
	if !u.m.blobs.IsFolder() {
		if u.spool, err = scratchFile(u.m.config.Sandbox.Scratch); err != nil {
			return err
		}
		to.spool = u.spool
	}
	if _, err := io.CopyBuffer(to, struct{ io.Reader }{part}, make([]byte, 256<<10)); err != nil {
		if to.err != nil {
			return to.err
		}
		return broken(err)
	}
	u.size, u.sum = to.size, hex.EncodeToString(to.hash.Sum(nil))
	return u.writer.Close()
}

func scratchFile(folder string) (*os.File, error) {
	f, err := os.CreateTemp(folder, "artifact-")
	if err != nil {
		return nil, fmt.Errorf("make scratch file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("unlink scratch file: %w", err)
	}
	return f, nil
}

// sink writes to hash, store and spool, and keeps its own fault apart from the
// reader's.
type sink struct {
	hash  hash.Hash
	blob  io.Writer
	spool io.Writer
	size  int64
	left  int64
	err   error
}

func (s *sink) Write(p []byte) (int, error) {
	if int64(len(p)) > s.left {
		s.err = ErrFileTooLarge
		return 0, s.err
	}
	_, _ = s.hash.Write(p)
	if _, s.err = s.blob.Write(p); s.err != nil {
		return 0, s.err
	}
	if s.spool != nil {
		if _, s.err = s.spool.Write(p); s.err != nil {
			return 0, s.err
		}
	}
	s.size += int64(len(p))
	s.left -= int64(len(p))
	return len(p), nil
}

// cleanName keeps a client's file name as text that can be shown.
func cleanName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(name, "\uFFFD"))
	if i := strings.LastIndexAny(name, `/\`); i >= 0 {
		name = name[i+1:]
	}
	return maxName.cut(name)
}

// artifact reads the ids of the stored file and makes the row.
func (u *upload) artifact() (*Artifact, error) {
	a := &Artifact{
		ID: u.id, ProjectID: u.project.ID, OrganizationID: u.project.OrganizationID, Environment: u.fields["environment"],
		Kind: symbolicate.Kind(u.fields["kind"]), Release: u.fields["release"], MatchKey: strings.TrimSpace(u.fields["match_key"]),
		SizeBytes: u.size, SHA256: u.sum, UploadedAt: time.Now().UTC().Truncate(time.Millisecond), StoragePath: u.path, OriginalName: u.name,
	}
	if a.Environment == "" {
		a.Environment = "live"
	}
	if sha := strings.TrimSpace(u.fields["commit_sha"]); sha != "" {
		a.CommitSHA = &sha
	}
	file := u.spool
	if file == nil {
		var err error
		if file, _, err = u.m.blobs.OpenFile(u.path); err != nil {
			return nil, fmt.Errorf("read the upload: %w", err)
		}
		defer file.Close()
	}
	report, err := u.m.runner.Identify(u.ctx, a.Kind, file)
	var fault *symbolicate.Fault
	if errors.As(err, &fault) {
		report.Warnings = append(report.Warnings, fault.Text)
	} else if err != nil {
		return nil, err
	}
	a.DebugIDs, a.Warnings = printable(report.DebugIDs), once(printable(report.Warnings))
	if a.MatchKey == "" {
		a.MatchKey = derivedKey(a)
	}
	return a, nil
}

// maxIDs bounds the ids kept of a bundle.
const maxIDs = 10_000

// printable makes texts out of a hostile file storable.
func printable(texts []string) []string {
	out := make([]string, 0, len(texts))
	for _, t := range texts[:min(len(texts), maxIDs)] {
		out = append(out, maxKey.cut(strings.ReplaceAll(strings.ToValidUTF8(t, "\uFFFD"), "\x00", "")))
	}
	return out
}

// once keeps each text once, in order.
func once(texts []string) []string {
	var out []string
	for _, t := range texts {
		if !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out
}

// derivedKey is the match key of an upload that names none (supplement §6): for
// source maps the file's base name without .map, else the first debug id; the name
// of a file that has none.
func derivedKey(a *Artifact) string {
	if a.Kind == symbolicate.SourceMap {
		return strings.TrimSuffix(a.OriginalName, ".map")
	}
	if len(a.DebugIDs) > 0 && a.DebugIDs[0] != "" {
		return a.DebugIDs[0]
	}
	return a.OriginalName
}
