package identity

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Stamp is when, where and as which number a change was received, as bytes that sort.
// A stamp decides which change of a trait is the newest, whatever order they are
// stored in; two edges' equal times are told apart by the edges' names.
type Stamp []byte

// NewStamp makes a stamp.
func NewStamp(receivedAt time.Time, edge string, number uint64) Stamp {
	// The sign bit is turned so that times before 1970 sort first.
	b := binary.BigEndian.AppendUint64(make([]byte, 0, 17+len(edge)), uint64(receivedAt.UnixMicro())^(1<<63))
	b = append(append(b, edge...), 0)
	return binary.BigEndian.AppendUint64(b, number)
}

// Trait is what is known of one property of a person. Value is nil when the newest
// writer removed it; Stamp is empty when nobody ever set or removed it. Once is the
// oldest $set_once newer than that writer: it shows while there is no value.
type Trait struct {
	Value     []byte
	Stamp     Stamp
	Once      []byte
	OnceStamp Stamp // nil: none
}

// Shown is the trait's present value; nil means that it is absent.
func (t Trait) Shown() []byte {
	if t.Value != nil {
		return t.Value
	}
	return t.Once
}

// Merge joins what two sides know. It does not matter in which order things merge.
// (Exception: a removal that is stored after two $set_once, one older and one newer
// than itself, has forgotten the newer one.)
func (t Trait) Merge(o Trait) Trait {
	merged := t
	if bytes.Compare(o.Stamp, t.Stamp) > 0 {
		merged.Value, merged.Stamp = o.Value, o.Stamp
	}
	merged.Once, merged.OnceStamp = nil, nil
	for _, side := range [...]Trait{t, o} {
		if bytes.Compare(side.OnceStamp, merged.Stamp) <= 0 {
			continue
		}
		if merged.OnceStamp == nil || bytes.Compare(side.OnceStamp, merged.OnceStamp) < 0 {
			merged.Once, merged.OnceStamp = side.Once, side.OnceStamp
		}
	}
	return merged
}

// onConflictMerge is Merge in SQL.
const onConflictMerge = `
ON CONFLICT (project_id, environment, distinct_id, name) DO UPDATE SET
	value = CASE WHEN excluded.stamp > p.stamp THEN excluded.value ELSE p.value END,
	stamp = greatest(p.stamp, excluded.stamp),
	once = CASE
		WHEN p.once_stamp > greatest(p.stamp, excluded.stamp)
			AND NOT coalesce(excluded.once_stamp > greatest(p.stamp, excluded.stamp) AND excluded.once_stamp < p.once_stamp, false)
		THEN p.once
		WHEN excluded.once_stamp > greatest(p.stamp, excluded.stamp) THEN excluded.once
	END,
	once_stamp = least(
		CASE WHEN p.once_stamp > greatest(p.stamp, excluded.stamp) THEN p.once_stamp END,
		CASE WHEN excluded.once_stamp > greatest(p.stamp, excluded.stamp) THEN excluded.once_stamp END)`

// Change is a people operation. DistinctID is resolved already.
type Change struct {
	Scope      Scope
	DistinctID string
	ReceivedAt time.Time
	Stamp      Stamp
	Properties []byte // raw JSON object; nil: none

	traits map[string]Trait // what Read has found
}

const setOnce = "$set_once"

// Read takes the traits out of Properties. A change that cannot be read cannot be merged.
func (c *Change) Read() error {
	traits := map[string]Trait{}
	if c.Properties == nil {
		c.traits = traits
		return nil
	}
	var properties map[string]json.RawMessage
	if err := json.Unmarshal(c.Properties, &properties); err != nil {
		return fmt.Errorf("read properties: %w", err)
	}
	var once map[string]json.RawMessage
	if raw, ok := properties[setOnce]; ok && len(raw) > 0 && raw[0] == '{' {
		if err := json.Unmarshal(raw, &once); err != nil {
			return fmt.Errorf("read %s: %w", setOnce, err)
		}
		delete(properties, setOnce)
	}
	for name, value := range properties {
		traits[name] = Trait{Value: present(value), Stamp: c.Stamp}
	}
	for name, value := range once {
		// Within one operation a plain value comes first; removed by the same operation,
		// the trait is absent.
		t := traits[name]
		if value := present(value); value != nil && t.Value == nil {
			t.Once, t.OnceStamp = value, append(slices.Clip(c.Stamp), 1) // just behind the operation's own removal
			traits[name] = t
		}
	}
	c.traits = traits
	return nil
}

// Overlong tells whether what was read names a property that no index holds.
func (c *Change) Overlong() bool {
	for name := range c.traits {
		if len(name) > MaxIDBytes {
			return true
		}
	}
	return false
}

// present is nil for a JSON null.
func present(value json.RawMessage) []byte {
	if string(value) == "null" {
		return nil
	}
	return value
}

const (
	upsertSeenSQL = `
INSERT INTO profiles AS p (project_id, environment, distinct_id, first_seen, last_seen)
SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::timestamptz[], $5::timestamptz[])
ON CONFLICT (project_id, environment, distinct_id) DO UPDATE SET
	first_seen = least(p.first_seen, excluded.first_seen), last_seen = greatest(p.last_seen, excluded.last_seen)
WHERE excluded.first_seen < p.first_seen OR excluded.last_seen > p.last_seen`
	upsertValuesSQL = `
INSERT INTO profile_values AS p (project_id, environment, distinct_id, name, value, stamp, once, once_stamp)
SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::text[], $4::text[], $5::json[], $6::bytea[], $7::json[], $8::bytea[])` + onConflictMerge
)

type traitKey struct {
	id   ID
	name string
}

func (k traitKey) compare(o traitKey) int {
	return cmp.Or(k.id.compare(o.id), cmp.Compare(k.name, o.name))
}

func (i ID) compare(o ID) int {
	return cmp.Or(bytes.Compare(i.Scope.Project[:], o.Scope.Project[:]),
		cmp.Compare(i.Scope.Environment, o.Scope.Environment), cmp.Compare(i.Text, o.Text))
}

// Merge brings changes that were read into the profiles. The caller holds their scopes
// shared. Rows are written sorted, so that two lanes cannot wait for each other.
func Merge(ctx context.Context, tx pgx.Tx, changes []Change) error {
	seen := map[ID][2]time.Time{}
	traits := map[traitKey]Trait{}
	for i := range changes {
		c := &changes[i]
		id := ID{c.Scope, c.DistinctID}
		span, ok := seen[id]
		if !ok {
			span = [2]time.Time{c.ReceivedAt, c.ReceivedAt}
		}
		seen[id] = [2]time.Time{earlier(c.ReceivedAt, span[0]), later(c.ReceivedAt, span[1])}
		for name, t := range c.traits {
			key := traitKey{id, name}
			traits[key] = traits[key].Merge(t)
		}
	}
	if err := upsertSeen(ctx, tx, seen); err != nil {
		return err
	}
	return upsertValues(ctx, tx, traits)
}

func upsertSeen(ctx context.Context, tx pgx.Tx, seen map[ID][2]time.Time) error {
	ids := make([]ID, 0, len(seen))
	for id := range seen {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, ID.compare)
	var scopes []Scope
	var texts []string
	var first, last []time.Time
	for _, id := range ids {
		scopes, texts = append(scopes, id.Scope), append(texts, id.Text)
		first, last = append(first, seen[id][0]), append(last, seen[id][1])
	}
	projects, environments := spread(scopes)
	if _, err := tx.Exec(ctx, upsertSeenSQL, projects, environments, texts, first, last); err != nil {
		return fmt.Errorf("store profiles: %w", err)
	}
	return nil
}

func upsertValues(ctx context.Context, tx pgx.Tx, traits map[traitKey]Trait) error {
	if len(traits) == 0 {
		return nil
	}
	keys := make([]traitKey, 0, len(traits))
	for k := range traits {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, traitKey.compare)
	var scopes []Scope
	var texts, names []string
	var values, onces []*string
	var stamps, onceStamps [][]byte
	for _, k := range keys {
		t := traits[k]
		scopes, texts, names = append(scopes, k.id.Scope), append(texts, k.id.Text), append(names, k.name)
		values, onces = append(values, text(t.Value)), append(onces, text(t.Once))
		stamp := []byte(t.Stamp)
		if stamp == nil {
			stamp = []byte{}
		}
		stamps, onceStamps = append(stamps, stamp), append(onceStamps, t.OnceStamp)
	}
	projects, environments := spread(scopes)
	if _, err := tx.Exec(ctx, upsertValuesSQL, projects, environments, texts, names, values, stamps, onces, onceStamps); err != nil {
		return fmt.Errorf("store traits: %w", err)
	}
	return nil
}

// text keeps JSON as it is written: as a []byte it would be sent as an encoded value.
func text(raw []byte) *string {
	if raw == nil {
		return nil
	}
	s := string(raw)
	return &s
}

// raw is the reverse of text.
func raw(text *string) []byte {
	if text == nil {
		return nil
	}
	return []byte(*text)
}
