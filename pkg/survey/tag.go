package survey

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"time"
)

// tagFormat is part of every tag: raise it when the rendering of the list changes,
// so that clients do not keep what an older version rendered.
const tagFormat = "1"

// Tag makes the entity tag of a project's list out of the (id, updated_at) pair of
// every survey of the project, drafts included. Pairs come in ascending order of
// id, so that every edge makes the same tag. Since an id never repeats and
// updated_at rises with every save, a tag never returns for other content.
type Tag struct{ h hash.Hash }

// NewTag starts the tag of a project's list.
func NewTag(projectID string) *Tag {
	t := &Tag{h: sha256.New()}
	t.text(tagFormat)
	t.text(projectID)
	return t
}

// Add takes in one survey.
func (t *Tag) Add(id string, updatedAt time.Time) {
	t.text(id)
	var at [8]byte
	binary.BigEndian.PutUint64(at[:], uint64(updatedAt.UnixMicro()))
	_, _ = t.h.Write(at[:])
}

// String is the tag with its quotes.
func (t *Tag) String() string {
	return `"` + hex.EncodeToString(t.h.Sum(nil)[:16]) + `"`
}

// text writes s behind its length, so that no two lists run together.
func (t *Tag) text(s string) {
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(s)))
	_, _ = t.h.Write(size[:])
	_, _ = t.h.Write([]byte(s))
}
