package access

import (
	"fmt"
	"net/http"
	"time"

	"skerry/pkg/jsonbody"
	"skerry/pkg/reply"
)

// metricUsage is what a project has used of one monthly quantity.
type metricUsage struct {
	Current int64  `json:"current"`
	Limit   *int64 `json:"limit"`   // null: unlimited
	Percent *int   `json:"percent"` // of the limit, rounded down; null without one
	// Warning is the highest level that is reached: 80 or 95 percent, null below.
	Warning *int `json:"warning"`
}

// usageView is the body of GET /api/v1/projects/:id/usage.
type usageView struct {
	ProjectID  string      `json:"project_id"`
	Month      string      `json:"month"` // 2026-01, UTC
	Events     metricUsage `json:"events"`
	Handshakes metricUsage `json:"handshakes"`
	Responses  metricUsage `json:"responses"`
}

// WarningLevels are the percentages of a quota at which people are warned
// (specification, Limits).
var WarningLevels = [...]int{80, 95}

func usageOf(current int64, limit *int64) metricUsage {
	m := metricUsage{Current: current, Limit: limit}
	if limit == nil {
		return m
	}
	percent := 100
	if *limit > 0 {
		percent = int(min(float64(current)/float64(*limit), 1e6) * 100)
	}
	m.Percent = &percent
	for _, level := range WarningLevels {
		if percent >= level {
			m.Warning = &level
		}
	}
	return m
}

// usageSQL adds up what the edges have counted and what the responses' transactions have.
const usageSQL = `
SELECT coalesce(sum(value) FILTER (WHERE metric = 'events'), 0), coalesce(sum(value) FILTER (WHERE metric = 'handshakes'), 0),
       coalesce((SELECT responses FROM survey_usage WHERE project_id = $1 AND month = $2), 0)
FROM usage_counts WHERE project_id = $1 AND month = $2`

// Usage serves GET /api/v1/projects/:id/usage?month=2026-01; without month, the
// present one.
func (m *Module) Usage(w http.ResponseWriter, r *http.Request, c *Call) error {
	project, err := m.visibleProject(r, c)
	if err != nil {
		return err
	}
	month := time.Now().UTC()
	if asked := r.URL.Query().Get("month"); asked != "" {
		if month, err = time.Parse("2006-01", asked); err != nil {
			return jsonbody.Invalid("month must be such as 2026-01")
		}
	}
	first := time.Date(month.Year(), month.Month(), 1, 0, 0, 0, 0, time.UTC)
	var events, handshakes, responses int64
	if err := m.access.pool.QueryRow(r.Context(), usageSQL, project.ID, first).Scan(&events, &handshakes, &responses); err != nil {
		return fmt.Errorf("read usage: %w", err)
	}
	limits := project.EffectiveQuotas()
	return reply.JSON(w, http.StatusOK, map[string]usageView{"usage": {
		ProjectID: project.ID, Month: first.Format("2006-01"),
		Events: usageOf(events, limits.Events), Handshakes: usageOf(handshakes, limits.Handshakes), Responses: usageOf(responses, limits.Responses),
	}})
}
