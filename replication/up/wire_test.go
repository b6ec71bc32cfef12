package up

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"reflect"
	"testing"
)

// operations are one of every shape that the format has.
func operations() map[Lane][]Operation {
	ref := &Reference{Key: "edge/1/event/7", Size: 20 << 20, SHA256: sha256.Sum256([]byte("x")),
		Properties: Span{Offset: 5, Length: 19 << 20}}
	return map[Lane][]Operation{
		LaneEvent: {
			{EventName: []byte("Zahlung ✓"), DistinctID: []byte("u1"), Timestamp: 1767323045678000},
			{EventName: []byte("e"), DistinctID: []byte("u2"), AnonID: []byte{}, InsertID: []byte("i"), LibVersion: []byte("1.2"),
				Timestamp: -1, Properties: []byte(`{"a": 1e999}`), DefaultProperties: []byte(`{}`)},
			{EventName: []byte("big"), DistinctID: []byte("u3"), Ref: ref},
			{Unstorable: ReasonNUL, DistinctID: []byte("u4"), Raw: []byte(`{"event_name":"a\u0000"}`)},
			{Unstorable: ReasonTooLong, DistinctID: []byte("u5"), Ref: &Reference{Key: "k", Size: 1 << 40}},
			{EventName: []byte("e"), DistinctID: []byte("u6"), Properties: bytes.Repeat([]byte("x"), 20000)},
		},
		LanePeople: {
			{DistinctID: []byte("u1")},
			{DistinctID: []byte("u1"), Properties: []byte(`{"$set_once":{"a":1},"b":null}`)},
			{DistinctID: []byte("u1"), Ref: ref},
		},
		LaneAlias: {{AliasID: []byte("a1"), DistinctID: []byte("u1"), Timestamp: 1}},
		LaneCrash: {
			{ID: [16]byte{1, 2}, Raw: []byte(`{"platform":"ios"}`)},
			{ID: [16]byte{3}, Ref: &Reference{Key: "c", Size: 17 << 20}},
			{Unstorable: ReasonSurrogate, ID: [16]byte{4}, DistinctID: []byte{}, Raw: []byte(`{"a":"\ud800"}`)},
		},
	}
}

func block(lane Lane, first uint64, ops []Operation) []byte {
	var w BlockWriter
	w.Reset(Header{Lane: lane, Environment: Test, ReceivedAt: 1767323045678901, Project: [16]byte{9, 8}, RequestID: "req-1"})
	for i := range ops {
		w.Append(&ops[i])
	}
	b := bytes.Clone(w.Bytes())
	SetFirst(b, first)
	return b
}

func TestWhatIsEncodedIsDecoded(t *testing.T) {
	t.Parallel()
	for lane, ops := range operations() {
		b, rest, err := DecodeBlock(block(lane, 41, ops))
		if err != nil || len(rest) != 0 {
			t.Fatalf("%s: rest %d, %v", lane, len(rest), err)
		}
		want := Header{Lane: lane, Environment: Test, First: 41, Count: uint32(len(ops)), ReceivedAt: 1767323045678901,
			Project: [16]byte{9, 8}, RequestID: "req-1"}
		if b.Header != want {
			t.Errorf("%s: header %+v, want %+v", lane, b.Header, want)
		}
		var op Operation
		i := 0
		r := b.Operations()
		for ; r.Next(&op); i++ {
			if !reflect.DeepEqual(op, ops[i]) {
				t.Errorf("%s %d: got %+v, want %+v", lane, i, op, ops[i])
			}
			if r.Number() != 41+uint64(i) {
				t.Errorf("%s %d: number %d", lane, i, r.Number())
			}
		}
		if r.Err() != nil || i != len(ops) {
			t.Errorf("%s: %d of %d operations, %v", lane, i, len(ops), r.Err())
		}
	}
}

func TestWireBytesNeverChange(t *testing.T) {
	t.Parallel()
	// An edge of an older version ships what lies on its disk to a newer centre: these bytes are a promise.
	got := hex.EncodeToString(block(LaneAlias, 2, []Operation{{AliasID: []byte("a1"), DistinctID: []byte("u1"), Timestamp: 1}}))
	const golden = "37000000" + "01" + "01" + "02" + "00" + "0200000000000000" + "01000000" +
		"354f57f65e470600" + "09080000000000000000000000000000" + "05" + "7265712d31" +
		"08" + "00" + "026131" + "027531" + "02"
	if got != golden {
		t.Errorf("block is\n%s, want\n%s", got, golden)
	}
}

func packers(t testing.TB) (*Packer, *Unpacker) {
	p, err := NewPacker()
	if err != nil {
		t.Fatal(err)
	}
	u, err := NewUnpacker()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return p, u
}

func noise(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	_, _ = r.Read(b)
	return b
}

func TestMessagesStayUnderTheirBoundAndArriveWhole(t *testing.T) {
	t.Parallel()
	p, u := packers(t)
	small := block(LaneEvent, 7, operations()[LaneEvent])
	for name, data := range map[string][]byte{
		"one block":                      small,
		"a full budget of noise":         block(LaneCrash, 7, []Operation{{Raw: noise(PackBudget - 200)}}),
		"the largest operation, noise":   block(LaneCrash, 7, []Operation{{Raw: noise(MaxInlineBytes)}}),
		"the largest operation, repeats": block(LaneCrash, 7, []Operation{{Raw: bytes.Repeat([]byte("ab"), MaxInlineBytes/2)}}),
	} {
		head, _, _ := DecodeBlock(data)
		in := Batch{Incarnation: Incarnation{ID: [16]byte{5}, Ordinal: 3}, Lane: head.Lane, First: 7, Count: head.Count, Data: data}
		messages, err := p.Pack(&in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for i, m := range messages {
			if len(m) > MaxMessageBytes {
				t.Errorf("%s: message of %d bytes", name, len(m))
			}
			got, ok, err := u.Add(m)
			if err != nil || ok != (i == len(messages)-1) {
				t.Fatalf("%s: part %d of %d: %v %v", name, i, len(messages), ok, err)
			}
			if ok && !reflect.DeepEqual(got, in) {
				t.Errorf("%s: another batch came out", name)
			}
		}
	}
	head := block(LaneCrash, 1, []Operation{{Raw: noise(PackBudget - 200)}})
	messages, _ := p.Pack(&Batch{Lane: LaneCrash, First: 1, Count: 1, Data: head})
	if len(messages) != 1 {
		t.Errorf("a full budget takes %d messages, want 1", len(messages))
	}
}

func TestPartOutOfTurnIsRefusedAndTheBatchCanBeSentAgain(t *testing.T) {
	t.Parallel()
	p, u := packers(t)
	b := Batch{Lane: LaneCrash, First: 1, Count: 1, Data: block(LaneCrash, 1, []Operation{{Raw: noise(2 << 20)}})}
	parts, err := p.Pack(&b)
	if err != nil || len(parts) < 4 {
		t.Fatalf("%d parts, %v", len(parts), err)
	}
	whole, _ := p.Pack(&Batch{Lane: LaneCrash, First: 9, Count: 1, Data: block(LaneCrash, 9, []Operation{{Raw: []byte("{}")}})})
	for name, sequence := range map[string][][]byte{
		"starts in the middle":    {parts[1]},
		"one is missing":          {parts[0], parts[2]},
		"one comes twice":         {parts[0], parts[1], parts[1]},
		"another message between": {parts[0], whole[0], parts[1]},
	} {
		var last error
		for _, m := range sequence {
			_, _, last = u.Add(m)
		}
		if !errors.Is(last, ErrOutOfTurn) {
			t.Errorf("%s: %v", name, last)
		}
		for i, m := range parts {
			if _, ok, err := u.Add(m); err != nil || ok != (i == len(parts)-1) {
				t.Fatalf("%s: sent again, part %d: %v %v", name, i, ok, err)
			}
		}
	}
}

func TestGapInsideABatchIsCorrupt(t *testing.T) {
	t.Parallel()
	data := append(block(LaneAlias, 1, operations()[LaneAlias]), block(LaneAlias, 3, operations()[LaneAlias])...)
	b := Batch{Lane: LaneAlias, First: 1, Count: 3, Data: data}
	if _, err := b.Blocks(); !errors.Is(err, ErrCorrupt) {
		t.Errorf("gap: %v", err)
	}
}

func TestBombIsRefused(t *testing.T) {
	t.Parallel()
	p, u := packers(t)
	m := p.enc.EncodeAll(make([]byte, 64<<20), make([]byte, messageHeaderBytes))
	copy(m, "SKU\x01\x03")
	m[8], m[12], m[16] = 1, 1, 1
	if _, _, err := u.Add(m); !errors.Is(err, ErrCorrupt) {
		t.Errorf("64 MiB of zeros: %v", err)
	}
}

func FuzzDecodeBlock(f *testing.F) {
	for lane, ops := range operations() {
		f.Add(block(lane, 1, ops))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b, rest, err := DecodeBlock(data)
		if err != nil {
			return
		}
		var ops []Operation
		var op Operation
		r := b.Operations()
		for r.Next(&op) {
			ops = append(ops, op)
		}
		if r.Err() != nil {
			return
		}
		// What decodes is stable: encoded anew it decodes to the same.
		var w BlockWriter
		w.Reset(b.Header)
		for i := range ops {
			w.Append(&ops[i])
		}
		again := bytes.Clone(w.Bytes())
		SetFirst(again, b.First)
		c, _, err := DecodeBlock(again)
		if err != nil || c.Header != b.Header {
			t.Fatalf("%+v became %+v, %v (rest %d)", b.Header, c.Header, err, len(rest))
		}
		r = c.Operations()
		for i := 0; r.Next(&op); i++ {
			if !reflect.DeepEqual(op, ops[i]) {
				t.Fatalf("%+v became %+v", ops[i], op)
			}
		}
		if r.Err() != nil {
			t.Fatal(r.Err())
		}
	})
}

func FuzzUnpack(f *testing.F) {
	p, _ := packers(f)
	for lane, ops := range operations() {
		messages, err := p.Pack(&Batch{Lane: lane, First: 1, Count: uint32(len(ops)), Data: block(lane, 1, ops)})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(messages[0])
	}
	f.Fuzz(func(t *testing.T, m []byte) {
		_, u := packers(t)
		b, ok, err := u.Add(m)
		if err != nil || !ok {
			return
		}
		if blocks, err := b.Blocks(); err == nil && len(blocks) == 0 {
			t.Fatal("a batch without blocks")
		}
	})
}

func FuzzHellosAndAnnouncements(f *testing.F) {
	f.Add(mustMarshal(hello{Lanes: []laneHello{{Lane: "event", Received: 3, Pending: 1}}}))
	f.Add(mustMarshal(announcement{Lane: "alias", Incarnation: "00000000000000000000000000000001", Stored: 3, Want: 4}))
	f.Fuzz(func(t *testing.T, data []byte) {
		if h, err := decodeHello(data); err == nil && len(h.Lanes) > len(Lanes) {
			t.Error("more lanes than there are")
		}
		if a, lane, _, err := decodeAnnouncement(data); err == nil && (!lane.Valid() || a.Want != 0 && a.Want <= a.Stored) {
			t.Error("an impossible announcement was accepted")
		}
	})
}
