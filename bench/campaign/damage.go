package campaign

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
)

// damage kills an edge, overwrites a piece of its state store, and starts it: it must set
// the store aside, take its state anew, and not be ready before it serves right answers.
//
// The buffer's store is not damaged: what an edge has answered and nobody else has yet
// stands there alone, so its loss would be a loss by every rule.
func damage(c *cluster, l *ledger, e *edge, random *rand.Rand) action {
	pick, place := random.Float64(), random.Float64()
	return action{kind: "state file damaged", target: e.id, edge: e,
		do: func() error {
			e.Kill()
			return scribble(filepath.Join(e.data, "state", "db"), pick, place)
		},
		undo: func(ctx context.Context) error {
			if err := c.startEdge(ctx, e); err != nil {
				return err
			}
			// The first answer after readiness must be good: the ledger's readers
			// count from here.
			if _, err := l.ask(ctx, e.at, "GET", "/api/v1/handshake?distinct_id=u", nil, nil); err != nil {
				return fmt.Errorf("an edge is ready and does not answer: %w", err)
			}
			return nil
		},
		note: func() string {
			if found, _ := filepath.Glob(filepath.Join(e.data, "state", "db.damaged-*")); len(found) > e.setAside {
				e.setAside = len(found)
				return "set aside"
			}
			return ""
		}}
}

// scribble overwrites up to 512 bytes of a table or of the list of tables.
func scribble(dir string, pick, place float64) error {
	tables, _ := filepath.Glob(filepath.Join(dir, "*.sst"))
	manifests, _ := filepath.Glob(filepath.Join(dir, "MANIFEST-*"))
	files := append(tables, manifests...)
	if len(files) == 0 {
		return fmt.Errorf("nothing to damage in %s", dir)
	}
	slices.Sort(files)
	path := files[int(pick*float64(len(files)))]
	body, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("damage a file: %w", err)
	}
	at := int(place * float64(len(body)))
	for i := at; i < min(at+512, len(body)); i++ {
		body[i] ^= 0xff
	}
	if err := os.WriteFile(path, body, 0o600); err != nil {
		return fmt.Errorf("damage a file: %w", err)
	}
	return nil
}
