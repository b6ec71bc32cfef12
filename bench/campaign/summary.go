package campaign

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// Summarize reads a log of runs and writes tables in Markdown: the runs by version, the
// faults with what clients noticed, and every promise that was broken.
func Summarize(path string, w io.Writer) error {
	results, err := readLog(path)
	if err != nil {
		return err
	}
	if len(results) == 0 {
		return fmt.Errorf("%s holds no runs", path)
	}
	var b strings.Builder
	versions(&b, results)
	faults(&b, results)
	breaches(&b, results)
	_, err = io.WriteString(w, b.String())
	return err
}

func readLog(path string) (results []Result, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read the log of runs: %w", err)
	}
	defer func() { _ = file.Close() }()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var r Result
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			return nil, fmt.Errorf("%s, line %d: %w", path, len(results)+1, err)
		}
		results = append(results, r)
	}
	return results, lines.Err()
}

func versions(b *strings.Builder, results []Result) {
	type sum struct {
		runs, broken int
		books        Books
	}
	sums := map[string]*sum{}
	var order []string
	for _, r := range results {
		s := sums[r.Version]
		if s == nil {
			s = &sum{}
			sums[r.Version] = s
			order = append(order, r.Version)
		}
		s.runs++
		if len(r.Broken) > 0 {
			s.broken++
		}
		s.books.EventsAnswered += r.Books.EventsAnswered
		s.books.EventsLost += r.Books.EventsLost - min(r.Books.EventsLost, r.Books.EventsDead)
		s.books.EventsDoubled += r.Books.EventsDoubled
		s.books.ResponsesAnswered += r.Books.ResponsesAnswered
		s.books.Reads += r.Books.Reads
		s.books.ReadsFailed += r.Books.ReadsFailed
		s.books.Restores += r.Books.Restores
	}
	b.WriteString("| version | runs | with a broken promise | events answered | lost | doubled | responses | reads | failed at living edges | restores |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n")
	for _, version := range order {
		s := sums[version]
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d |\n", version, s.runs, s.broken, s.books.EventsAnswered, s.books.EventsLost,
			s.books.EventsDoubled, s.books.ResponsesAnswered, s.books.Reads, s.books.ReadsFailed, s.books.Restores)
	}
}

func faults(b *strings.Builder, results []Result) {
	type sum struct {
		times            int
		requests, errors int64
		recovery         []float64
	}
	sums := map[string]*sum{}
	for _, r := range results {
		for _, f := range r.Faults {
			name := f.Kind + " | " + f.Target
			if sums[name] == nil {
				sums[name] = &sum{}
			}
			s := sums[name]
			s.times++
			s.requests += f.Requests
			s.errors += f.Errors
			s.recovery = append(s.recovery, f.Recovery)
		}
	}
	names := make([]string, 0, len(sums))
	for name := range sums {
		names = append(names, name)
	}
	slices.Sort(names)
	b.WriteString("\n| fault | target | times | requests during it | without a good answer | recovery, median | slowest |\n| --- | --- | --- | --- | --- | --- | --- |\n")
	for _, name := range names {
		s := sums[name]
		slices.Sort(s.recovery)
		fmt.Fprintf(b, "| %s | %d | %d | %d | %.1f s | %.1f s |\n", name, s.times, s.requests, s.errors, s.recovery[len(s.recovery)/2], s.recovery[len(s.recovery)-1])
	}
}

func breaches(b *strings.Builder, results []Result) {
	none := true
	for _, r := range results {
		for _, text := range r.Broken {
			if none {
				b.WriteString("\n| seed | version | broken promise |\n| --- | --- | --- |\n")
				none = false
			}
			fmt.Fprintf(b, "| %d | %s | %s |\n", r.Seed, r.Version, strings.NewReplacer("|", "/", "\n", " ").Replace(text))
		}
	}
	if none {
		b.WriteString("\nNo promise was broken.\n")
	}
}
