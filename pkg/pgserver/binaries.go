package pgserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// ErrNoBinaries means that no PostgreSQL server programs are installed.
var ErrNoBinaries = errors.New("no PostgreSQL server programs (initdb, postgres) found on PATH or in the usual folders: install the package \"postgresql\" (apt-get install postgresql, dnf install postgresql-server, brew install postgresql)")

// Binaries is a folder in which initdb and postgres of one version stand.
type Binaries struct {
	Dir   string
	Major int
	// Version is the full text of `postgres --version`.
	Version string
}

// minMajor is the oldest version the migrations and settings are written for.
const minMajor = 13

// distributionFolders are where packages put the server programs, which are
// often not on PATH.
var distributionFolders = [...]string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // Fedora, RHEL (PGDG)
	"/usr/libexec/postgresql*",  // Alpine
	"/usr/lib/postgresql*/bin",  // SUSE
	"/usr/local/pgsql*/bin",     // built from source
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
	"/usr/local/bin",
	"/usr/bin",
}

// Find returns every usable set of server programs, newest major version
// first and, among equals, the one on PATH first.
func Find(ctx context.Context) ([]Binaries, error) {
	return find(ctx, distributionFolders[:])
}

func find(ctx context.Context, patterns []string) ([]Binaries, error) {
	var dirs []string
	if p, err := exec.LookPath("postgres"); err == nil {
		// A link such as /usr/local/bin/postgres stands alone; the folder it
		// points into has the rest.
		if real, err := filepath.EvalSymlinks(p); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	for _, pattern := range patterns {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		dirs = append(dirs, found...)
	}
	var all []Binaries
	for i, dir := range dirs {
		if slices.Contains(dirs[:i], dir) {
			continue
		}
		if b, err := inspect(ctx, dir); err == nil && b.Major >= minMajor && !linksInto(b, all) {
			all = append(all, b)
		}
	}
	if len(all) == 0 {
		return nil, ErrNoBinaries
	}
	slices.SortStableFunc(all, func(a, b Binaries) int { return cmp.Compare(b.Major, a.Major) })
	return all, nil
}

// linksInto tells whether b's postgres is one that is listed already, by
// another name.
func linksInto(b Binaries, listed []Binaries) bool {
	mine, err := os.Stat(filepath.Join(b.Dir, "postgres"))
	if err != nil {
		return false
	}
	return slices.ContainsFunc(listed, func(o Binaries) bool {
		theirs, err := os.Stat(filepath.Join(o.Dir, "postgres"))
		return err == nil && os.SameFile(mine, theirs)
	})
}

var versionText = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// inspect asks both programs of a folder for their version; they must agree.
func inspect(ctx context.Context, dir string) (Binaries, error) {
	major := 0
	var text string
	for _, name := range []string{"initdb", "postgres"} {
		out, err := exec.CommandContext(ctx, filepath.Join(dir, name), "--version").Output()
		if err != nil {
			return Binaries{}, err
		}
		m := versionText.FindSubmatch(out)
		if m == nil {
			return Binaries{}, fmt.Errorf("%s in %s gives no version", name, dir)
		}
		v, err := strconv.Atoi(string(m[1]))
		if err != nil {
			return Binaries{}, err
		}
		if major != 0 && v != major {
			return Binaries{}, fmt.Errorf("initdb is version %d and postgres %d in %s", major, v, dir)
		}
		major, text = v, string(out)
	}
	return Binaries{Dir: dir, Major: major, Version: text}, nil
}

// choose returns the sets to try, in order: all that fit the existing
// cluster's version (0: a new cluster, so all).
func choose(ctx context.Context, binDir string, clusterMajor int) ([]Binaries, error) {
	var all []Binaries
	if binDir != "" {
		b, err := inspect(ctx, binDir)
		if err != nil {
			return nil, fmt.Errorf("PostgreSQL programs in %s: %w", binDir, err)
		}
		all = []Binaries{b}
	} else {
		found, err := Find(ctx)
		if err != nil {
			return nil, err
		}
		all = found
	}
	if clusterMajor == 0 {
		return all, nil
	}
	fit := slices.DeleteFunc(slices.Clone(all), func(b Binaries) bool { return b.Major != clusterMajor })
	if len(fit) == 0 {
		return nil, fmt.Errorf("the data folder was made by PostgreSQL %d, installed is %d: install the package \"postgresql-%d\"", clusterMajor, all[0].Major, clusterMajor)
	}
	return fit, nil
}
