//go:build !race

package edgenode

const raced = false
