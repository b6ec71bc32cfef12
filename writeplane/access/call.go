// Package access knows who calls and what they may do: organizations, projects,
// API keys, members, tokens (specification, Authentication; supplement §2).
//
// It promises that a handler runs only for a caller whose token holds at this very
// moment (signature, expiry, revocation, membership) and whose role reaches the
// route's; that what a caller may not see is answered as if it did not exist; and
// that no secret is kept in clear.
package access

import (
	"net/http"
	"slices"

	"skerry/pkg/problem"
	"skerry/writeplane/commit"
)

// Role is what a member or token may do; a higher role may all that a lower one may.
type Role uint8

// The roles, lowest to highest. "Admin" in the specification means ProjectAdmin or higher.
const (
	NoRole Role = iota
	Viewer
	Editor
	ProjectAdmin
	OrgAdmin
	Owner
)

var roleNames = [...]string{NoRole: "", Viewer: "viewer", Editor: "editor", ProjectAdmin: "project_admin", OrgAdmin: "org_admin", Owner: "owner"}

// String is the role's name in tokens and bodies.
func (r Role) String() string { return roleNames[r] }

// ParseRole reads a role's name; ok is false for any other text.
func ParseRole(name string) (role Role, ok bool) {
	i := slices.Index(roleNames[:], name)
	if i <= int(NoRole) {
		return NoRole, false
	}
	return Role(i), true
}

// Caller is an authenticated person or token.
type Caller struct {
	Subject        string // user id
	Email          string
	OrganizationID string
	Role           Role
	// ProjectID is the token's own project; empty: every project the member may see.
	ProjectID string
	// MemberProjects are the projects that a member below OrgAdmin is bound to.
	// nil: not bound by membership (ProjectID alone decides).
	MemberProjects []string
	TokenID        string // jti
}

// Project is what access needs to know of a resource's project.
type Project struct{ ID, OrganizationID string }

// Sees reports whether the caller may see anything of the project. What it may do
// there is its Role's matter.
func (c Caller) Sees(p Project) bool {
	switch {
	case p.OrganizationID != c.OrganizationID:
		return false
	case c.ProjectID != "" && c.ProjectID != p.ID:
		return false
	case c.Role >= OrgAdmin || c.MemberProjects == nil:
		return true
	}
	return slices.Contains(c.MemberProjects, p.ID)
}

// Call is one authenticated request to the write plane.
type Call struct {
	Caller    Caller
	Key       KeyIdentity // of a key-authenticated route; Caller is zero there
	RequestID string
	IP        string // the client's, as told by trusted proxies only
	UserAgent string
}

// Origin is the call as a mutation's origin.
func (c *Call) Origin() commit.Origin {
	return commit.Origin{
		Actor:     commit.Actor{ID: c.Caller.Subject, Email: c.Caller.Email},
		RequestID: c.RequestID, IP: c.IP, UserAgent: c.UserAgent,
	}
}

// OriginAs is the origin of a mutation that a pseudo-actor makes on the call's behalf.
func (c *Call) OriginAs(actor string) commit.Origin {
	origin := c.Origin()
	origin.Actor = commit.Actor{ID: actor}
	return origin
}

// ListName names the list at the request's path for its cursors. Who asks is a part of the
// name: a cursor is refused to a caller who may see another part of the list.
func (c *Call) ListName(r *http.Request) string {
	return r.URL.Path + "\x00" + c.Caller.OrganizationID + "\x00" + c.Caller.ProjectID
}

// Handler serves one route. It writes its answer or returns an error that reply.Error
// words; it never does both. The Call of a key-authenticated route has no Caller.
type Handler func(w http.ResponseWriter, r *http.Request, c *Call) error

// ErrNotFound is the 404 of whatever is absent or out of the caller's sight.
var ErrNotFound = problem.New(problem.NotFound, "not_found")

// See returns ErrNotFound unless the caller may see the project.
func (c *Call) See(p Project) error {
	if !c.Caller.Sees(p) {
		return ErrNotFound
	}
	return nil
}
