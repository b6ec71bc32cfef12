// Package layout holds no code: its tests keep the architecture's arrows, the
// house rules that a machine can check, and the links of the documents. They
// parse the files in process, because a test that shells out to `go list`
// would pass from the test cache after a change.
package layout
