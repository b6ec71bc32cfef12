package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// strangers are the names of environment variables that begin with SKERRY_ and that no
// flag of any command reads, each with the one that was probably meant. They are no
// error: containers and shells have variables for reasons of their own.
func strangers(app *kong.Application, environ []string) []string {
	known := map[string]bool{}
	collectVariables(app.Node, known)
	var found []string
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		if strings.HasPrefix(name, "SKERRY_") && !known[name] {
			found = append(found, withGuess(name, known))
		}
	}
	slices.Sort(found)
	return found
}

func collectVariables(n *kong.Node, names map[string]bool) {
	for _, f := range n.Flags {
		for _, name := range f.Envs {
			names[name] = true
		}
	}
	for _, child := range n.Children {
		collectVariables(child, names)
	}
}

// withGuess adds the known name that is nearest to a misspelt one, if any is near enough
// to have been meant.
func withGuess(name string, known map[string]bool) string {
	best, guess := 3, ""
	for _, other := range slices.Sorted(maps.Keys(known)) {
		if d := editDistance(name, other); d < best {
			best, guess = d, other
		}
	}
	if guess == "" {
		return name
	}
	return fmt.Sprintf("%s (did you mean %s?)", name, guess)
}

// editDistance is how many letters have to be put in, taken out or changed to make b of
// a (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1) // of the beginning of a seen so far, to each beginning of b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
