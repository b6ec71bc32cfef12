package view

import (
	"strconv"
	"sync"
	"testing"
	"time"

	"skerry/pkg/apikey"
	"skerry/pkg/state"
	"skerry/replication"
)

func TestKeyOpensUntilRevokedOrExpired(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{})
	hash, old := apikey.Of("sk_live_new"), apikey.Of("sk_live_old")
	if _, ok := e.views.Key(hash); ok {
		t.Error("a key that does not exist opens")
	}
	soon := time.Now().Add(time.Hour)
	e.put(map[replication.Subject]any{
		replication.KeySubject(hash.String()): state.Key{ID: "1", ProjectID: project, Environment: "live"},
		replication.KeySubject(old.String()):  state.Key{ID: "2", ProjectID: project, Environment: "test", ExpiresAt: &soon},
	})
	if k, ok := e.views.Key(hash); !ok || k.ID != "1" || k.ProjectID != project || k.Environment != "live" {
		t.Errorf("%+v", k)
	}
	if k, ok := e.views.Key(old); !ok || k.ID != "2" {
		t.Errorf("in its grace: %+v, %v", k, ok)
	}
	past := time.Now().Add(-time.Second)
	e.put(map[replication.Subject]any{replication.KeySubject(old.String()): state.Key{ID: "2", ProjectID: project, ExpiresAt: &past}})
	if _, ok := e.views.Key(old); ok {
		t.Error("past its grace, it opens")
	}
	e.put(map[replication.Subject]any{replication.RevokedSubject(hash.String()): state.Revoked{}})
	if _, ok := e.views.Key(hash); ok {
		t.Error("revoked, it opens")
	}
}

func TestRevocationBeatsAConcurrentRead(t *testing.T) {
	t.Parallel()
	e := withProject(t, Options{})
	for i := range 200 {
		hash := apikey.Of(strconv.Itoa(i))
		e.put(map[replication.Subject]any{replication.KeySubject(hash.String()): state.Key{ID: "1", ProjectID: project}})
		var reading sync.WaitGroup
		for range 4 {
			reading.Go(func() { e.views.Key(hash) })
		}
		e.put(map[replication.Subject]any{replication.RevokedSubject(hash.String()): state.Revoked{}})
		reading.Wait()
		if _, ok := e.views.Key(hash); ok {
			t.Fatal("a reader has brought a revoked key back")
		}
	}
}
