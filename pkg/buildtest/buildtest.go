// Package buildtest builds programs that tests run and that are modules of their own, in
// a testdata folder, so that nothing of them enters this module's go.mod.
//
// Some module registries carry only part of the world's modules. A module that the
// registry lacks is a reason to skip a test; a program that does not build is a failure.
package buildtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// ErrNotInRegistry means that the module registry does not have a module that
// the program needs.
var ErrNotInRegistry = errors.New("the module registry does not have the module")

// Build builds a package of the module in a folder, and writes the program to binary.
// Go's build cache makes that quick from the second time on.
func Build(ctx context.Context, folder, pkg, binary string) error {
	command := exec.CommandContext(ctx, "go", "build", "-o", binary, pkg)
	command.Dir = folder
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	out, err := command.CombinedOutput()
	switch {
	case err == nil:
		return nil
	case bytes.Contains(out, []byte("reading http")):
		return fmt.Errorf("build %s: %w: %s", pkg, ErrNotInRegistry, out)
	}
	return fmt.Errorf("build %s: %w\n%s", pkg, err, out)
}
