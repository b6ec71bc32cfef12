package local

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"skerry/pkg/atomicfile"
	"skerry/writeplane/access"
)

// secrets is demo.secrets. It is on disk before anything it names exists, so a
// start that was killed at any point is taken up where it stood.
type secrets struct {
	path  string
	fresh bool // made up by this start: the first one on the folder
	// Founding is what the first start makes: organization, project, keys,
	// members.
	Founding access.Founding `json:"founding"`
	// DemoMade says that the demo data is in, so that what a user deletes of
	// it does not come back.
	DemoMade bool `json:"demo_made"`
}

// openSecrets reads the file, or makes up its content and writes it.
func openSecrets(path string) (*secrets, error) {
	s := &secrets{path: path}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		s.Founding, s.fresh = access.NewFounding("Example", "Demo", access.Pro), true
		return s, s.save()
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(raw, s); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return s, nil
}

func (s *secrets) save() error { return writeJSON(s.path, s) }

// credentials is credentials.json: what a client or a test needs. Addresses
// are base URLs without a trailing slash.
type credentials struct {
	Edges          []string          `json:"edges"`
	EdgeOps        []string          `json:"edge_ops"`
	WritePlane     string            `json:"writeplane"`
	WritePlaneOps  string            `json:"writeplane_ops"`
	OrganizationID string            `json:"organization_id"`
	ProjectID      string            `json:"project_id"`
	APIKeys        map[string]string `json:"api_keys"` // live, test
	Tokens         map[string]string `json:"tokens"`   // viewer, editor, admin, owner
	PostgresURL    string            `json:"postgres_url"`
	NATSURL        string            `json:"nats_url"`
}

func writeJSON(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(raw, '\n'))
}
