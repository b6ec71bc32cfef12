package native

import (
	"bufio"
	"cmp"
	"debug/dwarf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"skerry/writeplane/symbolicate/flat"
)

// The lookup form of an artifact is its images' tables one after another, then a
// directory of them, then where it begins:
//
//	magic[8]  table…  directory  u64 offset of the directory  magic[8]
//
// An image's table, addresses relative to base, sorted:
//
//	head     base low and high half, first segment low and high half, thumb
//	blocks, rows   the positions, see runs.go
//	scopes   parent (0 none), name, file, line, column of the call   numbered from 1
//	symbols  address, size, name
const (
	magic          = "SKNATV2\n"
	directoryMagic = "SKNATD1\n"
	imageMagic     = "SKNATI2\n"

	head, blocks, rows, scopes, symbols = 0, 1, 2, 3, 4
	imageSections                       = 5

	scopeWidth, symbolWidth = 5, 3

	dirImages, dirIDs = 0, 1
	dirSections       = 2
	dirWidth          = 8 // first id, ids, name, arch, offset low and high, length low and high
)

// Build writes the lookup form of an artifact: raw ELF or Mach-O, thin or fat, or a
// zip of them. An image that cannot be read costs a warning, unless none can.
func Build(data []byte, scratch string, w io.Writer) (warnings []string, err error) {
	defer guard(&err)
	out := &counter{w: bufio.NewWriterSize(w, 1<<20)}
	if _, err := out.Write([]byte(magic)); err != nil {
		return nil, err
	}
	dir := flat.NewBuilder(directoryMagic, dirSections)
	built := 0
	var first error
	failed := func(err error) {
		warnings = append(warnings, err.Error())
		if first == nil {
			first = err
		}
	}
	err = each(data, scratch, func(name string, data []byte) error {
		list, err := images(name, data)
		if err != nil {
			failed(err)
			return nil
		}
		for _, img := range list {
			if err := img.add(dir, out, &warnings); err != nil {
				if errors.Is(err, errWrite) || errors.Is(err, ErrLimit) {
					return err
				}
				failed(fmt.Errorf("%s: %w", img.name, err))
				continue
			}
			built++
		}
		return nil
	})
	if err == nil && built == 0 {
		err = first
	}
	if err != nil {
		return warnings, err
	}
	return warnings, finish(dir, out)
}

var errWrite = errors.New("write lookup form")

type counter struct {
	w *bufio.Writer
	n uint64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += uint64(n)
	if err != nil {
		return n, fmt.Errorf("%w: %w", errWrite, err)
	}
	return n, nil
}

func finish(dir *flat.Builder, out *counter) error {
	at := out.n
	if _, err := dir.WriteTo(out); err != nil {
		return err
	}
	if _, err := out.Write(append(binary.LittleEndian.AppendUint64(nil, at), magic...)); err != nil {
		return err
	}
	if err := out.w.Flush(); err != nil {
		return fmt.Errorf("%w: %w", errWrite, err)
	}
	return nil
}

// add writes one image's table and its line in the directory.
func (img *image) add(dir *flat.Builder, out *counter, warnings *[]string) error {
	b, warning, err := img.table()
	if err != nil {
		return err
	}
	if warning != nil {
		*warnings = append(*warnings, img.name+": "+warning.Error())
	}
	at := out.n
	if _, err := b.WriteTo(out); err != nil {
		return err
	}
	firstID := dir.Len(dirIDs) / 4
	for _, id := range img.ids {
		dir.U32(dirIDs, dir.String(id))
	}
	size := out.n - at
	dir.U32(dirImages, uint32(firstID), uint32(len(img.ids)), dir.String(img.name), dir.String(img.arch),
		uint32(at), uint32(at>>32), uint32(size), uint32(size>>32))
	return nil
}

// table makes the lookup form of one image. The warning tells what was damaged in
// an image that is still of use.
func (img *image) table() (b *flat.Builder, warning, err error) {
	defer guard(&err)
	b = flat.NewBuilder(imageMagic, imageSections)
	base := uint64(0)
	if len(img.code) > 0 {
		base = img.code[0].low
	}
	thumb := uint32(0)
	if img.thumb {
		thumb = 1
	}
	b.U32(head, uint32(base), uint32(base>>32), uint32(img.segment), uint32(img.segment>>32), thumb)
	data, size, err := img.dwarf()
	if err != nil {
		warning = err
	}
	syms, symsErr := img.sortedSymbols(base)
	if data != nil {
		c := &collector{img: img, data: data, b: b, base: base, names: map[dwarf.Offset]name{}, syms: syms, budget: size, out: recorder{b: b}}
		if err := collectGuarded(c); err != nil {
			if errors.Is(err, ErrLimit) {
				return nil, nil, err
			}
			warning = err
		} else if c.warning != nil {
			warning = c.warning
		}
		c.out.finish()
	}
	img.writeSymbols(b, base, syms)
	if symsErr != nil {
		warning = errors.Join(warning, symsErr)
	}
	switch {
	case b.Len(symbols) > 0 || b.Len(blocks) > 0:
		return b, warning, nil
	case warning != nil:
		return nil, nil, warning
	}
	return nil, nil, malformed("it has neither debug information nor symbols")
}

func collectGuarded(c *collector) (err error) {
	defer guard(&err)
	return c.collect()
}

// dwarf gathers the sections, and the size of the entries; nil when there is no
// debug information.
func (img *image) dwarf() (_ *dwarf.Data, size int, err error) {
	defer guard(&err)
	got := map[string][]byte{}
	for _, name := range []string{"abbrev", "info", "line", "ranges", "str", "addr", "line_str", "str_offsets", "rnglists"} {
		if got[name], err = img.sections(name); err != nil {
			return nil, 0, err
		}
	}
	if len(got["info"]) == 0 || len(got["abbrev"]) == 0 {
		return nil, 0, nil
	}
	data, err := dwarf.New(got["abbrev"], nil, nil, got["info"], got["line"], nil, got["ranges"], got["str"])
	if err != nil {
		return nil, 0, malformed("read DWARF: %w", err)
	}
	for _, name := range []string{"addr", "line_str", "str_offsets", "rnglists"} {
		if len(got[name]) > 0 {
			if err := data.AddSection(".debug_"+name, got[name]); err != nil {
				return nil, 0, malformed("read DWARF: %w", err)
			}
		}
	}
	return data, len(got["info"]), nil
}

// sortedSymbols are the functions of the symbol table in order, one an address.
func (img *image) sortedSymbols(base uint64) (_ []symbol, err error) {
	defer guard(&err)
	list, err := img.symbols()
	if err != nil {
		return nil, err
	}
	if img.thumb {
		for i := range list {
			list[i].low &^= 1
		}
	}
	list = slices.DeleteFunc(list, func(s symbol) bool { return !inside(img.code, s.low) || s.low-base >= 1<<32-1 })
	// Of aliases the one with a size, and the shortest name, tells most.
	slices.SortStableFunc(list, func(a, b symbol) int {
		return cmp.Or(cmp.Compare(a.low, b.low), -cmp.Compare(min(a.size, 1), min(b.size, 1)),
			strings.Compare(leading(a.name), leading(b.name)), cmp.Compare(len(a.name), len(b.name)))
	})
	return slices.CompactFunc(list, func(a, b symbol) bool { return a.low == b.low }), nil
}

func (img *image) writeSymbols(b *flat.Builder, base uint64, list []symbol) {
	for i, s := range list {
		size := s.size
		if size == 0 {
			size = img.reach(s.low)
			if i+1 < len(list) {
				size = min(size, list[i+1].low-s.low)
			}
		}
		b.U32(symbols, uint32(s.low-base), uint32(min(size, 1<<32-1)), b.String(Demangle(s.name)))
	}
}

// leading is what an alias is ranked by: underscores make it somebody's private name.
func leading(name string) string { return name[:len(name)-len(strings.TrimLeft(name, "_"))] }

// reach is how far the section of an address goes on.
func (img *image) reach(address uint64) uint64 {
	for _, s := range img.code {
		if s.low <= address && address < s.high {
			return s.high - address
		}
	}
	return 0
}

// Table answers lookups from a lookup form. It only reads: goroutines may share it.
type Table struct{ images []*Image }

// Image is the table of one program or library.
type Image struct {
	Name, Arch string
	IDs        []string

	t             *flat.Table
	base, segment uint64
	thumb         bool
}

var errTable = errors.New("not a lookup form of debug files")

// Open checks the frame of a lookup form and keeps using it.
func Open(index []byte) (*Table, error) {
	if len(index) < 24 || string(index[:8]) != magic || string(index[len(index)-8:]) != magic {
		return nil, errTable
	}
	end := uint64(len(index) - 16)
	at := binary.LittleEndian.Uint64(index[end:])
	if at < 8 || at > end {
		return nil, errTable
	}
	dir, err := flat.Open(directoryMagic, dirSections, index[at:end])
	if err != nil {
		return nil, fmt.Errorf("open directory: %w", err)
	}
	t := &Table{}
	rows, ids := dir.Section(dirImages), dir.Section(dirIDs)
	for i := range rows.Rows(dirWidth) {
		n := i * dirWidth
		from, size := wide(rows.At(n+4), rows.At(n+5)), wide(rows.At(n+6), rows.At(n+7))
		if from > at || size > at-from {
			return nil, errTable
		}
		img, err := openImage(index[from : from+size])
		if err != nil {
			return nil, err
		}
		img.Name, img.Arch = dir.String(rows.At(n+2)), dir.String(rows.At(n+3))
		for k := range min(rows.At(n+1), uint32(ids.Rows(1))) {
			img.IDs = append(img.IDs, dir.String(ids.At(int(rows.At(n)+k))))
		}
		t.images = append(t.images, img)
	}
	return t, nil
}

func openImage(data []byte) (*Image, error) {
	t, err := flat.Open(imageMagic, imageSections, data)
	if err != nil {
		return nil, fmt.Errorf("open image: %w", err)
	}
	h := t.Section(head)
	return &Image{t: t, base: wide(h.At(0), h.At(1)), segment: wide(h.At(2), h.At(3)), thumb: h.At(4) == 1}, nil
}

func wide(low, high uint32) uint64 { return uint64(high)<<32 | uint64(low) }

// Images lists the images.
func (t *Table) Images() []*Image { return t.images }

// ByID returns the image with a debug id, compared without regard to case.
func (t *Table) ByID(id string) (*Image, bool) {
	for _, img := range t.images {
		for _, own := range img.IDs {
			if strings.EqualFold(own, id) {
				return img, true
			}
		}
	}
	return nil, false
}

// Place is one function at an address. File is "" and Line 0 when unknown; for a
// caller they say where the call stands.
type Place struct {
	Function, File string
	Line, Column   int64
}

// pageMask clears the offset within the smallest page that systems map.
const pageMask = 1<<12 - 1

// FileAddress turns an address of a process into one of the file; imageBase is
// where the first segment lies. Systems map whole pages, so a segment that begins
// within one lies at the page's start, unless imageBase shows the same offset.
func (img *Image) FileAddress(address, imageBase uint64) (uint64, bool) {
	if address < imageBase {
		return 0, false
	}
	first := img.segment
	if imageBase&pageMask != first&pageMask {
		first &^= pageMask
	}
	return address - imageBase + first, true
}

// Lookup returns the innermost function at an address of the file and its callers
// outward; ok is false when the image covers nothing there.
func (img *Image) Lookup(address uint64) (chain []Place, ok bool) {
	if img.thumb {
		address &^= 1
	}
	if address < img.base || address-img.base >= 1<<32-1 {
		return nil, false
	}
	at := uint32(address - img.base)
	p, covered := img.find(at)
	if !covered {
		if name, ok := img.symbol(at); ok {
			return []Place{{Function: name}}, true
		}
		return nil, false
	}
	all := img.t.Section(scopes)
	place := Place{File: img.t.String(p.file), Line: int64(p.line), Column: int64(p.column)}
	for n, hops := p.scope, 0; n != noScope && hops < maxDepth; hops++ {
		s := int(n-1) * scopeWidth
		if s+scopeWidth > len(all)/4 {
			break
		}
		place.Function = img.t.String(all.At(s + 1))
		chain = append(chain, place)
		place = Place{File: img.t.String(all.At(s + 2)), Line: int64(all.At(s + 3)), Column: int64(all.At(s + 4))}
		n = all.At(s)
	}
	if len(chain) == 0 {
		chain = append(chain, place)
	}
	if last := &chain[len(chain)-1]; last.Function == "" {
		last.Function, _ = img.symbol(at)
	}
	return chain, true
}

func (img *Image) symbol(at uint32) (string, bool) {
	s := img.t.Section(symbols)
	i := sort.Search(s.Rows(symbolWidth), func(i int) bool { return s.At(i*symbolWidth) > at }) - 1
	if i < 0 || at-s.At(i*symbolWidth) >= s.At(i*symbolWidth+1) {
		return "", false
	}
	return img.t.String(s.At(i*symbolWidth + 2)), true
}
