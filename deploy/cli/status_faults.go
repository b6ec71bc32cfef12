package cli

import (
	"encoding/json"
	"errors"
	"strings"
)

// saidOfItself is what of a process's /status tells of faults: an edge has the second
// half, a write plane the first. A process that is ready may have some of them; it does
// what it can.
type saidOfItself struct {
	NATS       string `json:"nats"`
	Publishing struct {
		Fault string `json:"fault"`
	} `json:"publishing"`
	Ingestion struct {
		Receiving []struct{ Edge, Lane, Fault string } `json:"receiving"`
	} `json:"ingestion"`

	Connected *bool                          `json:"connected"`
	Lanes     []struct{ Lane, Error string } `json:"lanes"`
	Ingest    struct {
		Shipper []struct{ Lane, Fault string } `json:"shipper"`
	} `json:"ingest"`
}

// faults are what a process says does not work, each on a line of its own, every text once.
func faults(status json.RawMessage) []string {
	var s saidOfItself
	if status == nil || json.Unmarshal(status, &s) != nil {
		return nil
	}
	var lines []string
	known := map[string]bool{}
	add := func(what, fault string) {
		if fault == "" || known[fault] {
			return
		}
		known[fault] = true
		lines = append(lines, what+": "+oneLine(errors.New(fault)))
	}
	if s.NATS != "" && s.NATS != "CONNECTED" {
		add("nats", strings.ToLower(s.NATS))
	}
	if s.Connected != nil && !*s.Connected {
		add("nats", "not connected")
	}
	add("changes to the edges", s.Publishing.Fault)
	for _, l := range s.Lanes {
		add("changes from the centre", l.Error)
	}
	for _, l := range s.Ingest.Shipper {
		add(l.Lane+" to the centre", l.Fault)
	}
	for _, l := range s.Ingestion.Receiving {
		add(l.Lane+" from "+l.Edge, l.Fault)
	}
	return lines
}
