package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Project is a project of the benchmark's own.
type Project struct {
	ID  string
	Key string // live
}

// unlimited is more than any benchmark sends in a minute or a month.
const unlimited = 1_000_000_000

// NewProject makes a project with raised limits and a live key.
func (s *Stage) NewProject(ctx context.Context, name string) (Project, error) {
	var made struct {
		Project struct{ ID string } `json:"project"`
	}
	err := s.Manage(ctx, http.MethodPost, "/api/v1/projects", map[string]any{
		"name":        name,
		"rate_limits": map[string]any{"ingest_per_minute": unlimited, "handshake_per_minute": unlimited},
		"quotas":      map[string]any{"events": unlimited, "handshakes": unlimited, "responses": unlimited},
	}, &made)
	if err != nil {
		return Project{}, err
	}
	var key struct{ Secret string }
	err = s.Manage(ctx, http.MethodPost, "/api/v1/projects/"+made.Project.ID+"/api-keys", map[string]any{"name": "bench", "environment": "live"}, &key)
	return Project{ID: made.Project.ID, Key: key.Secret}, err
}

// AddFlags makes flags flag-000…, each with one predicate and a two-way split.
func (s *Stage) AddFlags(ctx context.Context, p Project, count int) error {
	for i := range count {
		body := map[string]any{
			"environment": "live", "key": fmt.Sprintf("flag-%03d", i), "kind": "string", "default_value": `"off"`, "default_variant": "off",
			"variants": []map[string]string{{"key": "off", "value": `"off"`}, {"key": "a", "value": `"alpha"`}, {"key": "b", "value": `"beta"`}},
			"rule": map[string]any{
				"overrides": []map[string]string{{"predicate": `props.plan = "enterprise"`, "variant": "a"}},
				"rollout":   map[string]any{"buckets": []map[string]any{{"variant": "a", "percentage": 50}, {"variant": "b", "percentage": 50}}},
			},
		}
		if err := s.Manage(ctx, http.MethodPost, "/api/v1/switch/flags?project_id="+p.ID, body, nil); err != nil {
			return err
		}
	}
	return nil
}

// AddSurveys makes published surveys whose list is about 2 KB, and returns an id.
func (s *Stage) AddSurveys(ctx context.Context, p Project, count int) (surveyID string, err error) {
	for i := range count {
		body := map[string]any{
			"name": fmt.Sprintf("Survey %d", i), "description": "How did the latest release work out for you and your team?",
			"kind": "nps", "slug": fmt.Sprintf("survey-%d", i), "auto_show": true,
			"targeting_rules": []map[string]any{{"predicate": "AND(session_count >= 3, event:checkout_completed)", "weight_numerator": 500}},
			"questions": []map[string]any{
				{"kind": "nps", "prompt": "How likely are you to recommend us?", "required": true, "order_index": 0},
				{"kind": "text", "prompt": "What could be better?", "required": false, "order_index": 1},
			},
		}
		var made struct {
			Survey struct{ ID string } `json:"survey"` // of the bundle
		}
		if err := s.Manage(ctx, http.MethodPost, "/api/v1/pulse/surveys?project_id="+p.ID, body, &made); err != nil {
			return "", err
		}
		surveyID = made.Survey.ID
		if err := s.Manage(ctx, http.MethodPost, "/api/v1/pulse/surveys/"+surveyID+"/publish", nil, nil); err != nil {
			return "", err
		}
	}
	return surveyID, nil
}

// Manage makes a management call as the owner and decodes the answer into out, which
// may be nil.
func (s *Stage) Manage(ctx context.Context, method, path string, body, out any) error {
	var content io.Reader
	if body != nil {
		raw, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("marshal %s: %w", path, err)
		}
		content = bytes.NewReader(raw)
	}
	request, err := http.NewRequestWithContext(ctx, method, s.Credentials.WritePlane+path, content)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+s.Credentials.Tokens["owner"])
	return send(request, out)
}

// Questions lists the ids of a survey's questions in order.
func (s *Stage) Questions(ctx context.Context, surveyID string) ([]string, error) {
	var bundle struct {
		Questions []struct{ ID string } `json:"questions"`
	}
	if err := s.Manage(ctx, http.MethodGet, "/api/v1/pulse/surveys/"+surveyID, nil, &bundle); err != nil {
		return nil, err
	}
	ids := make([]string, len(bundle.Questions))
	for i, q := range bundle.Questions {
		ids[i] = q.ID
	}
	return ids, nil
}

// AddItem makes a config item and returns its id and its first version's.
func (s *Stage) AddItem(ctx context.Context, p Project, key string) (itemID, versionID string, err error) {
	var made struct {
		Item    struct{ ID string } `json:"item"`
		Version struct{ ID string } `json:"version"`
	}
	err = s.Manage(ctx, http.MethodPost, "/api/v1/config/items?project_id="+p.ID, map[string]any{
		"environment": "live", "key": key, "type": "int", "default_value": "12",
	}, &made)
	return made.Item.ID, made.Version.ID, err
}

// Rollback rolls an item back and returns the number of the version that this made.
func (s *Stage) Rollback(ctx context.Context, itemID, versionID string) (int64, error) {
	var done struct {
		Version struct {
			Number int64 `json:"version_number"`
		} `json:"version"`
	}
	err := s.Manage(ctx, http.MethodPost, "/api/v1/config/items/"+itemID+"/rollback", map[string]any{"version_id": versionID}, &done)
	return done.Version.Number, err
}

// Halt halts a flag as automation does, by the project's key.
func (s *Stage) Halt(ctx context.Context, p Project, flag, reason string) error {
	body, err := json.Marshal(map[string]string{"flag_key": flag, "reason": reason})
	if err != nil {
		return fmt.Errorf("marshal halt: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, s.Credentials.WritePlane+"/api/switch/halt-webhook", bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("X-Api-Key", p.Key)
	return send(request, nil)
}

// Resume ends a halt.
func (s *Stage) Resume(ctx context.Context, p Project, flag string) error {
	return s.Manage(ctx, http.MethodPost, "/api/v1/switch/flags/"+flag+"/resume?project_id="+p.ID, map[string]string{"environment": "live"}, nil)
}

// KeepSwitching halts and resumes a flag, each once a second, until ctx ends.
func (s *Stage) KeepSwitching(ctx context.Context, p Project, flag string) error {
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	for halted := false; ; halted = !halted {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var err error
		if halted {
			err = s.Resume(ctx, p, flag)
		} else {
			err = s.Halt(ctx, p, flag, "mixed load")
		}
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// send makes a request and decodes a successful answer into out, which may be nil.
func send(request *http.Request, out any) error {
	what := request.Method + " " + request.URL.Path
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if response.StatusCode > 299 {
		return fmt.Errorf("%s: %s: %s", what, response.Status, answer)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
