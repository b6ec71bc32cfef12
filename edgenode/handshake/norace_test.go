//go:build !race

package handshake_test

const raced = false
