// Package layout holds no code: its test keeps the architecture's arrows and
// the house rules that a machine can check. It parses the files in process,
// because a test that shells out to `go list` would pass from the test cache
// after a change.
package layout
