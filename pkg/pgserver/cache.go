package pgserver

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"skerry/pkg/atomicfile"
)

// cachedCluster copies a fresh cluster out of cfg.InitCache to c.dir, filling
// the cache first when it has none for this version and account. It returns
// the password all clusters of this cache share.
func cachedCluster(ctx context.Context, c *cluster, cfg Config) (string, error) {
	if err := ownCache(cfg.InitCache); err != nil {
		return "", err
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", c.bin.Dir, c.bin.Version, c.account.uid))
	entry := filepath.Join(cfg.InitCache, hex.EncodeToString(sum[:8]))
	if err := os.MkdirAll(entry, 0o700); err != nil {
		return "", err
	}
	// One process fills, the others wait for it: initdb on all cores at once
	// would be slower for everybody.
	lock, err := os.OpenFile(filepath.Join(entry, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock the initdb cache: %w", err)
	}
	source := filepath.Join(entry, "cluster")
	secret := filepath.Join(entry, "password")
	if _, err := os.Stat(filepath.Join(source, "PG_VERSION")); err != nil {
		c.password = rand.Text()
		if err := atomicfile.Write(secret, []byte(c.password+"\n")); err != nil {
			return "", err
		}
		if err := c.initdb(ctx, source, false); err != nil {
			return "", err
		}
	}
	password, err := readSecret(secret)
	if err != nil {
		return "", err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_UN); err != nil {
		return "", err
	}
	draft := c.dir + ".new"
	if err := os.RemoveAll(draft); err != nil {
		return "", err
	}
	if err := copyTree(source, draft, c.account); err != nil {
		return "", fmt.Errorf("copy the cached cluster: %w", err)
	}
	return password, os.Rename(draft, c.dir)
}

// ownCache makes the cache folder and refuses one that somebody else could
// have prepared: its name in a shared temporary folder is no secret.
func ownCache(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	fi, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !fi.IsDir() || fi.Mode().Perm()&0o077 != 0 || !ok || int(st.Uid) != os.Geteuid() {
		return errors.New(dir + " is not a folder of ours alone: remove it")
	}
	return nil
}

// copyTree copies folders and plain files, giving them to the account.
func copyTree(from, to string, a account) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		if d.IsDir() {
			err = os.Mkdir(target, 0o700)
		} else {
			err = copyFile(path, target)
		}
		if err == nil && a.drop {
			err = os.Lchown(target, a.uid, a.gid)
		}
		return err
	})
}

func copyFile(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Close())
}
