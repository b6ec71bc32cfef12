package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
)

type statusCommand struct {
	connection
	Ops []string `help:"Addresses of operator listeners, for each process's own word." placeholder:"URL"`
}

// processState is one process's answer on its operator listener.
type processState struct {
	Address string          `json:"address"`
	Ready   bool            `json:"ready"`
	Reason  string          `json:"reason,omitempty"`
	Status  json.RawMessage `json:"status,omitempty"`
}

// Run shows the processes (by their operator listeners) and, with a token,
// the lanes of ingestion. It fails when a process is not ready.
func (cmd *statusCommand) Run(ctx context.Context, streams Streams) error {
	ops, err := cmd.operators()
	if err != nil {
		return err
	}
	for i, address := range ops {
		if ops[i], err = httpBase("--ops", address); err != nil {
			return err
		}
	}
	c, err := cmd.ProvideClient(streams)
	var usage usageError
	if errors.As(err, &usage) && len(ops) > 0 && cmd.URL == "" && cmd.Credentials == "" {
		c, err = &client{streams: streams, json: cmd.JSON}, nil
	}
	if err != nil {
		return err
	}
	states := make([]processState, len(ops))
	failed := 0
	for i, address := range ops {
		states[i] = askOperator(ctx, address)
		if !states[i].Ready {
			failed++
		}
	}
	var lag json.RawMessage
	var lagErr error
	if c.token != "" {
		lag, lagErr = c.do(ctx, request{method: "GET", path: "/api/v1/ingest/lag"})
	}
	if c.json {
		if err := c.value(map[string]any{"processes": states, "ingest": lag}); err != nil {
			return err
		}
	} else if err := c.showStatus(states, lag); err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d processes are not ready", failed, len(ops))
	}
	return lagErr
}

// operators are the addresses given, else those of the credentials file.
func (cmd *statusCommand) operators() ([]string, error) {
	if len(cmd.Ops) > 0 || cmd.Credentials == "" {
		return cmd.Ops, nil
	}
	raw, err := os.ReadFile(cmd.Credentials)
	if err != nil {
		return nil, usagef("--credentials: %w", err)
	}
	var file struct {
		EdgeOps       []string `json:"edge_ops"`
		WritePlaneOps string   `json:"writeplane_ops"`
	}
	if err := json.Unmarshal(raw, &file); err != nil {
		return nil, usagef("--credentials: %s: %w", cmd.Credentials, err)
	}
	return append([]string{file.WritePlaneOps}, file.EdgeOps...), nil
}

func askOperator(ctx context.Context, address string) processState {
	s := processState{Address: address}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	code, body, err := getJSON(ctx, address, "/readyz")
	if err != nil {
		s.Reason = oneLine(err)
		return s
	}
	var ready struct{ Reason string }
	_ = json.Unmarshal(body, &ready)
	s.Ready, s.Reason = code == http.StatusOK, ready.Reason
	if _, s.Status, err = getJSON(ctx, address, "/status"); err != nil {
		s.Ready, s.Reason = false, oneLine(err)
	}
	return s
}

func getJSON(ctx context.Context, address, path string) (int, json.RawMessage, error) {
	req, err := http.NewRequestWithContext(ctx, "GET", strings.TrimRight(address, "/")+path, nil)
	if err != nil {
		return 0, nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, unreachable(address, err)
	}
	defer res.Body.Close()
	var body json.RawMessage
	if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
		return 0, nil, fmt.Errorf("%s%s gives no JSON: %w", address, path, err)
	}
	return res.StatusCode, body, nil
}

func (c *client) showStatus(states []processState, lag json.RawMessage) error {
	var processes, wrong []row
	for _, s := range states {
		word := "ready"
		if !s.Ready {
			word = "NOT READY: " + s.Reason
		}
		processes = append(processes, row{"address": s.Address, "state": word})
		for _, fault := range faults(s.Status) {
			wrong = append(wrong, row{"address": s.Address, "fault": fault})
		}
	}
	if len(processes) > 0 {
		if err := table(c.streams.Out, processes, "PROCESS=address", "STATE=state"); err != nil {
			return err
		}
	}
	if len(wrong) > 0 {
		if err := table(c.streams.Out, wrong, "PROCESS=address", "FAULT=fault"); err != nil {
			return err
		}
	}
	lanes, err := laneRows(lag)
	if err != nil || len(lanes) == 0 {
		return err
	}
	return table(c.streams.Out, lanes, "EDGE=edge_id", "LANE=lane", "RECEIVED=received", "STORED=stored",
		"DUPLICATE=duplicate", "ERASED=erased", "DEAD=dead", "PENDING=pending", "BYTES=pending_bytes", "OLDEST s=oldest_age_seconds")
}

func laneRows(lag json.RawMessage) ([]row, error) {
	if lag == nil {
		return nil, nil
	}
	var answer struct {
		Edges []struct {
			EdgeID string `json:"edge_id"`
			Lanes  []row
		}
	}
	if err := json.Unmarshal(lag, &answer); err != nil {
		return nil, fmt.Errorf("read the lag: %w", err)
	}
	var rows []row
	for _, e := range answer.Edges {
		for _, l := range e.Lanes {
			l["edge_id"] = e.EdgeID
			rows = append(rows, l)
		}
	}
	return rows, nil
}
