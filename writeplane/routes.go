package writeplane

import (
	"net/http"
	"slices"

	"skerry/pkg/openapi"
	"skerry/replication/up"
	"skerry/writeplane/access"
	"skerry/writeplane/audit"
	"skerry/writeplane/blobs"
	"skerry/writeplane/cohorts"
	"skerry/writeplane/crashes"
	"skerry/writeplane/flags"
	"skerry/writeplane/identity"
	"skerry/writeplane/ingest"
	"skerry/writeplane/payloads"
	"skerry/writeplane/remoteconfig"
	"skerry/writeplane/surveys"
	"skerry/writeplane/surveys/responses"
	"skerry/writeplane/symbols"
	"skerry/writeplane/webhooks"
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
	// Long marks what may keep a connection to the database for long: the work grows with
	// what is stored or sent, and is no mutation that others wait for. See longCalls.
	Long bool
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
	Access   *access.Module
	Audit    *audit.Module
	Blobs    *blobs.Store
	Webhooks *webhooks.Module

	Flags        *flags.Module
	RemoteConfig *remoteconfig.Module
	Cohorts      *cohorts.Module

	Symbols *symbols.Module
	Crashes *crashes.Module

	Surveys   *surveys.Module
	Responses *responses.Module

	Ingest   *ingest.Module
	Persons  *identity.Module
	Payloads *payloads.Module
}

// Routes is the table of every path that the write plane answers.
func Routes(m Modules) []Route {
	return slices.Concat(
		descriptionRoutes(),
		routesOf(m.Access, accessRoutes),
		routesOf(m.Audit, auditRoutes),
		routesOf(m.Blobs, blobsRoutes),
		routesOf(m.Webhooks, webhooksRoutes),
		routesOf(m.Symbols, symbolsRoutes),
		routesOf(m.Crashes, crashesRoutes),
		routesOf(m.Flags, flagsRoutes),
		routesOf(m.RemoteConfig, remoteConfigRoutes),
		routesOf(m.Cohorts, cohortsRoutes),
		routesOf(m.Surveys, surveysRoutes),
		routesOf(m.Responses, responsesRoutes),
		routesOf(m.Ingest, ingestRoutes),
		routesOf(m.Persons, personsRoutes),
		routesOf(m.Payloads, payloadsRoutes),
	)
}

func routesOf[M any](module *M, routes func(*M) []Route) []Route {
	if module == nil {
		return nil
	}
	return routes(module)
}

// descriptionRoutes serve the description of all others.
func descriptionRoutes() []Route {
	document := openapi.Handler()
	return []Route{{Method: "GET", Path: openapi.Path, Needs: Public, Handle: func(w http.ResponseWriter, r *http.Request, _ *access.Call) error {
		document.ServeHTTP(w, r)
		return nil
	}}}
}

func accessRoutes(a *access.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/.well-known/jwks.json", Needs: Public, Handle: a.JWKS},

		{Method: "GET", Path: "/api/v1/organization", Needs: Viewer, Handle: a.GetOrganization},
		{Method: "PATCH", Path: "/api/v1/organization", Needs: OrgAdmin, Handle: a.PatchOrganization},

		{Method: "GET", Path: "/api/v1/projects", Needs: Viewer, Handle: a.ListProjects},
		{Method: "POST", Path: "/api/v1/projects", Needs: OrgAdmin, Handle: a.CreateProject},
		{Method: "GET", Path: "/api/v1/projects/{id}", Needs: Viewer, Handle: a.GetProject},
		{Method: "PATCH", Path: "/api/v1/projects/{id}", Needs: ProjectAdmin, Handle: a.PatchProject},
		{Method: "DELETE", Path: "/api/v1/projects/{id}", Needs: ProjectAdmin, Handle: a.DeleteProject},
		{Method: "GET", Path: "/api/v1/projects/{id}/usage", Needs: Viewer, Handle: a.Usage},

		{Method: "GET", Path: "/api/v1/projects/{id}/api-keys", Needs: Viewer, Handle: a.ListKeys},
		{Method: "POST", Path: "/api/v1/projects/{id}/api-keys", Needs: ProjectAdmin, Handle: a.CreateKey},
		{Method: "POST", Path: "/api/v1/api-keys/{id}/rotate", Needs: ProjectAdmin, Handle: a.RotateKey},
		{Method: "DELETE", Path: "/api/v1/api-keys/{id}", Needs: ProjectAdmin, Handle: a.RevokeKey},

		{Method: "GET", Path: "/api/v1/members", Needs: Viewer, Handle: a.ListMembers},
		{Method: "POST", Path: "/api/v1/members", Needs: OrgAdmin, Handle: a.InviteMember},
		{Method: "PATCH", Path: "/api/v1/members/{id}", Needs: OrgAdmin, Handle: a.PatchMember},
		{Method: "DELETE", Path: "/api/v1/members/{id}", Needs: OrgAdmin, Handle: a.RemoveMember},

		{Method: "GET", Path: "/api/v1/projects/{id}/api-tokens", Needs: Viewer, Handle: a.ListTokens},
		{Method: "POST", Path: "/api/v1/projects/{id}/api-tokens", Needs: ProjectAdmin, Handle: a.CreateToken},
		{Method: "DELETE", Path: "/api/v1/api-tokens/{id}", Needs: ProjectAdmin, Handle: a.RevokeToken},
	}
}

func auditRoutes(m *audit.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/audit", Needs: ProjectAdmin, Family: Audit, Handle: m.List, Long: true},
		{Method: "GET", Path: "/api/v1/audit/{id}", Needs: ProjectAdmin, Family: Audit, Handle: m.Get},
		{Method: "GET", Path: "/api/v1/audit/verify", Needs: OrgAdmin, Family: Audit, Handle: m.Verify, Long: true},
		{Method: "GET", Path: "/api/v1/projects/{id}/audit", Needs: Viewer, Family: Audit, Handle: m.ListProject, Long: true},
		{Method: "POST", Path: "/api/v1/audit/exports", Needs: ProjectAdmin, Family: Audit, Handle: m.CreateExport},
		{Method: "GET", Path: "/api/v1/audit/exports/{id}", Needs: ProjectAdmin, Family: Audit, Handle: m.GetExport},
		{Method: "GET", Path: "/api/v1/audit/export-schedules", Needs: ProjectAdmin, Family: Audit, Handle: m.ListSchedules},
		{Method: "POST", Path: "/api/v1/audit/export-schedules", Needs: ProjectAdmin, Family: Audit, Handle: m.CreateSchedule},
		{Method: "DELETE", Path: "/api/v1/audit/export-schedules/{id}", Needs: ProjectAdmin, Family: Audit, Handle: m.DeleteSchedule},
	}
}

// blobsRoutes are those of files that lie in a folder; files in a bucket are fetched there.
func blobsRoutes(m *blobs.Store) []Route {
	if !m.IsFolder() {
		return nil
	}
	var routes []Route
	// A signature for GET is no leave for anything else: the handler hears of every method.
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		routes = append(routes, Route{Method: method, Path: blobs.DownloadPath + "{key...}", Needs: Public, Handle: m.Download})
	}
	return routes
}

func webhooksRoutes(m *webhooks.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/webhooks/subscriptions", Needs: ProjectAdmin, Handle: m.List},
		{Method: "POST", Path: "/api/v1/webhooks/subscriptions", Needs: ProjectAdmin, Handle: m.Create},
		{Method: "GET", Path: "/api/v1/webhooks/subscriptions/{id}", Needs: ProjectAdmin, Handle: m.Get},
		{Method: "PATCH", Path: "/api/v1/webhooks/subscriptions/{id}", Needs: ProjectAdmin, Handle: m.Patch},
		{Method: "DELETE", Path: "/api/v1/webhooks/subscriptions/{id}", Needs: ProjectAdmin, Handle: m.Delete},
		{Method: "POST", Path: "/api/v1/webhooks/subscriptions/{id}/rotate-secret", Needs: ProjectAdmin, Handle: m.RotateSecret},
		{Method: "POST", Path: "/api/v1/webhooks/subscriptions/{id}/test", Needs: ProjectAdmin, Handle: m.Test},
		{Method: "POST", Path: "/api/v1/webhooks/subscriptions/{id}/recover", Needs: ProjectAdmin, Handle: m.Recover},
		{Method: "GET", Path: "/api/v1/webhooks/subscriptions/{id}/deliveries", Needs: ProjectAdmin, Handle: m.Deliveries},
		{Method: "GET", Path: "/api/v1/webhooks/dead-letters", Needs: ProjectAdmin, Handle: m.DeadLetters},
		{Method: "POST", Path: "/api/v1/webhooks/deliveries/{id}/retry", Needs: ProjectAdmin, Handle: m.Retry},
	}
}

func symbolsRoutes(m *symbols.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/catch/symbols", Needs: Viewer, Family: Symbols, Handle: m.List},
		{Method: "POST", Path: "/api/v1/catch/symbols", Needs: Editor, Family: Symbols, Handle: m.Upload, MaxBody: -1},
		{Method: "DELETE", Path: "/api/v1/catch/symbols/{id}", Needs: Editor, Family: Symbols, Handle: m.Delete},
		{Method: "GET", Path: "/api/v1/catch/symbols/{id}/download", Needs: Viewer, Family: Symbols, Handle: m.Download},
		{Method: "GET", Path: "/api/v1/catch/releases", Needs: Viewer, Family: Symbols, Handle: m.Releases},
		{Method: "DELETE", Path: "/api/v1/catch/releases/{release}", Needs: Editor, Family: Symbols, Handle: m.DeleteRelease},
	}
}

func crashesRoutes(m *crashes.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/catch/events", Needs: Viewer, Family: Symbols, Handle: m.List, Long: true},
		{Method: "GET", Path: "/api/v1/catch/events/{id}", Needs: Viewer, Family: Symbols, Handle: m.Get},
	}
}

func flagsRoutes(m *flags.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/switch/flags", Needs: Viewer, Handle: m.List},
		{Method: "POST", Path: "/api/v1/switch/flags", Needs: Editor, Handle: m.Create},
		{Method: "GET", Path: "/api/v1/switch/flags/{id_or_key}", Needs: Viewer, Handle: m.Get},
		{Method: "PATCH", Path: "/api/v1/switch/flags/{id_or_key}", Needs: Editor, Handle: m.Patch},
		{Method: "POST", Path: "/api/v1/switch/flags/{id_or_key}/resume", Needs: Editor, Handle: m.Resume},
		{Method: "POST", Path: "/api/switch/halt-webhook", Needs: Key, Family: Halt, Handle: m.Halt},
	}
}

func remoteConfigRoutes(m *remoteconfig.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/config/items", Needs: Viewer, Handle: m.List},
		{Method: "POST", Path: "/api/v1/config/items", Needs: Editor, Handle: m.Create},
		{Method: "GET", Path: "/api/v1/config/items/{id}", Needs: Viewer, Handle: m.Get},
		{Method: "PATCH", Path: "/api/v1/config/items/{id}", Needs: Editor, Handle: m.Patch},
		{Method: "GET", Path: "/api/v1/config/items/{id}/versions", Needs: Viewer, Handle: m.Versions},
		{Method: "POST", Path: "/api/v1/config/items/{id}/rollback", Needs: Editor, Handle: m.Rollback},
	}
}

func cohortsRoutes(m *cohorts.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/cohorts", Needs: Viewer, Handle: m.List},
		{Method: "POST", Path: "/api/v1/cohorts", Needs: Editor, Handle: m.Create, MaxBody: -1, Long: true},
		{Method: "GET", Path: "/api/v1/cohorts/{name}", Needs: Viewer, Handle: m.Get, Long: true},
		{Method: "PATCH", Path: "/api/v1/cohorts/{name}", Needs: Editor, Handle: m.Patch, MaxBody: -1, Long: true},
		{Method: "DELETE", Path: "/api/v1/cohorts/{name}", Needs: Editor, Handle: m.Delete, Long: true},
		{Method: "POST", Path: "/api/v1/cohorts/{name}/members", Needs: Editor, Handle: m.Members, MaxBody: -1, Long: true},
	}
}

func surveysRoutes(m *surveys.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/pulse/surveys", Needs: Viewer, Handle: m.List},
		{Method: "POST", Path: "/api/v1/pulse/surveys", Needs: Editor, Handle: m.Create},
		{Method: "GET", Path: "/api/v1/pulse/surveys/{id}", Needs: Viewer, Handle: m.Get},
		{Method: "PATCH", Path: "/api/v1/pulse/surveys/{id}", Needs: Editor, Handle: m.Patch},
		{Method: "POST", Path: "/api/v1/pulse/surveys/{id}/publish", Needs: Editor, Handle: m.Publish},
		{Method: "POST", Path: "/api/v1/pulse/surveys/{id}/close", Needs: Editor, Handle: m.Close},
		{Method: "POST", Path: "/api/v1/pulse/surveys/{id}/reopen", Needs: Editor, Handle: m.Reopen},
		{Method: "POST", Path: "/api/v1/pulse/surveys/{id}/archive", Needs: Editor, Handle: m.Archive},
	}
}

func responsesRoutes(m *responses.Module) []Route {
	return []Route{
		{Method: "POST", Path: "/api/pulse/responses", Needs: Key, Family: Pulse, Handle: m.Submit, MaxBody: -1},
		{Method: "GET", Path: "/api/pulse/surveys/{id}/partial", Needs: Key, Family: Pulse, Handle: m.GetPartial},
		{Method: "PUT", Path: "/api/pulse/surveys/{id}/partial", Needs: Key, Family: Pulse, Handle: m.SavePartial, MaxBody: -1},
		{Method: "DELETE", Path: "/api/pulse/surveys/{id}/partial", Needs: Key, Family: Pulse, Handle: m.DeletePartial},
		{Method: "GET", Path: "/api/v1/pulse/surveys/{id}/responses", Needs: Viewer, Handle: m.List, Long: true},
		{Method: "GET", Path: "/api/v1/pulse/surveys/{id}/summary", Needs: Viewer, Handle: m.Summary, Long: true},
	}
}

func ingestRoutes(m *ingest.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/events", Needs: Viewer, Handle: m.Events, Long: true},
		{Method: "GET", Path: "/api/v1/ingest/dead-letters", Needs: Viewer, Handle: m.DeadLetters, Long: true},
		{Method: "POST", Path: "/api/v1/ingest/dead-letters/{id}/replay", Needs: Editor, Handle: m.Replay},
		{Method: "GET", Path: "/api/v1/ingest/lag", Needs: Viewer, Handle: m.Lag},
	}
}

func personsRoutes(m *identity.Module) []Route {
	return []Route{
		{Method: "GET", Path: "/api/v1/persons/{distinct_id}", Needs: Viewer, Handle: m.Get, Long: true},
		{Method: "GET", Path: "/api/v1/persons/{distinct_id}/conflicts", Needs: Viewer, Handle: m.Conflicts, Long: true},
		{Method: "DELETE", Path: "/api/v1/persons/{distinct_id}", Needs: ProjectAdmin, Handle: m.Delete, Long: true},
	}
}

func payloadsRoutes(m *payloads.Module) []Route {
	return []Route{
		{Method: "PUT", Path: up.PayloadPath + "{key...}", Needs: Public, Handle: m.Put, MaxBody: -1},
	}
}
