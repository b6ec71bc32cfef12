package local

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"time"

	"skerry/pkg/instant"
	"skerry/writeplane/surveys"
)

// demo makes what a newcomer looks at, the way any client would: by HTTP, with
// the owner's token and the project's keys. Every step may be repeated, since
// a kill can come between any two.
type demo struct {
	http       *http.Client
	writePlane string
	edge       string
	token      string
	project    string
	key        string
}

// object is a JSON body.
type object = map[string]any

// exists are the answers that a repeated step may get: the key is taken, or
// the survey is published already.
var exists = []int{http.StatusConflict}

func (d *demo) make(ctx context.Context) error {
	// The cohort comes first: rules may only name what exists.
	cohort := object{"name": "beta", "predicate": nil, "members": []string{"user-1", "user-2"}}
	if err := d.manage(ctx, "POST", "/api/v1/cohorts", cohort, exists...); err != nil {
		return err
	}
	for _, environment := range []string{"live", "test"} {
		for _, flag := range demoFlags(environment) {
			if err := d.manage(ctx, "POST", "/api/v1/switch/flags", flag, exists...); err != nil {
				return err
			}
		}
		for _, item := range demoItems(environment) {
			if err := d.manage(ctx, "POST", "/api/v1/config/items", item, exists...); err != nil {
				return err
			}
		}
	}
	if err := d.surveys(ctx); err != nil {
		return err
	}
	_, err := d.send(ctx, "POST", d.edge+"/api/v1/batch", object{"operations": demoEvents()}, "x-api-key", d.key)
	return err
}

func demoFlags(environment string) []object {
	return []object{
		{
			"environment": environment, "key": "new-checkout", "kind": "boolean",
			"description":   "The rewritten checkout, for the beta cohort and half of everybody else.",
			"variants":      []object{{"key": "off", "value": "false"}, {"key": "on", "value": "true"}},
			"default_value": "false", "default_variant": "off", "enabled": true,
			"rule": object{
				"overrides": []object{{"predicate": "cohort:beta", "variant": "on"}},
				"rollout":   object{"buckets": []object{{"variant": "on", "percentage": 50}, {"variant": "off", "percentage": 50}}},
			},
		},
		{
			"environment": environment, "key": "checkout-button", "kind": "string",
			"description":   "Colour of the checkout button; Germans see green.",
			"variants":      []object{{"key": "blue", "value": `"blue"`}, {"key": "green", "value": `"green"`}},
			"default_value": `"blue"`, "default_variant": "blue", "enabled": true,
			"rule": object{"overrides": []object{{"predicate": `props.country = "DE"`, "variant": "green"}}},
		},
	}
}

func demoItems(environment string) []object {
	return []object{
		{
			"environment": environment, "key": "max-upload-mb", "type": "int", "default_value": "25",
			"description": "Largest file a user may upload.",
			"rule":        object{"overrides": []object{{"predicate": `props.plan = "pro"`, "value": "250"}}},
		},
		{
			"environment": environment, "key": "welcome-text", "type": "string", "default_value": `"Welcome aboard"`,
			"description": "First line of the start page.",
		},
	}
}

// surveys makes and publishes the demo surveys that are not there yet.
func (d *demo) surveys(ctx context.Context) error {
	for _, authored := range surveys.Demo() {
		at := "/api/v1/pulse/surveys/" + *authored.Slug
		status, err := d.send(ctx, "GET", d.managed(at), nil, "Authorization", "Bearer "+d.token)
		if status == http.StatusNotFound {
			err = d.manage(ctx, "POST", "/api/v1/pulse/surveys", authored)
		}
		if err == nil {
			err = d.manage(ctx, "POST", at+"/publish", object{}, exists...)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// demoEvents are one person's visit, first anonymous and then signed in.
// insert_id keeps a repeated batch from doubling them.
func demoEvents() []object {
	const anonymous, user = "5a1f3c9e-7d42-4b8e-9a10-2f6b8c0d1e2f", "user-1"
	visit := []struct {
		name, id   string
		properties object
	}{
		{"page_viewed", anonymous, object{"path": "/"}},
		{"page_viewed", anonymous, object{"path": "/pricing"}},
		{"signed_up", user, object{"plan": "pro"}},
		{"item_added", user, object{"sku": "A-17", "price": 24.9}},
		{"purchase", user, object{"total": 24.9, "currency": "EUR"}},
	}
	begun := time.Now().Add(-10 * time.Minute)
	operations := []object{
		{"type": "alias", "payload": object{"alias_id": anonymous, "distinct_id": user}},
		{"type": "people", "payload": object{"distinct_id": user, "properties": object{"plan": "pro", "country": "DE"}}},
	}
	for i, v := range visit {
		v.properties["$session_id"] = "demo-session"
		operations = append(operations, object{"type": "track", "payload": object{
			"event_name": v.name, "distinct_id": v.id, "properties": v.properties, "lib_version": "demo-1",
			"insert_id": "demo-" + strconv.Itoa(i), "timestamp": instant.Format(begun.Add(time.Duration(i) * time.Minute)),
		}})
	}
	return operations
}

func (d *demo) managed(path string) string { return d.writePlane + path + "?project_id=" + d.project }

// manage is one call to the management API; statuses in allowed count as done.
func (d *demo) manage(ctx context.Context, method, path string, body any, allowed ...int) error {
	status, err := d.send(ctx, method, d.managed(path), body, "Authorization", "Bearer "+d.token)
	if slices.Contains(allowed, status) {
		return nil
	}
	return err
}

// send returns the status, and for any but a success an error with the
// server's words.
func (d *demo) send(ctx context.Context, method, url string, body any, header, value string) (int, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(raw))
	if err != nil {
		return 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(header, value)
	res, err := d.http.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	said, err := io.ReadAll(io.LimitReader(res.Body, 4096))
	if err != nil {
		return 0, err
	}
	if res.StatusCode/100 != 2 {
		err = fmt.Errorf("demo data: %s %s: %d %s", method, req.URL.Path, res.StatusCode, bytes.TrimSpace(said))
	}
	return res.StatusCode, err
}
