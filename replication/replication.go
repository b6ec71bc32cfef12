// Package replication is what both planes agree on about state on its way down to the
// edges: documents at positions.
//
// A [Document] is what an edge must know about one thing: a key, a flag, a survey. The
// write plane allots it a [Position] in the transaction that changes it, a stream
// carries it, and the edge stores it. Two lanes of the same mechanism exist so that a
// halt or a revocation overtakes any backlog of ordinary changes without breaking the
// order of either.
//
// Promises, which the publisher and the follower in the package down keep together:
//
//   - Position order is commit order, within a lane and an epoch. A lower position is
//     always older.
//   - An edge never serves half of a transaction's documents of one lane.
//   - A [Revision] never falls and never stands for two different contents. It is equal
//     on every edge.
//   - There is one recovery, whatever happens to a stream, a database or an edge's disk:
//     a new epoch, or all documents read again, while the old state is served.
//
// Not promised: that the two lanes of one transaction appear together (the urgent one
// usually comes first), and that an edge sees every version of a document (only the
// newest counts).
//
// The package imports neither a database nor a disk engine: down declares the few methods
// it needs of each.
package replication

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// MaxBody is the largest body of a document. A mutation that would exceed it is refused
// (400 too_large).
const MaxBody = 512 << 10

// Lane is one of the two independent orders of documents. Each has its own positions,
// stream and cursor.
type Lane uint8

const (
	// Normal carries everything but what Urgent carries.
	Normal Lane = 0
	// Urgent carries halts, resumes and revocations.
	Urgent Lane = 1
)

// Lanes is how many lanes there are: range over it, in the order in which their rows
// are locked.
const Lanes Lane = 2

// String is the lane's name in metrics and logs: "normal" or "urgent".
func (l Lane) String() string {
	switch l {
	case Normal:
		return "normal"
	case Urgent:
		return "urgent"
	}
	return "lane(" + strconv.Itoa(int(l)) + ")"
}

// Stream is the name of the lane's JetStream stream.
func (l Lane) Stream() string {
	if l == Urgent {
		return "STATE_URGENT"
	}
	return "STATE"
}

// Subjects is the subject filter of the lane's stream.
func (l Lane) Subjects() string { return l.root() + "." + ">" }

// Heartbeat is the (unstored) subject on which the lane's publisher says every second how
// far it is.
func (l Lane) Heartbeat() string { return "skerry.heartbeat." + l.String() }

// root is the first token of every subject of the lane.
func (l Lane) root() string {
	if l == Urgent {
		return "urgent"
	}
	return "state"
}

// Position orders the documents of a lane. 0 is before the first.
type Position uint64

// Revision is the pair of highest positions among some set of documents, one of
// each lane. It identifies the set's content: it never falls and never repeats for
// other content.
type Revision struct{ Normal, Urgent Position }

// String prints "<normal>.<urgent>".
func (r Revision) String() string { return string(r.Append(nil)) }

// Append appends String's text to b.
func (r Revision) Append(b []byte) []byte {
	b = strconv.AppendUint(b, uint64(r.Normal), 10)
	b = append(b, '.')
	return strconv.AppendUint(b, uint64(r.Urgent), 10)
}

// Max is, lane by lane, the higher of two revisions.
func (r Revision) Max(o Revision) Revision {
	return Revision{Normal: max(r.Normal, o.Normal), Urgent: max(r.Urgent, o.Urgent)}
}

// ParseRevision reads String's text.
func ParseRevision(s string) (Revision, error) {
	n, u, ok := strings.Cut(s, ".")
	if !ok {
		return Revision{}, fmt.Errorf("revision %q has no dot", s)
	}
	normal, err := strconv.ParseUint(n, 10, 64)
	if err != nil {
		return Revision{}, fmt.Errorf("revision %q: %w", s, err)
	}
	urgent, err := strconv.ParseUint(u, 10, 64)
	if err != nil {
		return Revision{}, fmt.Errorf("revision %q: %w", s, err)
	}
	return Revision{Normal: Position(normal), Urgent: Position(urgent)}, nil
}

// Kind says what a document is about.
type Kind uint8

const (
	KindEpoch       Kind = iota + 1 // the lane's marker: its stream is complete for this epoch
	KindKey                         // an API key, by the SHA-256 of its text
	KindProject                     // a project's settings
	KindFlag                        // a flag of an environment
	KindConfig                      // a config item of an environment
	KindCohort                      // a cohort's definition
	KindCohortShard                 // some of a cohort's members, by hash
	KindSurvey                      // a survey, whole
	KindUsage                       // a project's counters of the month
	KindHalt                        // urgent: overlays its flag
	KindRevoked                     // urgent: overlays its key
)

// Subject names a document: tokens of [A-Za-z0-9_-] joined by dots, the first being the
// lane's. Names that people choose (keys of flags, names of cohorts) enter
// base64url-encoded: a key such as "v1." would otherwise make an empty token, which the
// stream never acknowledges and which would so hold up everything behind it.
//
//	state.epoch                              the marker of the normal lane
//	state.key.<sha256 in hex>
//	state.project.<project>
//	state.<project>.<environment>.flag.<key>
//	state.<project>.<environment>.config.<key>
//	state.<project>.cohort.<name>
//	state.<project>.members.<name>.<n>
//	state.<project>.survey.<id>
//	state.<project>.usage
//	urgent.epoch                             the marker of the urgent lane
//	urgent.revoked.<sha256 in hex>
//	urgent.<project>.<environment>.halt.<key>
//
// Projects are UUIDs and environments are "live" or "test", so no two forms can be taken
// for each other.
type Subject string

// EpochSubject names the marker of a lane.
func EpochSubject(l Lane) Subject { return Subject(l.root() + ".epoch") }

// KeySubject names an API key by the lower-case hex of the SHA-256 of its text.
func KeySubject(sha256hex string) Subject { return Subject("state.key." + sha256hex) }

// ProjectSubject names a project's settings.
func ProjectSubject(id string) Subject { return Subject("state.project." + id) }

// FlagSubject names a flag.
func FlagSubject(project, env, key string) Subject {
	return Subject("state." + project + "." + env + ".flag." + token(key))
}

// ConfigSubject names a config item.
func ConfigSubject(project, env, key string) Subject {
	return Subject("state." + project + "." + env + ".config." + token(key))
}

// CohortSubject names a cohort.
func CohortSubject(project, name string) Subject {
	return Subject("state." + project + ".cohort." + token(name))
}

// CohortShardSubject names the nth shard of a cohort's members.
func CohortShardSubject(project, name string, n int) Subject {
	return Subject("state." + project + ".members." + token(name) + "." + strconv.Itoa(n))
}

// SurveySubject names a survey.
func SurveySubject(project, id string) Subject {
	return Subject("state." + project + ".survey." + token(id))
}

// UsageSubject names a project's counters.
func UsageSubject(project string) Subject { return Subject("state." + project + ".usage") }

// HaltSubject names the halt that overlays a flag. Its tombstone is the resume.
func HaltSubject(project, env, key string) Subject {
	return Subject("urgent." + project + "." + env + ".halt." + token(key))
}

// RevokedSubject names the revocation that overlays an API key.
func RevokedSubject(sha256hex string) Subject { return Subject("urgent.revoked." + sha256hex) }

// ProjectPrefix begins every subject of the lane that belongs to a project, its settings
// excepted.
func ProjectPrefix(l Lane, project string) string { return l.root() + "." + project + "." }

// EnvironmentPrefix begins every subject of the lane that belongs to one environment of
// a project.
func EnvironmentPrefix(l Lane, project, env string) string {
	return l.root() + "." + project + "." + env + "."
}

// Lane is the lane whose subject this is, by its first token.
func (s Subject) Lane() Lane {
	if strings.HasPrefix(string(s), "urgent.") {
		return Urgent
	}
	return Normal
}

// Parts are a subject's tokens, read back.
type Parts struct {
	Kind    Kind
	Lane    Lane
	Project string // empty for keys, revocations and markers
	Env     string // "live", "test", or empty for what belongs to the whole project
	Name    string // the key, name, id or hash, decoded
	Shard   int    // of KindCohortShard
}

// ErrSubject means that a text is not a subject which the constructors make.
var ErrSubject = errors.New("not a subject")

// Parse reads a subject back. It accepts exactly what the constructors make of valid
// arguments.
func (s Subject) Parse() (Parts, error) {
	if len(s) > maxSubject {
		return Parts{}, fmt.Errorf("%w: %d bytes", ErrSubject, len(s))
	}
	var buf [6]string
	t := buf[:0]
	for rest, more := string(s), true; more; {
		var tok string
		tok, rest, more = strings.Cut(rest, ".")
		if len(t) == cap(t) || !isToken(tok) {
			return Parts{}, fmt.Errorf("%w: %q", ErrSubject, string(s))
		}
		t = append(t, tok)
	}
	p, ok := parseTokens(t)
	if !ok {
		return Parts{}, fmt.Errorf("%w: %q", ErrSubject, string(s))
	}
	return p, nil
}

// Valid tells whether s may travel: whether it is tokens, of a lane, that a stream takes.
// A newer version may have kinds that Parse does not know; what it has put is carried and
// stored all the same, and read after the upgrade.
func (s Subject) Valid() error {
	root, rest, more := strings.Cut(string(s), ".")
	if len(s) > maxSubject || !more || root != s.Lane().root() {
		return fmt.Errorf("%w: %q", ErrSubject, s[:min(len(s), maxSubject)])
	}
	for more {
		var tok string
		if tok, rest, more = strings.Cut(rest, "."); !isToken(tok) {
			return fmt.Errorf("%w: %q", ErrSubject, s)
		}
	}
	return nil
}

// maxSubject bounds a subject: the longest name of 128 characters makes 171 bytes
// of base64.
const maxSubject = 512

func parseTokens(t []string) (Parts, bool) {
	if len(t) < 2 {
		return Parts{}, false
	}
	switch t[0] {
	case "state":
		return parseNormal(t[1:])
	case "urgent":
		return parseUrgent(t[1:])
	}
	return Parts{}, false
}

func parseNormal(t []string) (Parts, bool) {
	p := Parts{Lane: Normal}
	switch {
	case len(t) == 1:
		p.Kind = KindEpoch
		return p, t[0] == "epoch"
	case len(t) == 2 && t[0] == "key":
		p.Kind, p.Name = KindKey, t[1]
		return p, isHash(t[1])
	case len(t) == 2 && t[0] == "project":
		p.Kind, p.Project = KindProject, t[1]
		return p, true
	}
	p.Project = t[0]
	switch {
	case len(t) == 2:
		p.Kind = KindUsage
		return p, t[1] == "usage"
	case len(t) == 4 && t[1] == "members":
		n, err := strconv.Atoi(t[3])
		p.Kind, p.Shard = KindCohortShard, n
		return p, err == nil && n >= 0 && strconv.Itoa(n) == t[3] && untoken(t[2], &p.Name)
	case len(t) == 3 && t[1] == "cohort":
		p.Kind = KindCohort
		return p, untoken(t[2], &p.Name)
	case len(t) == 3 && t[1] == "survey":
		p.Kind = KindSurvey
		return p, untoken(t[2], &p.Name)
	case len(t) == 4 && isEnv(t[1]) && t[2] == "flag":
		p.Kind, p.Env = KindFlag, t[1]
		return p, untoken(t[3], &p.Name)
	case len(t) == 4 && isEnv(t[1]) && t[2] == "config":
		p.Kind, p.Env = KindConfig, t[1]
		return p, untoken(t[3], &p.Name)
	}
	return Parts{}, false
}

func parseUrgent(t []string) (Parts, bool) {
	p := Parts{Lane: Urgent}
	switch {
	case len(t) == 1:
		p.Kind = KindEpoch
		return p, t[0] == "epoch"
	case len(t) == 2 && t[0] == "revoked":
		p.Kind, p.Name = KindRevoked, t[1]
		return p, isHash(t[1])
	case len(t) == 4 && isEnv(t[1]) && t[2] == "halt":
		p.Kind, p.Project, p.Env = KindHalt, t[0], t[1]
		return p, untoken(t[3], &p.Name)
	}
	return Parts{}, false
}

var encoding = base64.RawURLEncoding.Strict()

func token(name string) string { return encoding.EncodeToString([]byte(name)) }

func untoken(tok string, name *string) bool {
	b, err := encoding.DecodeString(tok)
	*name = string(b)
	return err == nil && len(b) > 0
}

func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '-' && c != '_' {
			return false
		}
	}
	return s != ""
}

func isEnv(s string) bool { return s == "live" || s == "test" }

func isHash(s string) bool {
	if len(s) != 64 {
		return false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}
