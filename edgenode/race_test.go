//go:build race

package edgenode

// raced: the race detector makes sync.Pool forget at random, so allocations cannot be counted.
const raced = true
