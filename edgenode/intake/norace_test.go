//go:build !race

package intake

const raced = false
