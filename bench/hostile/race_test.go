//go:build race

package hostile

// raced: with the race detector a gigabyte takes minutes; `make test` packs it without.
const raced = true
