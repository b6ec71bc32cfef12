package blobs

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"
)

// unfinished ends the names of files that fileblob is still writing.
const unfinished = ".tmp"

// sweep removes what a process that died was writing. The folder is locked, so no
// living process writes in it.
func sweep(folder string) error {
	return filepath.WalkDir(folder, func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, unfinished) {
			return err
		}
		return os.Remove(path)
	})
}

// ErrFolderTaken means that another process works with the folder.
var ErrFolderTaken = errors.New("the blob folder is in use by another write plane; several of them need an s3:// store")

// lockFolder takes the folder for this process and checks that it is the one that
// this installation's files are in. The lock is the kernel's, so it ends with the
// process however that ends.
func lockFolder(ctx context.Context, folder string, pool *pgxpool.Pool) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(folder, "identity"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock blob folder: %w", err)
	}
	err = identify(ctx, lock, folder, pool)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	return lock, nil
}

func identify(ctx context.Context, lock *os.File, folder string, pool *pgxpool.Pool) error {
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%w (%s)", ErrFolderTaken, folder)
	}
	found, err := os.ReadFile(lock.Name())
	if err != nil {
		return fmt.Errorf("read blob folder's identity: %w", err)
	}
	identity := bytes.TrimSpace(found)
	if len(identity) == 0 {
		// Written before the database hears of it: whoever dies in between finds a
		// folder with an identity that nobody has claimed, and claims it next time.
		identity = []byte(rand.Text())
		if _, err := lock.WriteAt(identity, 0); err != nil {
			return fmt.Errorf("write blob folder's identity: %w", err)
		}
		if err := lock.Sync(); err != nil {
			return fmt.Errorf("write blob folder's identity: %w", err)
		}
	}
	return claim(ctx, pool, folder, identity)
}

// claim makes the folder the installation's, unless another one is already.
func claim(ctx context.Context, pool *pgxpool.Pool, folder string, identity []byte) error {
	_, err := pool.Exec(ctx, `INSERT INTO installation (name, value) VALUES ('blob-folder', $1) ON CONFLICT DO NOTHING`, identity)
	if err != nil {
		return fmt.Errorf("claim blob folder: %w", err)
	}
	var claimed []byte
	if err := pool.QueryRow(ctx, `SELECT value FROM installation WHERE name = 'blob-folder'`).Scan(&claimed); err != nil {
		return fmt.Errorf("claim blob folder: %w", err)
	}
	if !bytes.Equal(claimed, identity) {
		return fmt.Errorf("blob folder %s is not the one that holds this installation's files; several write planes need an s3:// store", folder)
	}
	return nil
}
