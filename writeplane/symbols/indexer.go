package symbols

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"skerry/writeplane/access"
	"skerry/writeplane/blobs"
	"skerry/writeplane/lease"
	"skerry/writeplane/postgres"
	"skerry/writeplane/symbolicate"
)

const (
	pollEvery  = 500 * time.Millisecond // how late an upload is noticed
	taken      = 6 * time.Second        // a dead process's artifact is free after this
	renewEvery = 2 * time.Second
	retryAfter = 15 * time.Second
	indexers   = 2
)

// Indexer makes the lookup forms of new artifacts. Any number of processes may run
// one; work that is done twice does no harm.
type Indexer struct {
	m *Module
	// again asks, in the transaction that makes an artifact usable, for another look
	// at the reports it may serve.
	again func(ctx context.Context, tx pgx.Tx, a *Artifact) error
}

// NewIndexer returns the indexer of a module's artifacts.
func NewIndexer(m *Module, again func(ctx context.Context, tx pgx.Tx, a *Artifact) error) *Indexer {
	return &Indexer{m: m, again: again}
}

// Run works until ctx ends.
func (x *Indexer) Run(ctx context.Context) error {
	var workers sync.WaitGroup
	for range indexers {
		workers.Go(func() { x.loop(ctx) })
	}
	workers.Wait()
	return nil
}

func (x *Indexer) loop(ctx context.Context) {
	ticker := time.NewTicker(pollEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		found, err := x.step(ctx)
		if err != nil && ctx.Err() == nil {
			slog.WarnContext(ctx, "indexing symbols was put off", "error", err)
		}
		if found && err == nil {
			continue
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// step indexes one artifact; found is false when there is none to do.
func (x *Indexer) step(ctx context.Context) (found bool, err error) {
	var artifactID string
	err = x.m.store.Pool().QueryRow(ctx, `
		UPDATE symbol_artifacts SET index_after = now() + $1, index_tries = index_tries + 1
		WHERE id = (SELECT id FROM symbol_artifacts
			WHERE deleted_at IS NULL AND index_path IS NULL AND index_reason IS NULL AND index_after < now()
			ORDER BY uploaded_at LIMIT 1 FOR UPDATE SKIP LOCKED)
		RETURNING id`, taken).Scan(&artifactID)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("take an artifact: %w", err)
	}
	a, err := one(ctx, x.m.store.Pool(), artifactID, "")
	switch {
	case errors.Is(err, access.ErrNotFound), err == nil && a.DeletedAt != nil:
		return true, nil // deleted meanwhile, or its project was
	case err != nil:
		return true, err
	}
	if err := x.renewing(ctx, a); err != nil {
		_, late := x.m.store.Pool().Exec(ctx, `UPDATE symbol_artifacts SET index_after = now() + $2 WHERE id = $1`, a.ID, retryAfter)
		return true, errors.Join(fmt.Errorf("index artifact %s: %w", a.ID, err), late)
	}
	return true, nil
}

// renewing indexes while it keeps the artifact taken.
func (x *Indexer) renewing(ctx context.Context, a *Artifact) error {
	defer lease.Keep(ctx, renewEvery, func(ctx context.Context) {
		_, _ = x.m.store.Pool().Exec(ctx, `UPDATE symbol_artifacts SET index_after = now() + $2 WHERE id = $1`, a.ID, taken)
	})()
	return x.index(ctx, a)
}

func (x *Indexer) index(ctx context.Context, a *Artifact) error {
	file, err := x.m.verified(ctx, a)
	var fault *symbolicate.Fault
	if errors.As(err, &fault) {
		return x.settle(ctx, a, indexed{fault: fault})
	}
	if err != nil {
		return err
	}
	defer file.Close()
	out, report, err := x.m.runner.Build(ctx, a.Kind, file)
	if errors.As(err, &fault) {
		return x.settle(ctx, a, indexed{fault: fault, warnings: report.Warnings})
	}
	if err != nil {
		return err
	}
	defer out.Close()
	path := indexPath(a.StoragePath)
	sum, err := x.m.storeForm(ctx, path, out)
	if err != nil {
		return err
	}
	return x.settle(ctx, a, indexed{path: path, sha256: sum, warnings: report.Warnings})
}

// storeForm copies a result into the blob store and returns its sha256.
func (m *Module) storeForm(ctx context.Context, path string, from io.Reader) (string, error) {
	w, err := m.blobs.Create(ctx, path, "application/octet-stream")
	if err != nil {
		return "", err
	}
	defer w.Abort()
	sum := sha256.New()
	if _, err := io.Copy(io.MultiWriter(w, sum), from); err != nil {
		return "", fmt.Errorf("store lookup form: %w", err)
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// verified opens an artifact's file and checks its sha256 against the row. What the
// store gives back instead of what was stored is a *symbolicate.Fault.
func (m *Module) verified(ctx context.Context, a *Artifact) (*os.File, error) {
	file, isFolder, err := m.blobs.OpenFile(a.StoragePath)
	if !isFolder && err == nil {
		file, err = m.fetch(ctx, a.StoragePath)
	}
	if errors.Is(err, blobs.ErrNotFound) {
		return nil, &symbolicate.Fault{Reason: symbolicate.Malformed, Text: "the stored file is gone"}
	}
	if err != nil {
		return nil, err
	}
	sum := sha256.New()
	size, err := io.Copy(sum, file)
	if err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("read artifact: %w", err)
	}
	if size != a.SizeBytes || hex.EncodeToString(sum.Sum(nil)) != a.SHA256 {
		_ = file.Close()
		return nil, &symbolicate.Fault{Reason: symbolicate.Malformed, Text: "the stored file does not match its sha256"}
	}
	return file, nil
}

// fetch copies an object into an unlinked file.
func (m *Module) fetch(ctx context.Context, path string) (*os.File, error) {
	r, err := m.blobs.Open(ctx, path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	file, err := scratchFile(m.config.Sandbox.Scratch)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(file, r); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("fetch artifact: %w", err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		_ = file.Close()
		return nil, fmt.Errorf("fetch artifact: %w", err)
	}
	return file, nil
}

// indexed is what became of an artifact: a lookup form, or the fault for which it has
// none.
type indexed struct {
	path, sha256 string // of the lookup form
	fault        *symbolicate.Fault
	warnings     []string
}

// settle stores what became of an artifact and asks for another look at its reports. A
// fault says nothing of one that another process has indexed meanwhile.
func (x *Indexer) settle(ctx context.Context, a *Artifact, is indexed) error {
	var reason, text *string
	warnings := is.warnings
	if is.fault != nil {
		reason, text = &is.fault.Reason, &printable([]string{is.fault.Text})[0]
		warnings = append(slices.Clone(warnings), is.fault.Text)
	}
	all := once(append(slices.Clone(a.Warnings), printable(warnings)...))
	return postgres.InTx(ctx, x.m.store.Pool(), func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `
			UPDATE symbol_artifacts SET index_path = nullif($2, ''), index_sha256 = nullif($3, ''), index_reason = $4, index_text = $5, warnings = $6
			WHERE id = $1 AND storage_path = $7 AND ($4::text IS NULL OR index_path IS NULL)`, a.ID, is.path, is.sha256, reason, text, orEmpty(all), a.StoragePath)
		if err != nil {
			return fmt.Errorf("settle artifact: %w", err)
		}
		return x.again(ctx, tx, a)
	})
}
