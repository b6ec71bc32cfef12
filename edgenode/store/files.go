package store

import (
	"strconv"
	"strings"
)

// parseFile reads the name of one of Pebble's numbered files. The kind is "MANIFEST" (the
// list of tables), "OPTIONS", "sst" (a table) or "log".
func parseFile(name string) (kind string, number uint64, ok bool) {
	var digits string
	if before, after, found := strings.Cut(name, "-"); found && (before == "MANIFEST" || before == "OPTIONS") {
		kind, digits = before, after
	} else if before, after, found := strings.Cut(name, "."); found && (after == "sst" || after == "log") {
		kind, digits = after, before
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	return kind, number, err == nil
}
