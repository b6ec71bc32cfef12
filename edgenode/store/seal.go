package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"

	"skerry/replication"
)

// A seal says what the database held when it was written: how long its list of tables
// was, what that amounted to, and how far each lane was. It lies beside the database, in
// a file of its own.
//
// Pebble checks every block that it reads, but takes the first broken record of its list
// of tables, or of its log, for the end of it: that is how a crash looks. A list that was
// damaged then opens as an older one, and what came after is missing without a word: keys
// would be unknown that are not. With the seal an open database is at least what it was.
//
// What was written after the seal is not judged: a crash may have torn it. So the seal
// may lag behind, and does by the moments that it takes to be written. A seal that cannot
// be read says nothing, and then the list must be without a fault.
//
// The file has two slots, written in turn, so that a crash while one is written leaves
// the other. A slot:
//
//	offset  size
//	     0     1  version, 1
//	     1     8  number of this seal: the higher one counts
//	     9     8  number of the file with the list of tables
//	    17     8  its length
//	    25     4  CRC-32C of that length of it
//	    29     1  a bit for each lane that has state
//	    30    16  position of each lane
//	    46     4  CRC-32C of what precedes
type seal struct {
	number    uint64
	manifest  uint64
	length    int64
	sum       uint32
	served    [replication.Lanes]bool
	positions [replication.Lanes]replication.Position
}

const (
	sealLen  = 50
	sealSlot = 4096 // apart, so that they do not share a sector or a page
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *seal) encode() []byte {
	b := binary.BigEndian.AppendUint64([]byte{1}, s.number)
	b = binary.BigEndian.AppendUint64(b, s.manifest)
	b = binary.BigEndian.AppendUint64(b, uint64(s.length))
	b = binary.BigEndian.AppendUint32(b, s.sum)
	bits := byte(0)
	for lane, served := range s.served {
		if served {
			bits |= 1 << lane
		}
	}
	b = append(b, bits)
	for _, p := range s.positions {
		b = binary.BigEndian.AppendUint64(b, uint64(p))
	}
	return binary.BigEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func decodeSeal(b []byte) (s seal, ok bool) {
	if len(b) != sealLen || b[0] != 1 || binary.BigEndian.Uint32(b[46:]) != crc32.Checksum(b[:46], castagnoli) {
		return s, false
	}
	s.number = binary.BigEndian.Uint64(b[1:])
	s.manifest = binary.BigEndian.Uint64(b[9:])
	s.length = int64(binary.BigEndian.Uint64(b[17:]))
	s.sum = binary.BigEndian.Uint32(b[25:])
	for lane := range s.served {
		s.served[lane] = b[29]&(1<<lane) != 0
		s.positions[lane] = replication.Position(binary.BigEndian.Uint64(b[30+8*lane:]))
	}
	return s, s.length >= 0 && b[29] < 1<<replication.Lanes
}

// sealer writes seals. It belongs to one goroutine at a time.
type sealer struct {
	fs   vfs.FS
	db   string // the database's folder
	path string
	file vfs.File
	last seal // written, or found
}

// openSealer opens the file, or makes one, and reads the newest seal in it; found is
// false when there is none.
func openSealer(fs vfs.FS, dir, db string) (_ *sealer, found bool, err error) {
	s := &sealer{fs: fs, db: db, path: fs.PathJoin(dir, "seal")}
	if s.file, err = fs.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified); errors.Is(err, os.ErrNotExist) {
		s.file, err = s.make(dir)
	}
	if err != nil {
		return nil, false, fmt.Errorf("open the state store's seal: %w", err)
	}
	for slot := range int64(2) {
		b := make([]byte, sealLen)
		if n, err := s.file.ReadAt(b, slot*sealSlot); err != nil && n < sealLen {
			continue // never written, or cut short
		}
		if one, ok := decodeSeal(b); ok && (!found || one.number > s.last.number) {
			s.last, found = one, true
		}
	}
	return s, found, nil
}

func (s *sealer) make(dir string) (vfs.File, error) {
	file, err := s.fs.Create(s.path, vfs.WriteCategoryUnspecified)
	if err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil { // it cannot be read
		return nil, err
	}
	folder, err := s.fs.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(folder.Sync(), folder.Close()); err != nil {
		return nil, err
	}
	return s.fs.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified)
}

func (s *sealer) close() error { return s.file.Close() }

// write seals the database as it is now.
func (s *sealer) write(cursors [replication.Lanes]*cursor) error {
	desc, err := pebble.Peek(s.db, s.fs)
	if err != nil || !desc.Exists {
		return errors.Join(err, errors.New("the database has no list of tables"))
	}
	next := seal{number: s.last.number + 1}
	if next.manifest, err = manifestNumber(s.fs, desc.ManifestFilename); err != nil {
		return err
	}
	if next.manifest == s.last.manifest {
		next.length, next.sum = s.last.length, s.last.sum
	}
	if err := s.sum(desc.ManifestFilename, &next); err != nil {
		return err
	}
	for lane, c := range cursors {
		if c != nil {
			next.served[lane], next.positions[lane] = true, c.Position
		}
	}
	if _, err := s.file.WriteAt(next.encode(), int64(next.number%2)*sealSlot); err != nil {
		return fmt.Errorf("write the seal: %w", err)
	}
	if err := s.file.SyncData(); err != nil {
		return fmt.Errorf("write the seal: %w", err)
	}
	s.last = next
	return nil
}

// sum goes on with the list of tables from the seal's length to its present end. The list
// is synced first: a seal must not outlive what it seals.
func (s *sealer) sum(path string, to *seal) error {
	file, err := s.fs.Open(path)
	if err != nil {
		return fmt.Errorf("seal the list of tables: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("seal the list of tables: %w", err)
	}
	if info.Size() <= to.length {
		return nil
	}
	if err := file.Sync(); err != nil {
		return fmt.Errorf("seal the list of tables: %w", err)
	}
	more := make([]byte, info.Size()-to.length)
	if _, err := file.ReadAt(more, to.length); err != nil {
		return fmt.Errorf("seal the list of tables: %w", err)
	}
	to.sum, to.length = crc32.Update(to.sum, castagnoli, more), info.Size()
	return nil
}

// judgeFiles tells, before the database is opened, whether its list of tables is what the
// seal says; nil is good. An open would already have deleted the tables that a damaged
// list does not name.
func judgeFiles(fs vfs.FS, db string, sealed *seal) error {
	names, err := fs.List(db)
	if errors.Is(err, os.ErrNotExist) {
		return nil // nothing was ever here
	}
	if err != nil {
		return fmt.Errorf("list the state store's files: %w", err)
	}
	desc, err := pebble.Peek(db, fs)
	if err != nil {
		return fmt.Errorf("look for the list of tables: %w", err)
	}
	if !desc.Exists {
		for _, name := range names {
			if kind, _, ok := parseFile(name); ok && kind != "OPTIONS" {
				return fmt.Errorf("no list of tables, but %s: %w", name, pebble.ErrCorruption)
			}
		}
		return nil
	}
	number, err := manifestNumber(fs, desc.ManifestFilename)
	if err != nil {
		return err
	}
	file, err := fs.Open(desc.ManifestFilename)
	if err != nil {
		return fmt.Errorf("read the list of tables: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	switch {
	case sealed == nil || sealed.manifest < number:
		return judgeRecords(file)
	case sealed.manifest > number:
		return fmt.Errorf("list of tables %d in the place of %d: %w", number, sealed.manifest, pebble.ErrCorruption)
	}
	sum := crc32.New(castagnoli)
	if n, err := io.CopyN(sum, file, sealed.length); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read the list of tables: %w", err)
	} else if n < sealed.length || sum.Sum32() != sealed.sum {
		return fmt.Errorf("the list of tables is not what was sealed: %w", pebble.ErrCorruption)
	}
	return nil
}

// judgeRecords reads a list of tables that no seal speaks of. Any fault in it counts.
func judgeRecords(list io.Reader) error {
	for r := record.NewReader(list, 0); ; {
		one, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			_, err = io.Copy(io.Discard, one)
		}
		if err != nil {
			return fmt.Errorf("list of tables: %w: %w", err, pebble.ErrCorruption)
		}
	}
}

// judgeCursors tells, after the database was opened, whether a lane is behind what the
// seal says: then the end of the log is lost. Positions rise from one epoch to the next.
func judgeCursors(cursors [replication.Lanes]*cursor, sealed *seal) error {
	if sealed == nil {
		return nil
	}
	for lane, c := range cursors {
		switch at := sealed.positions[lane]; {
		case !sealed.served[lane]:
		case c == nil:
			return fmt.Errorf("the %s lane is gone, it was at %d: %w", replication.Lane(lane), at, pebble.ErrCorruption)
		case c.Position < at:
			return fmt.Errorf("the %s lane is at %d, it was at %d: %w", replication.Lane(lane), c.Position, at, pebble.ErrCorruption)
		}
	}
	return nil
}

func manifestNumber(fs vfs.FS, path string) (uint64, error) {
	kind, number, ok := parseFile(fs.PathBase(path))
	if !ok || kind != "MANIFEST" {
		return 0, fmt.Errorf("%s is no list of tables: %w", fs.PathBase(path), pebble.ErrCorruption)
	}
	return number, nil
}
