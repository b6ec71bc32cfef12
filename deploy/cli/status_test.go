package cli

import (
	"strings"
	"testing"
)

// A process that is ready may still be unable to do a part of its work, and says so.
func TestStatusShowsWhatAReadyProcessCannotDo(t *testing.T) {
	t.Parallel()
	plane, _ := answering(t, map[string]string{
		"GET /readyz": `{"status":"ready"}`,
		"GET /status": `{"postgres":"ok","nats":"RECONNECTING","publishing":{"leading":true,"fault":"no space\nand again"},
			"ingestion":{"receiving":[{"edge":"e1","lane":"event","stored":1},{"edge":"e2","lane":"event","fault":"make consumer"}]}}`,
	})
	edge, _ := answering(t, map[string]string{
		"GET /readyz": `{"status":"ready"}`,
		"GET /status": `{"id":"e1","ready":true,"connected":false,"lanes":[{"lane":"normal","error":"too little space"},{"lane":"urgent","error":"too little space"}],
			"ingest":{"shipper":[{"lane":"event","fault":"timeout"},{"lane":"alias"}]}}`,
	})
	well, _ := answering(t, map[string]string{
		"GET /readyz": `{"status":"ready"}`,
		"GET /status": `{"id":"e2","ready":true,"connected":true,"lanes":[{"lane":"normal"}],"ingest":{"shipper":[{"lane":"event"}]}}`,
	})
	code, out, errs := skerry(t, "status", "--ops", plane+","+edge+","+well)
	want := []string{
		plane + " nats: reconnecting",
		plane + " changes to the edges: no space and again",
		plane + " event from e2: make consumer",
		edge + " nats: not connected",
		edge + " changes from the centre: too little space",
		edge + " event to the centre: timeout",
	}
	var got []string
	_, table, _ := strings.Cut(out, "FAULT\n")
	for line := range strings.Lines(table) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if code != 0 || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("code %d, %s%s", code, out, errs)
	}
}
