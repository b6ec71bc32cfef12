// Package native turns addresses of compiled programs into functions, files and
// lines: ELF and Mach-O (thin and fat), raw or in zips, with DWARF where there is
// some and the symbol table where there is none.
//
// It promises for hostile files: an error or a poorer answer, never a loop without
// end. Memory and time are bounded only by the size of what is parsed, and Go's
// readers of these formats may panic or allocate on a lie in a header, so a server
// runs Identify and Build in the sandbox. Open and Lookup are safe anywhere.
//
// Addresses are those of the file. Names are demangled (C++ and Rust).
package native

import (
	"bytes"
	"debug/elf"
	"debug/macho"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// ErrMalformed wraps what makes a whole file unreadable, ErrLimit what makes it too
// much to read.
var (
	ErrMalformed = errors.New("malformed debug file")
	ErrLimit     = errors.New("debug file exceeds a limit")
)

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrMalformed, fmt.Errorf(format, args...))
}

// span is a range of addresses, high excluded.
type span struct{ low, high uint64 }

// image is one program or library for one architecture.
type image struct {
	name string // file name within its bundle, for warnings
	arch string
	ids  []string // first the one it is found by

	code    []span // executable sections, sorted
	segment uint64 // where the first segment lies
	thumb   bool   // the lowest bit of a code address is no part of it

	sections func(name string) ([]byte, error) // DWARF section by its ELF name without ".debug_"
	symbols  func() ([]symbol, error)
}

type symbol struct {
	low, size uint64 // size 0: up to the next
	name      string
}

// guard turns a panic of a reader of a hostile file into an error.
func guard(err *error) {
	if p := recover(); p != nil {
		*err = malformed("%v", p)
	}
}

// isImage reports whether data begins like a file that images can read.
func isImage(data []byte) bool {
	if len(data) < 4 {
		return false
	}
	switch binary.BigEndian.Uint32(data) {
	case 0x7f454c46, // ELF
		0xfeedface, 0xfeedfacf, 0xcefaedfe, 0xcffaedfe, // Mach-O
		0xcafebabe, 0xcafebabf: // fat
		return true
	}
	return false
}

// images opens every image in data, which is one file.
func images(name string, data []byte) (list []*image, err error) {
	defer guard(&err)
	if len(data) < 4 {
		return nil, malformed("%s: too short", name)
	}
	switch binary.BigEndian.Uint32(data) {
	case 0x7f454c46:
		img, err := openELF(data)
		return named(name, img, err)
	case 0xfeedface, 0xfeedfacf, 0xcefaedfe, 0xcffaedfe:
		img, err := openMachO(data)
		return named(name, img, err)
	case 0xcafebabe:
		return fat(name, data, 20)
	case 0xcafebabf:
		return fat(name, data, 32)
	}
	return nil, malformed("%s: neither ELF nor Mach-O", name)
}

func named(name string, img *image, err error) ([]*image, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	img.name = name
	return []*image{img}, nil
}

// maxArchs bounds a fat file; a Java class file begins with the same number, and
// has its version where the count would be.
const maxArchs = 32

// fat reads the directory of a fat Mach-O: width 20 for 32-bit offsets, 32 for 64.
func fat(name string, data []byte, width int) ([]*image, error) {
	if len(data) < 8 {
		return nil, malformed("%s: cut off", name)
	}
	n := int(binary.BigEndian.Uint32(data[4:]))
	if n == 0 || n > maxArchs || len(data) < 8+n*width {
		return nil, malformed("%s: no fat Mach-O", name)
	}
	var list []*image
	var firstErr error
	for i := range n {
		entry := data[8+i*width:]
		offset, size := uint64(binary.BigEndian.Uint32(entry[8:])), uint64(binary.BigEndian.Uint32(entry[12:]))
		if width == 32 {
			offset, size = binary.BigEndian.Uint64(entry[8:]), binary.BigEndian.Uint64(entry[16:])
		}
		if offset > uint64(len(data)) || size > uint64(len(data))-offset {
			firstErr = malformed("%s: an architecture lies outside the file", name)
			continue
		}
		img, err := openMachO(data[offset : offset+size])
		if err != nil {
			firstErr = fmt.Errorf("%s: %w", name, err)
			continue
		}
		img.name = name
		list = append(list, img)
	}
	if len(list) == 0 {
		return nil, firstErr
	}
	return list, nil
}

func openMachO(data []byte) (_ *image, err error) {
	defer guard(&err)
	f, err := macho.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, malformed("read Mach-O: %w", err)
	}
	img := &image{arch: strings.ToLower(strings.TrimPrefix(f.Cpu.String(), "Cpu"))}
	const loadUUID = 0x1b
	for _, l := range f.Loads {
		raw := l.Raw()
		if len(raw) >= 24 && f.ByteOrder.Uint32(raw) == loadUUID {
			img.ids = append(img.ids, formatUUID(raw[8:24]))
		}
	}
	first := true
	for _, l := range f.Loads {
		seg, ok := l.(*macho.Segment)
		if !ok || seg.Name == "__PAGEZERO" {
			continue
		}
		if first || seg.Name == "__TEXT" {
			img.segment, first = seg.Addr, false
		}
	}
	const instructions = 0x80000000 | 0x400
	for _, s := range f.Sections {
		if s.Flags&instructions != 0 || s.Seg == "__TEXT" && s.Name == "__text" {
			img.code = addSpan(img.code, s.Addr, s.Size)
		}
	}
	sortSpans(img.code)
	img.sections = func(name string) ([]byte, error) {
		return machoSection(f, data, name)
	}
	img.symbols = func() ([]symbol, error) { return machoSymbols(f), nil }
	return img, nil
}

// machoSection finds a DWARF section; Mach-O cuts section names at 16 bytes.
func machoSection(f *macho.File, data []byte, name string) ([]byte, error) {
	want := "__debug_" + name
	if len(want) > 16 {
		want = want[:16]
	}
	for _, s := range f.Sections {
		if s.Name != want || s.Seg != "__DWARF" {
			continue
		}
		if uint64(s.Offset) > uint64(len(data)) || s.Size > uint64(len(data))-uint64(s.Offset) {
			return nil, malformed("section %s lies outside the file", want)
		}
		return data[s.Offset : uint64(s.Offset)+s.Size], nil
	}
	return nil, nil
}

func machoSymbols(f *macho.File) []symbol {
	if f.Symtab == nil {
		return nil
	}
	const stab, typeMask, inSection = 0xe0, 0x0e, 0x0e
	var list []symbol
	for _, s := range f.Symtab.Syms {
		if s.Type&stab != 0 || s.Type&typeMask != inSection || s.Name == "" {
			continue
		}
		list = append(list, symbol{low: s.Value, name: strings.TrimPrefix(s.Name, "_")})
	}
	return list
}

func openELF(data []byte) (_ *image, err error) {
	defer guard(&err)
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, malformed("read ELF: %w", err)
	}
	img := &image{arch: strings.ToLower(strings.TrimPrefix(f.Machine.String(), "EM_")), thumb: f.Machine == elf.EM_ARM}
	img.ids = elfIDs(f, data)
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD {
			img.segment = p.Vaddr
			break
		}
	}
	for _, s := range f.Sections {
		if s.Flags&elf.SHF_EXECINSTR != 0 && s.Flags&elf.SHF_ALLOC != 0 {
			img.code = addSpan(img.code, s.Addr, s.Size)
		}
	}
	if len(img.code) == 0 {
		for _, p := range f.Progs {
			if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
				img.code = addSpan(img.code, p.Vaddr, p.Memsz)
			}
		}
	}
	sortSpans(img.code)
	img.sections = func(name string) ([]byte, error) { return elfSection(f, data, name) }
	img.symbols = func() ([]symbol, error) { return elfSymbols(f) }
	return img, nil
}

// maxInflated bounds one compressed section: its header may claim anything.
const maxInflated = 1 << 30

func elfSection(f *elf.File, data []byte, name string) ([]byte, error) {
	for _, s := range f.Sections {
		if s.Name != ".debug_"+name && s.Name != ".zdebug_"+name || s.Type == elf.SHT_NOBITS {
			continue
		}
		if s.Flags&elf.SHF_COMPRESSED != 0 || strings.HasPrefix(s.Name, ".z") {
			if s.Size > maxInflated {
				return nil, fmt.Errorf("%w: section %s claims %d bytes", ErrLimit, s.Name, s.Size)
			}
			inflated, err := s.Data()
			if err != nil {
				return nil, malformed("inflate %s: %w", s.Name, err)
			}
			return inflated, nil
		}
		if s.Offset > uint64(len(data)) || s.FileSize > uint64(len(data))-s.Offset {
			return nil, malformed("section %s lies outside the file", s.Name)
		}
		return data[s.Offset : s.Offset+s.FileSize], nil
	}
	return nil, nil
}

func elfSymbols(f *elf.File) ([]symbol, error) {
	raw, err := f.Symbols()
	if errors.Is(err, elf.ErrNoSymbols) {
		raw, err = f.DynamicSymbols()
	}
	if errors.Is(err, elf.ErrNoSymbols) {
		return nil, nil
	}
	if err != nil {
		return nil, malformed("read symbols: %w", err)
	}
	list := make([]symbol, 0, len(raw))
	for _, s := range raw {
		kind := elf.ST_TYPE(s.Info)
		if s.Name == "" || s.Section == elf.SHN_UNDEF || kind != elf.STT_FUNC && kind != elf.STT_NOTYPE && kind != elf.STT_GNU_IFUNC {
			continue
		}
		if strings.HasPrefix(s.Name, "$") { // mapping symbols of ARM: $a, $d, $t, $x
			continue
		}
		list = append(list, symbol{low: s.Value, size: s.Size, name: s.Name})
	}
	return list, nil
}
