package replication

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

const (
	project = "0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f"
	hash    = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
)

func TestSubjectsReadBack(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		made Subject
		text string
		want Parts
	}{
		{EpochSubject(Normal), "state.epoch", Parts{Kind: KindEpoch}},
		{EpochSubject(Urgent), "urgent.epoch", Parts{Kind: KindEpoch, Lane: Urgent}},
		{KeySubject(hash), "state.key." + hash, Parts{Kind: KindKey, Name: hash}},
		{RevokedSubject(hash), "urgent.revoked." + hash, Parts{Kind: KindRevoked, Lane: Urgent, Name: hash}},
		{ProjectSubject(project), "state.project." + project, Parts{Kind: KindProject, Project: project}},
		{FlagSubject(project, "live", "v1."), "state." + project + ".live.flag.djEu", Parts{Kind: KindFlag, Project: project, Env: "live", Name: "v1."}},
		{FlagSubject(project, "test", ".v1"), "state." + project + ".test.flag.LnYx", Parts{Kind: KindFlag, Project: project, Env: "test", Name: ".v1"}},
		{ConfigSubject(project, "live", "a..b"), "state." + project + ".live.config.YS4uYg", Parts{Kind: KindConfig, Project: project, Env: "live", Name: "a..b"}},
		{HaltSubject(project, "live", "a..b"), "urgent." + project + ".live.halt.YS4uYg", Parts{Kind: KindHalt, Lane: Urgent, Project: project, Env: "live", Name: "a..b"}},
		{CohortSubject(project, "beta"), "state." + project + ".cohort.YmV0YQ", Parts{Kind: KindCohort, Project: project, Name: "beta"}},
		{CohortShardSubject(project, "beta", 12), "state." + project + ".members.YmV0YQ.12", Parts{Kind: KindCohortShard, Project: project, Name: "beta", Shard: 12}},
		{SurveySubject(project, "psv_1"), "state." + project + ".survey.cHN2XzE", Parts{Kind: KindSurvey, Project: project, Name: "psv_1"}},
		{UsageSubject(project), "state." + project + ".usage", Parts{Kind: KindUsage, Project: project}},
	} {
		if string(c.made) != c.text {
			t.Errorf("made %s, want %s", c.made, c.text)
		}
		got, err := c.made.Parse()
		if err != nil || got != c.want {
			t.Errorf("%s: parsed %+v, %v; want %+v", c.made, got, err, c.want)
		}
		if c.made.Lane() != c.want.Lane {
			t.Errorf("%s: lane %s", c.made, c.made.Lane())
		}
	}
}

func TestForeignSubjectsAreRefused(t *testing.T) {
	t.Parallel()
	for _, s := range []Subject{
		"", ".", "state", "state.", "state.epoch.", "state..epoch", "state.other", "state.key.ABC", "other.epoch",
		"state.p.live.flag.", "state.p.live.flag.a=", "state.p.prod.flag.djEu", "state.p.live.halt.djEu",
		"urgent.p.live.flag.djEu", "state.p.members.djEu.01", "state.p.members.djEu.-1", "state.a.b.c.d.e.f.g",
		FlagSubject("p", "live", ""), FlagSubject("a b", "live", "k"), Subject("state.project." + strings.Repeat("x", 600)),
	} {
		if _, err := s.Parse(); !errors.Is(err, ErrSubject) {
			t.Errorf("%q: %v, want ErrSubject", s, err)
		}
	}
}

func TestWhatANewerVersionNamesMayTravel(t *testing.T) {
	t.Parallel()
	for s, want := range map[Subject]bool{
		"state.other": true, "urgent.x.y": true, "state.a.b.c.d.e.f.g": true, FlagSubject(project, "live", "v1."): true, EpochSubject(Urgent): true,
		"": false, ".": false, "state": false, "state.": false, "urgent": false, "urgent.": false, "state..epoch": false, "state.epoch.": false,
		"stateful.epoch": false, "other.epoch": false, "state.>": false, "state.*": false, "state.a b": false, "state.a=": false,
		FlagSubject(project, "live", ""):               false,
		Subject("state." + strings.Repeat("x", 512-6)): true, Subject("state." + strings.Repeat("x", 512-5)): false,
	} {
		if err := s.Valid(); (err == nil) != want || err != nil && !errors.Is(err, ErrSubject) {
			t.Errorf("%q: %v", s, err)
		}
	}
}

func TestEnvironmentIsOneRange(t *testing.T) {
	t.Parallel()
	prefix := EnvironmentPrefix(Normal, project, "live")
	for _, s := range []Subject{FlagSubject(project, "live", "a"), ConfigSubject(project, "live", "b")} {
		if !strings.HasPrefix(string(s), prefix) || !strings.HasPrefix(string(s), ProjectPrefix(Normal, project)) {
			t.Errorf("%s is outside its environment's range", s)
		}
	}
	if strings.HasPrefix(string(FlagSubject(project, "test", "a")), prefix) {
		t.Error("test lies in live's range")
	}
	if s := HaltSubject(project, "test", "a"); !strings.HasPrefix(string(s), EnvironmentPrefix(Urgent, project, "test")) {
		t.Errorf("%s is outside its environment's range", s)
	}
}

func TestRevisionNeverFalls(t *testing.T) {
	t.Parallel()
	r := Revision{Normal: 7, Urgent: 3}
	if got := r.Max(Revision{Normal: 5, Urgent: 3}); got != r {
		t.Errorf("lower positions changed it to %s", got)
	}
	if got := r.Max(Revision{Normal: 2, Urgent: 8}).String(); got != "7.8" {
		t.Errorf("got %s, want 7.8", got)
	}
	back, err := ParseRevision("18446744073709551615.0")
	if err != nil || back.String() != "18446744073709551615.0" {
		t.Errorf("got %s, %v", back, err)
	}
	for _, bad := range []string{"", "1", "1.", ".1", "1.2.3", "-1.0", "1.x"} {
		if _, err := ParseRevision(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func sample(body []byte) Document {
	return Document{
		Lane: Urgent, Subject: HaltSubject(project, "live", "v1."), Position: 11, TxFirst: 10, TxLast: 12, Through: 40,
		Commit: Token{1, 2, 3}, Epoch: Epoch{4, 5, 6}, ChangedAt: 1700000000000001, Body: body,
	}
}

func same(a, b Document) bool {
	return bytes.Equal(a.Append(nil), b.Append(nil)) && a.Tombstone() == b.Tombstone()
}

func TestEnvelopeReadsBack(t *testing.T) {
	t.Parallel()
	for _, body := range [][]byte{nil, []byte(`{}`), bytes.Repeat([]byte("x"), MaxBody)} {
		d := sample(body)
		got, err := Decode(d.Append(nil))
		if err != nil || !same(got, d) || got.Subject != d.Subject || got.Position != 11 || got.Through != 40 || got.ChangedAt != d.ChangedAt {
			t.Errorf("body of %d bytes: %v", len(body), err)
		}
	}
}

func TestDamagedEnvelopeIsRefused(t *testing.T) {
	t.Parallel()
	d := sample([]byte(`{"a":1}`))
	whole := d.Append(nil)
	for i := range whole {
		if _, err := Decode(whole[:i]); !errors.Is(err, ErrEnvelope) {
			t.Fatalf("cut at %d: %v", i, err)
		}
		bent := bytes.Clone(whole)
		bent[i] ^= 0x10
		if _, err := Decode(bent); !errors.Is(err, ErrEnvelope) {
			t.Fatalf("bent at %d: %v", i, err)
		}
	}
}

func TestImpossibleDocumentsAreRefused(t *testing.T) {
	t.Parallel()
	for name, bend := range map[string]func(*Document){
		"other lane":                 func(d *Document) { d.Lane = Normal },
		"position 0":                 func(d *Document) { d.Position, d.TxFirst = 0, 0 },
		"before its transaction":     func(d *Document) { d.Position = 9 },
		"after its transaction":      func(d *Document) { d.Position = 13 },
		"body too large":             func(d *Document) { d.Body = make([]byte, MaxBody+1) },
		"body empty, not tombstone":  func(d *Document) { d.Body = []byte{} },
		"subject of no lane":         func(d *Document) { d.Subject = "x.y" },
		"subject with a wild card":   func(d *Document) { d.Subject = "urgent.>" },
		"subject with an empty name": func(d *Document) { d.Subject = HaltSubject(project, "live", "") },
	} {
		d := sample([]byte(`{}`))
		bend(&d)
		if err := d.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func FuzzDecode(f *testing.F) {
	d := sample([]byte(`{"a":1}`))
	f.Add(d.Append(nil))
	d.Body = nil
	f.Add(d.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := Decode(b)
		if err != nil {
			return
		}
		if again := d.Append(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x reads as %+v, which writes %x", b, d, again)
		}
	})
}

func FuzzSubject(f *testing.F) {
	f.Add(string(FlagSubject(project, "live", "v1.")))
	f.Add(string(CohortShardSubject(project, "beta", 3)))
	f.Fuzz(func(t *testing.T, s string) {
		p, err := Subject(s).Parse()
		if err == nil && p.Lane != Subject(s).Lane() {
			t.Fatalf("%q: parsed lane %s, named lane %s", s, p.Lane, Subject(s).Lane())
		}
	})
}
