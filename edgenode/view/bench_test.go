package view

import (
	"strconv"
	"testing"

	"skerry/pkg/apikey"
	"skerry/pkg/state"
	"skerry/replication"
)

func BenchmarkKeyAndEnvironment(b *testing.B) {
	e := withProject(b, Options{}, "a")
	key := []byte("sk_live_LLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLL")
	e.put(map[replication.Subject]any{replication.KeySubject(apikey.OfBytes(key).String()): state.Key{ID: "1", ProjectID: project, Environment: "live"}})
	b.ReportAllocs()
	for b.Loop() {
		k, _ := e.views.Key(apikey.OfBytes(key))
		if _, ok := e.views.Environment(k.ProjectID, k.Environment); !ok {
			b.Fatal("no environment")
		}
	}
}

func BenchmarkUnknownKey(b *testing.B) {
	e := withProject(b, Options{}, "a")
	bodies := map[replication.Subject]any{}
	for i := range 20000 {
		bodies[replication.KeySubject(apikey.Of(strconv.Itoa(i)).String())] = state.Key{ID: "1", ProjectID: project, Environment: "live"}
	}
	e.put(bodies)
	n := 0
	for b.Loop() {
		n++
		if _, ok := e.views.Key(apikey.Of("x" + strconv.Itoa(n))); ok {
			b.Fatal("known")
		}
	}
}

// BenchmarkOneFlagOfTenThousand is the time from the disk's change to the new environment.
func BenchmarkOneFlagOfTenThousand(b *testing.B) {
	e := withProject(b, Options{})
	bodies := map[replication.Subject]any{}
	for i := range 10000 {
		k := "f" + strconv.Itoa(i)
		bodies[flag(k)] = flagBody(k, 1)
	}
	e.put(bodies)
	e.env("live")
	n := int64(1)
	for b.Loop() {
		n++
		e.put(map[replication.Subject]any{flag("f5000"): flagBody("f5000", n)})
		if f, _ := e.env("live").Flag("f5000"); f.Position != e.at[replication.Normal] {
			b.Fatal("old")
		}
	}
}
