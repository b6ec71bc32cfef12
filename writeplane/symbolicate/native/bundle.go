package native

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// The limits of a zip. Sizes are counted as bytes come out, never believed.
const (
	maxEntries  = 50_000
	maxImage    = 2 << 30
	maxUnpacked = 4 << 30
)

// each calls do with every file of an artifact that looks like an image: the
// artifact itself, or the entries of a zip, each unpacked into an unlinked file of
// scratch ("" is the system's folder) and mapped. Entry names never become paths.
func each(data []byte, scratch string, do func(name string, data []byte) error) error {
	if !bytes.HasPrefix(data, []byte("PK\x03\x04")) && !bytes.HasPrefix(data, []byte("PK\x05\x06")) {
		return do("file", data)
	}
	archive, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) {
		return malformed("read zip: %w", err)
	}
	if len(archive.File) > maxEntries {
		return fmt.Errorf("%w: a zip of %d entries", ErrLimit, len(archive.File))
	}
	budget := int64(maxUnpacked)
	found := false
	for _, entry := range archive.File {
		if skipped(entry) {
			continue
		}
		isOne, err := unpack(entry, scratch, &budget, do)
		if err != nil {
			return err
		}
		found = found || isOne
	}
	if !found {
		return malformed("the zip holds no ELF or Mach-O file")
	}
	return nil
}

// skipped leaves out folders and what macOS adds to zips beside each file.
func skipped(entry *zip.File) bool {
	name := strings.ReplaceAll(entry.Name, "\\", "/")
	return strings.HasSuffix(name, "/") || strings.HasPrefix(name, "__MACOSX/") ||
		strings.Contains(name, "/__MACOSX/") || strings.HasPrefix(path.Base(name), "._")
}

func unpack(entry *zip.File, scratch string, budget *int64, do func(string, []byte) error) (isOne bool, err error) {
	in, err := entry.Open()
	if err != nil {
		return false, malformed("open %q in the zip: %w", entry.Name, err)
	}
	defer in.Close()
	var head [8]byte
	n, err := io.ReadFull(in, head[:])
	if n < 4 || !isImage(head[:n]) || isClassFile(head[:n]) {
		return false, nil // also entries that do not unpack: nothing was expected of them
	}
	if err != nil {
		return false, malformed("unpack %q: %w", entry.Name, err)
	}
	file, err := os.CreateTemp(scratch, "image-")
	if err != nil {
		return false, fmt.Errorf("make scratch file: %w", err)
	}
	defer file.Close()
	if err := os.Remove(file.Name()); err != nil {
		return false, fmt.Errorf("unlink scratch file: %w", err)
	}
	size, err := spill(file, io.MultiReader(bytes.NewReader(head[:n]), in), min(*budget, maxImage))
	if err != nil {
		return false, fmt.Errorf("unpack %q: %w", entry.Name, err)
	}
	*budget -= size
	mapped, err := unix.Mmap(int(file.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return false, fmt.Errorf("map scratch file: %w", err)
	}
	defer func() { _ = unix.Munmap(mapped) }()
	return true, do(path.Base(entry.Name), mapped)
}

// spill copies an entry of at most limit bytes. What cannot be read is the entry's fault;
// what cannot be written, on a full disk, is not.
func spill(to io.Writer, from io.Reader, limit int64) (size int64, err error) {
	scratch := &writes{to: to}
	size, err = io.Copy(scratch, io.LimitReader(from, limit+1))
	switch {
	case scratch.err != nil:
		return size, fmt.Errorf("write scratch file: %w", scratch.err)
	case err != nil:
		return size, malformed("%w", err)
	case size > limit:
		return size, fmt.Errorf("%w: the zip unpacks to more than %d bytes", ErrLimit, limit)
	}
	return size, nil
}

// writes keeps the fault of a writer apart from its reader's.
type writes struct {
	to  io.Writer
	err error
}

func (w *writes) Write(p []byte) (n int, err error) {
	n, w.err = w.to.Write(p)
	return n, w.err
}

// isClassFile tells a Java class from a fat Mach-O, which begins alike.
func isClassFile(head []byte) bool {
	return len(head) >= 8 && binary.BigEndian.Uint32(head) == 0xcafebabe && binary.BigEndian.Uint32(head[4:]) > maxArchs
}

// Identify returns the debug ids of every image of an artifact, the id that each is
// found by first, with warnings about images that cannot be read. It reads headers
// and notes only.
func Identify(data []byte, scratch string) (ids, warnings []string, err error) {
	defer guard(&err)
	readable := 0
	var first error
	err = each(data, scratch, func(name string, data []byte) error {
		list, err := images(name, data)
		if err != nil {
			warnings = append(warnings, err.Error())
			if first == nil {
				first = err
			}
			return nil
		}
		for _, img := range list {
			readable++
			ids = append(ids, img.ids...)
			if len(img.ids) == 0 {
				warnings = append(warnings, img.name+": it has no debug id")
			}
		}
		return nil
	})
	if err == nil && readable == 0 {
		err = first
	}
	return ids, warnings, err
}
