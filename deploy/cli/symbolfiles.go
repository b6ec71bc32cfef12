package cli

import (
	"archive/zip"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"skerry/writeplane/symbolicate"
)

// symbolFile is an artifact found on this machine.
type symbolFile struct {
	path string // as found; a folder for a dSYM bundle
	name string // as uploaded
	kind symbolicate.Kind
}

// findSymbols finds the artifacts among files and below folders. kind is what files
// named by themselves are, "" to tell by looking.
func findSymbols(paths []string, kind symbolicate.Kind) ([]symbolFile, error) {
	var found []symbolFile
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil {
			return nil, usagef("%w", err)
		}
		if !info.IsDir() {
			f, ok := recognize(path)
			if kind != "" {
				f, ok = symbolFile{path, filepath.Base(path), kind}, true
			}
			if !ok {
				return nil, usagef("%s: cannot tell what it is; say --kind", path)
			}
			found = append(found, f)
			continue
		}
		below, err := findBelow(path)
		if err != nil {
			return nil, err
		}
		for _, f := range below {
			if kind == "" || f.kind == kind {
				found = append(found, f)
			}
		}
	}
	return found, nil
}

func findBelow(root string) (found []symbolFile, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasSuffix(entry.Name(), ".dSYM"):
			found = append(found, symbolFile{path, entry.Name() + ".zip", symbolicate.DSYM})
			return fs.SkipDir
		case entry.IsDir() && (entry.Name() == "node_modules" || entry.Name() == "__MACOSX" || entry.Name() == ".git"):
			return fs.SkipDir
		case entry.Type().IsRegular():
			if f, ok := recognize(path); ok {
				found = append(found, f)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("look for symbols: %w", err)
	}
	return found, nil
}

// recognize tells an artifact by its name and its first bytes.
func recognize(path string) (symbolFile, bool) {
	name := filepath.Base(path)
	is := func(kind symbolicate.Kind) (symbolFile, bool) { return symbolFile{path, name, kind}, true }
	lower := strings.ToLower(name)
	head := firstBytes(path)
	isELF, isMachO := bytes.HasPrefix(head, []byte("\x7fELF")), machO(head)
	switch {
	case strings.HasPrefix(name, "._"):
	case strings.HasSuffix(lower, ".css.map"):
	case strings.HasSuffix(lower, ".map") && looksLikeJSON(head):
		return is(symbolicate.SourceMap)
	case strings.HasSuffix(lower, ".symbols") && (isELF || isMachO):
		return is(symbolicate.FlutterSymbols)
	case strings.HasSuffix(lower, ".dsym.zip"):
		return is(symbolicate.DSYM)
	case strings.Contains(lower, "native-debug-symbols") && strings.HasSuffix(lower, ".zip"):
		return is(symbolicate.AndroidNDK)
	case strings.HasSuffix(lower, ".txt") && strings.Contains(lower, "mapping") && looksLikeMapping(head):
		return is(symbolicate.AndroidMapping)
	case isELF && tellsNames(path):
		return is(symbolicate.AndroidNDK)
	}
	return symbolFile{}, false
}

func firstBytes(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	head := make([]byte, 4096)
	n, _ := io.ReadFull(f, head)
	return head[:n]
}

func looksLikeJSON(head []byte) bool {
	head = bytes.TrimLeft(bytes.TrimPrefix(head, []byte("\xef\xbb\xbf")), " \t\r\n")
	return bytes.HasPrefix(head, []byte("{")) || bytes.HasPrefix(head, []byte(")]}"))
}

func looksLikeMapping(head []byte) bool {
	return bytes.HasPrefix(head, []byte("#")) || bytes.Contains(head, []byte(" -> "))
}

func machO(head []byte) bool {
	for _, magic := range []string{"\xcf\xfa\xed\xfe", "\xce\xfa\xed\xfe", "\xca\xfe\xba\xbe", "\xca\xfe\xba\xbf"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return true
		}
	}
	return false
}

// tellsNames reports whether a library holds more than a stripped one does.
func tellsNames(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, s := range f.Sections {
		if s.Name == ".debug_info" || s.Name == ".zdebug_info" || s.Name == ".symtab" {
			return true
		}
	}
	return false
}

// open returns the file's content as it is uploaded. A dSYM bundle is packed into a
// temporary zip; done closes and removes what was made.
func (f symbolFile) open() (file *os.File, size int64, done func(), err error) {
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, 0, nil, err
	}
	if info.IsDir() {
		return f.pack()
	}
	if file, err = os.Open(f.path); err != nil {
		return nil, 0, nil, err
	}
	return file, info.Size(), func() { _ = file.Close() }, nil
}

func (f symbolFile) pack() (file *os.File, size int64, done func(), err error) {
	if file, err = os.CreateTemp("", "skerry-dsym-"); err != nil {
		return nil, 0, nil, err
	}
	done = func() { _ = file.Close(); _ = os.Remove(file.Name()) }
	archive := zip.NewWriter(file)
	if err = archive.AddFS(os.DirFS(f.path)); err == nil {
		err = archive.Close()
	}
	if err == nil {
		size, err = file.Seek(0, io.SeekEnd)
	}
	if err == nil {
		_, err = file.Seek(0, io.SeekStart)
	}
	if err != nil {
		done()
		return nil, 0, nil, fmt.Errorf("pack %s: %w", f.path, err)
	}
	return file, size, done, nil
}
