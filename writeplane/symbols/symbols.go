// Package symbols keeps crash-symbol artifacts: source maps, debug files and
// obfuscation mappings, their releases, and the lookup forms made of them
// (specification, Symbol endpoints; supplement §6).
//
// It promises that a 201 means a durable, readable file and a committed row; that an
// upload which fails or is broken off leaves neither; that memory per upload does not
// depend on its size; and that what a file does to its parser costs a child process
// (package sandbox). It does not keep versions: a deleted artifact's file goes away.
package symbols

import (
	"fmt"
	"time"
	"unicode/utf8"

	"skerry/pkg/crash"
	"skerry/pkg/instant"
	"skerry/pkg/problem"
	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/commit"
	"skerry/writeplane/symbolicate"
	"skerry/writeplane/symbolicate/sandbox"
)

// Config bounds uploads and the work on them. The zero value means the specification's
// limits.
type Config struct {
	MaxFileBytes int64 // of one artifact; 0 means 512 MiB
	MaxBodyBytes int64 // of a whole request; 0 means 500 MiB
	// HobbyBytes is the storage of a project on the Hobby tier; 0 means 5 GiB. Other
	// tiers are not limited.
	HobbyBytes int64
	// CacheBytes is what opened lookup forms may take in memory; 0 means 256 MiB.
	CacheBytes int64
	// Sandbox bounds the children that parse files. Its command defaults to the program
	// itself, if its main called sandbox.Enter; any other program, such as a test,
	// parses in its own process.
	Sandbox sandbox.Config
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	for name, n := range map[string]int64{
		"MaxFileBytes": c.MaxFileBytes, "MaxBodyBytes": c.MaxBodyBytes, "HobbyBytes": c.HobbyBytes, "CacheBytes": c.CacheBytes,
	} {
		if n < 0 {
			return fmt.Errorf("symbols: %s %d is negative", name, n)
		}
	}
	return nil
}

func (c Config) withDefaults() Config {
	for field, value := range map[*int64]int64{
		&c.MaxFileBytes: 512 << 20, &c.MaxBodyBytes: 500 << 20, &c.HobbyBytes: 5 << 30, &c.CacheBytes: 256 << 20,
	} {
		if *field == 0 {
			*field = value
		}
	}
	if c.Sandbox.Command == nil {
		c.Sandbox.Command = sandbox.Self()
	}
	return c
}

// The faults of the interface.
var (
	ErrMissingFile        = problem.New(problem.Invalid, "missing_file")
	ErrInvalidKind        = problem.New(problem.Invalid, "invalid_kind")
	ErrFileTooLarge       = problem.New(problem.Invalid, "file_too_large")
	ErrPayloadTooLarge    = problem.New(problem.TooLarge, "payload_too_large")
	ErrInvalidEnvironment = problem.Newf(problem.Invalid, "invalid_environment", "environment must be live or test")
)

func invalidBody(format string, args ...any) error {
	return problem.Newf(problem.Invalid, "invalid_body", format, args...)
}

// length bounds a text.
type length struct{ characters, bytes int }

// The limits of an artifact's texts. Release and match key stand in one row of an index,
// which has room for 2704 bytes.
var (
	maxRelease = length{1_024, crash.MaxReleaseBytes} // as in a crash report
	maxKey     = length{512, 1_024}
	maxCommit  = length{128, 512}
	maxName    = length{255, 1_020}
)

func (l length) holds(text string) bool {
	return len(text) <= l.bytes && utf8.RuneCountInString(text) <= l.characters
}

// cut is the beginning of a text that l holds.
func (l length) cut(text string) string {
	count := 0
	for i, r := range text {
		if count++; count > l.characters || i+utf8.RuneLen(r) > l.bytes {
			return text[:i]
		}
	}
	return text
}

// Module serves the endpoints.
type Module struct {
	config Config
	store  *commit.Store
	access *access.Store
	blobs  *blobs.Store
	runner *sandbox.Runner
}

// New returns the module. Its upload route bounds its body itself.
func New(config Config, store *commit.Store, access *access.Store, place *blobs.Store) (*Module, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	return &Module{config: config, store: store, access: access, blobs: place, runner: sandbox.New(config.Sandbox)}, nil
}

// Artifact is a row of the store.
type Artifact struct {
	ID, ProjectID, OrganizationID string
	Environment                   string
	Kind                          symbolicate.Kind
	Release, MatchKey             string
	SizeBytes                     int64
	SHA256                        string
	UploadedAt                    time.Time
	StoragePath, OriginalName     string
	CommitSHA                     *string
	DebugIDs, Warnings            []string
	DeletedAt                     *time.Time

	IndexPath, IndexSHA256, IndexReason, IndexText *string
}

// view is an artifact with all fields (specification, Symbol artifact; supplement §6).
type view struct {
	ID           string           `json:"id"`
	ProjectID    string           `json:"project_id"`
	Environment  string           `json:"environment"`
	Kind         symbolicate.Kind `json:"kind"`
	Release      string           `json:"release"`
	MatchKey     string           `json:"match_key"`
	SizeBytes    int64            `json:"size_bytes"`
	SHA256       string           `json:"sha256"`
	Status       string           `json:"status"`
	UploadedAt   instant.Time     `json:"uploaded_at"`
	StoragePath  string           `json:"storage_path"`
	OriginalName string           `json:"original_name"`
	CommitSHA    *string          `json:"commit_sha"`
	DebugIDs     []string         `json:"debug_ids"`
	Warnings     []string         `json:"warnings"`
}

// ready is the one status: a row exists only when its file is durable.
const ready = "ready"

func (a *Artifact) view() view {
	return view{
		ID: a.ID, ProjectID: a.ProjectID, Environment: a.Environment, Kind: a.Kind, Release: a.Release, MatchKey: a.MatchKey,
		SizeBytes: a.SizeBytes, SHA256: a.SHA256, Status: ready, UploadedAt: instant.Of(a.UploadedAt), StoragePath: a.StoragePath,
		OriginalName: a.OriginalName, CommitSHA: a.CommitSHA, DebugIDs: orEmpty(a.DebugIDs), Warnings: orEmpty(a.Warnings),
	}
}

func orEmpty(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}

// line is the subset that the list shows.
type line struct {
	ID         string           `json:"id"`
	Kind       symbolicate.Kind `json:"kind"`
	Release    string           `json:"release"`
	MatchKey   string           `json:"match_key"`
	SizeBytes  int64            `json:"size_bytes"`
	Status     string           `json:"status"`
	UploadedAt instant.Time     `json:"uploaded_at"`
}

func (a *Artifact) line() line {
	return line{a.ID, a.Kind, a.Release, a.MatchKey, a.SizeBytes, ready, instant.Of(a.UploadedAt)}
}

func (a *Artifact) entry(action string, before, after any) commit.Entry {
	return commit.Entry{
		OrganizationID: a.OrganizationID, ProjectID: a.ProjectID, Action: action,
		ResourceType: "symbol_artifact", ResourceID: a.ID, Before: before, After: after,
	}
}

// storagePath is where an artifact's file lies: made of ids alone.
func storagePath(projectID, artifactID string) string {
	return "symbols/" + projectID + "/" + artifactID
}

func indexPath(storage string) string { return storage + ".index" }
