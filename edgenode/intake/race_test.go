//go:build race

package intake

// raced: the race detector makes a body of 500 MB take minutes; `make test` sends it whole without.
const raced = true
