package access

import (
	"net/http"
	"time"

	"skerry/pkg/jsonbody"
)

// How long an old secret stays good beside its successor.
const (
	defaultGrace = 24 * time.Hour
	maxGrace     = 30 * 24 * time.Hour
)

// ReadGrace reads the body of a rotation, `{"grace_period_seconds": 86400}`, which may
// be empty (supplement §2 and §8).
func ReadGrace(r *http.Request) (time.Duration, error) {
	var body struct {
		Seconds *int64 `json:"grace_period_seconds"`
	}
	if err := jsonbody.Optional(r, &body); err != nil {
		return 0, err
	}
	if body.Seconds == nil {
		return defaultGrace, nil
	}
	if most := int64(maxGrace / time.Second); *body.Seconds < 0 || *body.Seconds > most {
		return 0, jsonbody.Invalid("grace_period_seconds must be from 0 to %d", most)
	}
	return time.Duration(*body.Seconds) * time.Second, nil
}
