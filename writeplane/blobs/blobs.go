// Package blobs keeps files (exports, symbols, oversized records): in a folder by
// default, or by URL in S3 or what speaks its protocol.
//
// It promises that a file whose Close returned nil is on the disk and readable by
// every process of the write plane, that a file which was not closed does not exist,
// that memory per open file is bounded whatever its size, that reading, deleting and
// listing end when S3 says nothing for ten seconds and writing when it takes nothing for
// two minutes, and that a download URL opens one object by one method until it expires. It
// does not keep versions.
package blobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/s3blob" // the s3:// scheme
	"gocloud.dev/gcerrors"

	"skerry/writeplane/postgres"
)

// Config says where files lie.
type Config struct {
	// URL is a folder (a path, or file:///path) or s3://bucket?region=…&endpoint=…
	// as gocloud.dev/blob/s3blob reads it; credentials come from the environment or
	// the machine, never from the URL.
	URL string
	// PublicURL is the base address, without a trailing slash, under which clients
	// reach this plane; a folder's download URLs begin with it. It may be an edge's.
	PublicURL string
}

// Validate names the field that is wrong.
func (c Config) Validate() error {
	if c.URL == "" {
		return errors.New("blobs: URL is empty")
	}
	if strings.HasSuffix(c.PublicURL, "/") {
		return fmt.Errorf("blobs: PublicURL %q ends with a slash", c.PublicURL)
	}
	return nil
}

// ErrNotFound means that no object has the name.
var ErrNotFound = errors.New("no such object")

// partSize and parts bound the memory of one upload to S3: what is in flight at once.
const (
	partSize = 5 << 20
	parts    = 1
)

// Store is the place of all files. It is safe for concurrent use.
type Store struct {
	bucket    *blob.Bucket
	folder    string // empty: not a folder
	lock      *os.File
	publicURL string
	signKey   []byte
	silence   time.Duration // how long S3 may say nothing to a reader, and
	accepting time.Duration // to a writer
}

// Open opens the place. A folder serves one write plane: a second one is refused,
// whether it runs beside the first or brings a folder of its own.
func Open(ctx context.Context, config Config, pool *pgxpool.Pool) (*Store, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	key, err := postgres.Secret(ctx, pool, "download-key", 32)
	if err != nil {
		return nil, err
	}
	s := &Store{publicURL: config.PublicURL, signKey: key, silence: silence, accepting: accepting}
	if folder, ok := folderOf(config.URL); ok {
		if err := s.openFolder(ctx, folder, pool); err != nil {
			return nil, err
		}
		return s, nil
	}
	if s.bucket, err = blob.OpenBucket(ctx, config.URL); err != nil {
		return nil, fmt.Errorf("open blob store: %w", err)
	}
	return s, nil
}

// folderOf is the folder that a URL means.
func folderOf(location string) (folder string, ok bool) {
	if !strings.Contains(location, "://") {
		return location, true
	}
	parsed, err := url.Parse(location)
	if err != nil || parsed.Scheme != "file" {
		return "", false
	}
	return filepath.FromSlash(parsed.Path), true
}

func (s *Store) openFolder(ctx context.Context, folder string, pool *pgxpool.Pool) error {
	objects := filepath.Join(folder, "objects")
	if err := os.MkdirAll(objects, 0o700); err != nil {
		return fmt.Errorf("make blob folder: %w", err)
	}
	lock, err := lockFolder(ctx, folder, pool)
	if err != nil {
		return err
	}
	if err := sweep(objects); err != nil {
		_ = lock.Close()
		return fmt.Errorf("sweep blob folder: %w", err)
	}
	s.bucket, err = fileblob.OpenBucket(objects, &fileblob.Options{NoTempDir: true, Metadata: fileblob.MetadataDontWrite, DirFileMode: 0o700})
	if err != nil {
		_ = lock.Close()
		return fmt.Errorf("open blob folder: %w", err)
	}
	s.folder, s.lock = objects, lock
	return nil
}

// Close gives the place up.
func (s *Store) Close() error {
	err := s.bucket.Close()
	if s.lock != nil {
		err = errors.Join(err, s.lock.Close())
	}
	return err
}

// DefaultPublicURL sets the base of download URLs when the configuration names none.
// It belongs to the assembly: call it before anything serves.
func (s *Store) DefaultPublicURL(base string) {
	if s.publicURL == "" {
		s.publicURL = base
	}
}

// IsFolder reports whether the files lie in a folder.
func (s *Store) IsFolder() bool { return s.folder != "" }

// validKey admits the names that the server makes: the same on every file system,
// and none that leaves the folder.
func validKey(key string) error {
	if key == "" || len(key) > 512 || strings.HasSuffix(key, unfinished) {
		return fmt.Errorf("object name %q is not possible", key)
	}
	for segment := range strings.SplitSeq(key, "/") {
		if segment == "" || segment[0] == '.' || strings.Trim(segment, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" {
			return fmt.Errorf("object name %q is not possible", key)
		}
	}
	return nil
}

// Writer is an object that comes into being. Nobody can read it before Close.
type Writer struct {
	writer *blob.Writer
	watch  *watch   // its timer runs while S3 is given something
	file   *os.File // the folder's temporary file
	store  *Store
	key    string
	done   bool
}

// Create begins an object under the name: segments of [A-Za-z0-9._-], slashes
// between them. An object of that name is replaced at Close.
func (s *Store) Create(ctx context.Context, key, contentType string) (*Writer, error) {
	if err := validKey(key); err != nil {
		return nil, err
	}
	w := &Writer{watch: s.watch(ctx), store: s, key: key}
	w.watch.timer.Stop()
	options := &blob.WriterOptions{ContentType: contentType, ContentDisposition: "attachment", BufferSize: partSize, MaxConcurrency: parts}
	if s.IsFolder() {
		options.BeforeWrite = func(as func(any) bool) error {
			as(&w.file)
			return nil
		}
	}
	var err error
	if w.writer, err = s.bucket.NewWriter(w.watch.ctx, key, options); err != nil {
		w.watch.end()
		return nil, fmt.Errorf("create object: %w", err)
	}
	return w, nil
}

func (w *Writer) Write(p []byte) (n int, err error) {
	err = w.watched(func() (err error) {
		n, err = w.writer.Write(p)
		return err
	})
	return n, err
}

// watched gives something to the store, and does not wait for ever until it takes it.
func (w *Writer) watched(give func() error) error {
	if !w.store.IsFolder() {
		w.watch.timer.Reset(w.store.accepting)
		defer w.watch.timer.Stop()
	}
	return w.watch.cause(give())
}

// Close makes the object readable and lasting. After an error it does not exist.
func (w *Writer) Close() error {
	if w.done {
		return nil
	}
	w.done = true
	defer w.watch.end()
	if w.file != nil {
		if err := w.file.Sync(); err != nil {
			w.watch.end()
			_ = w.writer.Close()
			return fmt.Errorf("sync object: %w", err)
		}
	}
	if err := w.watched(w.writer.Close); err != nil {
		return fmt.Errorf("finish object: %w", err)
	}
	if w.file != nil {
		return w.store.syncFolders(w.key)
	}
	return nil
}

// Abort drops the object. After Close it does nothing, so that it can be deferred.
func (w *Writer) Abort() {
	if w.done {
		return
	}
	w.done = true
	w.watch.end()
	_ = w.writer.Close()
}

// syncFolders makes the object's name last, and those of the folders made for it.
func (s *Store) syncFolders(key string) error {
	for folder := filepath.Join(s.folder, filepath.Dir(filepath.FromSlash(key))); ; folder = filepath.Dir(folder) {
		f, err := os.Open(folder)
		if err != nil {
			return fmt.Errorf("sync folder: %w", err)
		}
		err = f.Sync()
		_ = f.Close()
		if err != nil {
			return fmt.Errorf("sync folder: %w", err)
		}
		if len(folder) <= len(s.folder) {
			return nil
		}
	}
}

// Reader reads an object; it can seek.
type Reader interface {
	io.ReadSeekCloser
	Size() int64
	ModTime() time.Time
}

// Open reads an object from its beginning; ErrNotFound when there is none.
func (s *Store) Open(ctx context.Context, key string) (Reader, error) {
	if validKey(key) != nil {
		return nil, ErrNotFound
	}
	if s.IsFolder() {
		reader, err := s.bucket.NewReader(ctx, key, nil)
		if err != nil {
			return nil, openError(err)
		}
		return reader, nil
	}
	w := s.watch(ctx)
	reader, err := s.bucket.NewReader(w.ctx, key, nil)
	if err != nil {
		err = w.cause(err)
		w.end()
		return nil, openError(err)
	}
	w.timer.Stop()
	return &watchedReader{r: reader, watch: w, silence: s.silence}, nil
}

func openError(err error) error {
	if gcerrors.Code(err) == gcerrors.NotFound {
		return ErrNotFound
	}
	return fmt.Errorf("open object: %w", err)
}

// OpenFile opens an object of a folder as the regular file it is, for readers that
// map it; ok is false when the store is no folder.
func (s *Store) OpenFile(key string) (file *os.File, ok bool, err error) {
	if !s.IsFolder() {
		return nil, false, nil
	}
	if validKey(key) != nil {
		return nil, true, ErrNotFound
	}
	file, err = os.Open(filepath.Join(s.folder, filepath.FromSlash(key)))
	if errors.Is(err, os.ErrNotExist) {
		return nil, true, ErrNotFound
	}
	if err != nil {
		return nil, true, fmt.Errorf("open object: %w", err)
	}
	return file, true, nil
}

// Delete removes an object. It is no error when there is none of that name.
func (s *Store) Delete(ctx context.Context, key string) error {
	if validKey(key) != nil {
		return nil
	}
	w := s.watch(ctx)
	defer w.end()
	err := w.cause(s.bucket.Delete(w.ctx, key))
	if err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("delete object: %w", err)
	}
	return nil
}

// Walk calls fn with every object's name that begins with prefix, in order of name.
func (s *Store) Walk(ctx context.Context, prefix string, fn func(key string, size int64, modified time.Time) error) error {
	list := s.bucket.List(&blob.ListOptions{Prefix: prefix})
	next := func() (*blob.ListObject, error) {
		w := s.watch(ctx)
		defer w.end()
		object, err := list.Next(w.ctx)
		return object, w.cause(err)
	}
	for {
		object, err := next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list objects: %w", err)
		}
		if strings.HasSuffix(object.Key, unfinished) {
			continue
		}
		if err := fn(object.Key, object.Size, object.ModTime); err != nil {
			return err
		}
	}
}
