// Package faults breaks the way of events from the edges' buffers to the store, at
// random and on purpose, and compares what was answered with what is stored.
//
// It has tests only. It runs the real parts in one process: buffers on disks that lose
// what was not synced, shippers, streams, receivers, PostgreSQL. It lies here because it
// needs both planes.
//
//	go test ./deploy/faults -seeds 200
package faults
