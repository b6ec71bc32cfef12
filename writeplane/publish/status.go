package publish

import (
	"context"

	"skerry/replication"
)

// LaneStatus is how far one lane of state is on its way to the edges.
type LaneStatus struct {
	Lane      string               `json:"lane"`
	Epoch     string               `json:"epoch"`
	Position  replication.Position `json:"position"`  // highest allotted
	Published replication.Position `json:"published"` // highest that is known to be in the stream
}

// Status tells every lane's positions. Whichever process publishes, the database knows
// them, so every process of the plane tells the same.
func (l *Ledger) Status(ctx context.Context) ([]LaneStatus, error) {
	lanes := make([]LaneStatus, 0, replication.Lanes)
	for lane := range replication.Lanes {
		h, err := l.Head(ctx, lane)
		if err != nil {
			return nil, err
		}
		lanes = append(lanes, LaneStatus{Lane: lane.String(), Epoch: h.Epoch.String(), Position: h.Position, Published: h.Published})
	}
	return lanes, nil
}
