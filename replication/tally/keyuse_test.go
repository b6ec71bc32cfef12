package tally

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"skerry/pkg/natsserver/natstest"
)

func TestKeyUseTellsEachKeyOncePerReport(t *testing.T) {
	t.Parallel()
	nc := natstest.New(t).Connect(t)
	heard, err := nc.SubscribeSync(KeyUseSubjects)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	u := NewKeyUse("e1")
	want := []string{"01890000-0000-7000-8000-00000000000a", "01890000-0000-7000-8000-00000000000b"}
	for range 100 {
		u.Mark(want[0])
		u.Mark(want[1])
		u.Mark("")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := u.Run(ctx, nc); err != nil { // the report at the end
		t.Fatal(err)
	}
	message, err := heard.NextMsg(5 * time.Second)
	if err != nil {
		t.Fatal(err)
	}
	report, err := DecodeKeyUse(message.Data)
	slices.Sort(report.Keys)
	if err != nil || report.Edge != "e1" || !slices.Equal(report.Keys, want) || time.Since(report.At) > time.Minute {
		t.Errorf("%+v, %v", report, err)
	}
	if left := u.take(); len(left) != 0 {
		t.Errorf("%v would be told again", left)
	}
}

func TestKeyUseOfManyKeysIsSplit(t *testing.T) {
	t.Parallel()
	nc := natstest.New(t).Connect(t)
	heard, err := nc.SubscribeSync(KeyUseSubjects)
	if err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	u := NewKeyUse("e1")
	for i := range keysPerReport + 1 {
		u.Mark(fmt.Sprintf("01890000-0000-7000-8000-%012x", i))
	}
	u.report(nc)
	total := 0
	for range 2 {
		message, err := heard.NextMsg(5 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		report, err := DecodeKeyUse(message.Data)
		if err != nil {
			t.Fatal(err)
		}
		total += len(report.Keys)
	}
	if total != keysPerReport+1 {
		t.Error(total)
	}
}

func TestMarkingANotedKeyAllocatesNothing(t *testing.T) {
	u := NewKeyUse("e1")
	key := "01890000-0000-7000-8000-00000000000a"
	u.Mark(key)
	if n := testing.AllocsPerRun(1000, func() { u.Mark(key) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzDecodeKeyUse(f *testing.F) {
	f.Add(KeyUseReport{Edge: "e", At: time.Unix(1, 0), Keys: []string{"01890000-0000-7000-8000-00000000000a"}}.Encode())
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		report, err := DecodeKeyUse(data)
		if err == nil && (report.Edge == "" || len(report.Keys) > keysPerReport) {
			t.Errorf("%+v", report)
		}
	})
}

func BenchmarkMark(b *testing.B) {
	u := NewKeyUse("e1")
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			u.Mark("01890000-0000-7000-8000-00000000000a")
		}
	})
}
