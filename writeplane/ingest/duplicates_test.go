package ingest

import (
	"testing"

	"github.com/google/uuid"

	"skerry/replication/up"
	"skerry/writeplane/identity"
)

// The digests are those of the migration's test, made by another program's SHA-256.
func TestDigestOfAnInsertID(t *testing.T) {
	t.Parallel()
	project := uuid.MustParse("0190a3c1-7d2e-7c3a-9f10-0a1b2c3d4e5f")
	for _, c := range []struct {
		environment    up.Environment
		insertID, want string
	}{
		{up.Live, "order-1", "2f12921f-3167-dacb-b5c1-d329a1ce40a1"},
		{up.Test, "order-1", "6744d866-8cfd-8646-e697-6cdd216bb067"},
		{up.Live, "Größe ✓", "f21e9adc-f8b8-cba9-b0d3-68aed323423d"},
	} {
		if got := keyOf(identity.Scope{Project: project, Environment: c.environment}, []byte(c.insertID)); got.String() != c.want {
			t.Errorf("%s of %s: %s, want %s", c.insertID, c.environment, got, c.want)
		}
	}
}
