package native

import (
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"fmt"
)

// elfIDs are the ids an ELF file is found by: its build id in full and as a UUID,
// or without one the UUID made of its text section (supplement §6).
func elfIDs(f *elf.File, data []byte) []string {
	if id := buildID(f, data); len(id) > 0 {
		return []string{hex.EncodeToString(id), idUUID(f, id)}
	}
	// The first page of code, folded by exclusive or into 16 bytes: what crash
	// reporters compute where a linker wrote no build id.
	for _, s := range f.Sections {
		if s.Name != ".text" || s.Type == elf.SHT_NOBITS {
			continue
		}
		text, ok := part(data, s.Offset, s.FileSize)
		if !ok || len(text) == 0 {
			continue
		}
		var folded [16]byte
		for i, b := range text[:min(len(text), 4096)] {
			folded[i%16] ^= b
		}
		return []string{idUUID(f, folded[:])}
	}
	return nil
}

func part(data []byte, offset, size uint64) ([]byte, bool) {
	if offset > uint64(len(data)) || size > uint64(len(data))-offset {
		return nil, false
	}
	return data[offset : offset+size], true
}

// buildID looks in the note segments first, then in the note section: stripping
// tools keep one or the other.
func buildID(f *elf.File, data []byte) []byte {
	for _, p := range f.Progs {
		if p.Type != elf.PT_NOTE {
			continue
		}
		if notes, ok := part(data, p.Off, p.Filesz); ok {
			if id := buildIDNote(notes, f.ByteOrder, p.Align); id != nil {
				return id
			}
		}
	}
	for _, s := range f.Sections {
		if s.Name != ".note.gnu.build-id" || s.Type == elf.SHT_NOBITS {
			continue
		}
		if notes, ok := part(data, s.Offset, s.FileSize); ok {
			if id := buildIDNote(notes, f.ByteOrder, s.Addralign); id != nil {
				return id
			}
		}
	}
	return nil
}

// buildIDNote walks notes: u32 name size, u32 description size, u32 type, name and
// description, each padded to the alignment (4, or 8 where the segment says so).
func buildIDNote(notes []byte, order binary.ByteOrder, align uint64) []byte {
	const gnuBuildID = 3
	if align != 8 {
		align = 4
	}
	pad := func(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }
	for len(notes) >= 12 {
		name, size := uint64(order.Uint32(notes)), uint64(order.Uint32(notes[4:]))
		kind := order.Uint32(notes[8:])
		at := pad(12 + name)
		if align == 4 {
			at = 12 + pad(name)
		}
		if at > uint64(len(notes)) || size > uint64(len(notes))-at {
			return nil
		}
		if kind == gnuBuildID && size > 0 && name >= 4 && string(notes[12:15]) == "GNU" {
			return notes[at : at+size]
		}
		next := pad(at + size)
		if next > uint64(len(notes)) {
			return nil
		}
		notes = notes[next:]
	}
	return nil
}

// idUUID is the UUID form of an ELF id: its first 16 bytes, the first three fields
// swapped on little-endian files, as Microsoft's GUIDs are written.
func idUUID(f *elf.File, id []byte) string {
	var u [16]byte
	copy(u[:], id)
	if f.ByteOrder == binary.LittleEndian {
		u[0], u[1], u[2], u[3] = u[3], u[2], u[1], u[0]
		u[4], u[5] = u[5], u[4]
		u[6], u[7] = u[7], u[6]
	}
	return formatUUID(u[:])
}

func formatUUID(u []byte) string {
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
