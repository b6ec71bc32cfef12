package symbols

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"

	"golang.org/x/sync/singleflight"

	"skerry/writeplane/blobs"
	"skerry/writeplane/symbolicate"
)

// Library finds artifacts for crash reports and keeps their lookup forms open, the
// recently used ones, so that the second frame costs microseconds. It is safe for
// concurrent use.
type Library struct {
	m     *Module
	loads singleflight.Group

	mu    sync.Mutex
	order *list.List // of *opened, the last used first
	byID  map[string]*list.Element
	bytes int64
}

type opened struct {
	id    string
	index *symbolicate.Index
}

// NewLibrary returns the library of a module's artifacts.
func NewLibrary(m *Module) *Library {
	return &Library{m: m, order: list.New(), byID: map[string]*list.Element{}}
}

// maxCandidates bounds the artifacts looked at for the reports of one release; that of a
// web application may have a map for each of its chunks.
const maxCandidates = 20_000

// Candidates are the artifacts of an environment that belong to the release or have one
// of the debug ids, the newest first. Those that are not indexed yet are among them:
// their reports are looked at again when they are.
func (l *Library) Candidates(ctx context.Context, projectID, environment, release string, debugIDs []string) ([]*Artifact, error) {
	return query(ctx, l.m.store.Pool(), `
		WHERE a.project_id = $1 AND a.environment = $2 AND a.deleted_at IS NULL
		  AND (a.release = $3 AND a.release <> '' OR a.debug_ids && $4 OR lower(a.match_key) = ANY ($4))
		ORDER BY a.uploaded_at DESC, a.id DESC LIMIT $5`, projectID, environment, release, lowered(debugIDs), maxCandidates)
}

// For makes an artifact a candidate for reports of a release.
func (l *Library) For(ctx context.Context, a *Artifact, release string) *symbolicate.Artifact {
	return &symbolicate.Artifact{
		Kind: a.Kind, MatchKey: a.MatchKey, Name: a.OriginalName, DebugIDs: a.DebugIDs,
		OfRelease: a.Release == release && release != "",
		Load:      func() (*symbolicate.Index, error) { return l.open(ctx, a) },
	}
}

func (l *Library) open(ctx context.Context, a *Artifact) (*symbolicate.Index, error) {
	if a.IndexReason != nil {
		text := ""
		if a.IndexText != nil {
			text = *a.IndexText
		}
		return nil, &symbolicate.Fault{Reason: *a.IndexReason, Text: text}
	}
	if a.IndexPath == nil {
		return nil, &symbolicate.Fault{Reason: symbolicate.Awaited, Text: "the lookup form is being made"}
	}
	if x, ok := l.cached(a.ID); ok {
		return x, nil
	}
	got, err, _ := l.loads.Do(a.ID, func() (any, error) {
		if x, ok := l.cached(a.ID); ok {
			return x, nil
		}
		x, err := l.load(ctx, a)
		if err != nil {
			return nil, err
		}
		l.add(a.ID, x)
		return x, nil
	})
	if err != nil {
		return nil, err
	}
	return got.(*symbolicate.Index), nil
}

func (l *Library) cached(id string) (*symbolicate.Index, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e, ok := l.byID[id]
	if !ok {
		return nil, false
	}
	l.order.MoveToFront(e)
	return e.Value.(*opened).index, true
}

// add keeps an index, and lets go of those that were not used for longest.
func (l *Library) add(id string, x *symbolicate.Index) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.byID[id] = l.order.PushFront(&opened{id, x})
	l.bytes += int64(x.Size())
	for l.bytes > l.m.config.CacheBytes && l.order.Len() > 1 {
		last := l.order.Back()
		gone := l.order.Remove(last).(*opened)
		delete(l.byID, gone.id)
		l.bytes -= int64(gone.index.Size())
	}
}

// load reads a lookup form. One that is damaged or gone is made anew from the
// artifact, and awaited until then.
func (l *Library) load(ctx context.Context, a *Artifact) (*symbolicate.Index, error) {
	data, err := l.read(ctx, a)
	if err == nil {
		var x *symbolicate.Index
		if x, err = symbolicate.Open(a.Kind, data); err == nil {
			return x, nil
		}
	} else if !errors.Is(err, errDamaged) && !errors.Is(err, blobs.ErrNotFound) {
		return nil, err
	}
	slog.WarnContext(ctx, "a lookup form is unusable and is made anew", "artifact", a.ID, "error", err)
	if _, err := l.m.store.Pool().Exec(ctx, `UPDATE symbol_artifacts SET index_path = NULL, index_sha256 = NULL, index_after = '-infinity'
		WHERE id = $1 AND index_sha256 = $2`, a.ID, *a.IndexSHA256); err != nil {
		return nil, fmt.Errorf("ask for a new lookup form: %w", err)
	}
	return nil, &symbolicate.Fault{Reason: symbolicate.Awaited, Text: "the lookup form is being made anew"}
}

var errDamaged = errors.New("the lookup form does not match its sha256")

func (l *Library) read(ctx context.Context, a *Artifact) ([]byte, error) {
	r, err := l.m.blobs.Open(ctx, *a.IndexPath)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data := slices.Grow([]byte(nil), int(r.Size()))[:r.Size()]
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("read lookup form: %w", err)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != *a.IndexSHA256 {
		return nil, errDamaged
	}
	return data, nil
}
