// Package writeplane is the central plane: people and automation change things here, events end here,
// and every path of the interface that an edge does not serve itself is answered here.
package writeplane

import (
	"skerry/writeplane/access"
)

// Route is one line of the plane's table: what answers where, and for whom.
type Route struct {
	Method string
	Path   string // net/http's form: /api/v1/projects/{id}
	Needs  Permission
	Family Family // the words of its 401 and 403
	Handle access.Handler
	// MaxBody is the largest body in bytes; 0 means jsonbody.Limit, negative means
	// that the handler sets its own bound.
	MaxBody int64
}

// Permission is who may call a route. Roles order as access.Role does.
type Permission uint8

// The permissions. Admin in the specification is ProjectAdmin here; OrgAdmin and
// Owner routes also need a token that is bound to no project.
const (
	Public Permission = iota
	Key               // x-api-key
	Viewer
	Editor
	ProjectAdmin
	OrgAdmin
	Owner
)

var permissionRoles = [...]access.Role{
	Viewer: access.Viewer, Editor: access.Editor, ProjectAdmin: access.ProjectAdmin, OrgAdmin: access.OrgAdmin, Owner: access.Owner,
}

// Family groups endpoints that word the same refusals the same way (specification,
// Errors; supplement §2).
type Family uint8

// The families.
const (
	Management Family = iota // config and management endpoints
	Symbols
	Audit
	Pulse
	Halt
	Ingestion
)

// Modules are the owners of handlers. One that is nil has no routes, so that a test
// can serve a part of the plane.
type Modules struct {
	Access *access.Store
}

// Routes is the table of every path that the write plane answers.
func Routes(m Modules) []Route {
	var table []Route
	add := func(routes ...Route) { table = append(table, routes...) }
	if a := m.Access; a != nil {
		add(Route{Method: "GET", Path: "/.well-known/jwks.json", Needs: Public, Handle: a.JWKS})
	}
	return table
}
