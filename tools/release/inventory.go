package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The standard library's name in the Go vulnerability database, which scanners
// look it up by (https://go.dev/security/vuln/database).
const stdlib = "stdlib"

// A module is other people's code in our programs.
type module struct {
	path    string
	version string   // "v1.2.3"; of the standard library "1.2.3"
	sum     string   // "h1:...", from go.sum; the standard library has none
	dir     string   // where its files are
	folders []string // those in dir that hold what is linked, and all above them up to "."; sorted
	imports []string // paths of the modules that its linked packages import, sorted
	licence licence
}

// A program is one of our binaries.
type program struct {
	path    string   // import path
	modules []string // paths of all that it links, sorted
}

// An inventory says what the programs are made of.
type inventory struct {
	module   string // path of the main module
	programs []program
	modules  []module
}

// architectures are those that releases are built for.
func architectures() []string { return []string{"amd64", "arm64"} }

// takeInventory asks the Go tool what it links into the programs in cmd/ for Linux, and
// into semaphorectl for other systems, on all architectures, and reads the licences. Its
// error names all modules whose licence isn't accepted.
func takeInventory(ctx context.Context, root string) (inventory, error) {
	env, err := goOutput(ctx, root, nil, "env", "GOROOT", "GOVERSION")
	if err != nil {
		return inventory{}, err
	}
	goroot, version, _ := strings.Cut(env, "\n")
	// Behind the version may stand which experiments are switched on.
	fields := strings.Fields(strings.TrimPrefix(version, "go"))
	if len(fields) == 0 {
		return inventory{}, fmt.Errorf("go env GOVERSION says %q", version)
	}
	links := newLinks(module{path: stdlib, version: fields[0], dir: goroot})
	for _, p := range platforms() {
		what := "./cmd/..."
		if p.system != "linux" {
			what = "./cmd/semaphorectl"
			if _, err := os.Stat(filepath.Join(root, what)); errors.Is(err, os.ErrNotExist) {
				continue // As in the image's context.
			}
		}
		out, err := goOutput(ctx, root, []string{"GOOS=" + p.system, "GOARCH=" + p.arch, "CGO_ENABLED=0"},
			"list", "-deps", "-json=ImportPath,Dir,Name,Standard,DepOnly,Imports,Module", what)
		if err != nil {
			return inventory{}, err
		}
		if err := links.add(strings.NewReader(out)); err != nil {
			return inventory{}, fmt.Errorf("read what %s links: %w", p, err)
		}
	}
	found := links.inventory()
	var errs []error
	for i := range found.modules {
		m := &found.modules[i]
		if m.licence, err = readLicence(m.dir, m.folders); err != nil {
			errs = append(errs, fmt.Errorf("licence of %s %s: %w", m.path, m.version, err))
		}
	}
	return found, errors.Join(errs...)
}

// goPackage is what we read of a package that go list prints ("go help list").
type goPackage struct {
	ImportPath string
	Dir        string
	Name       string
	Standard   bool
	DepOnly    bool // not named on the command line
	Imports    []string
	Module     *goModule
}

type goModule struct {
	Path, Version, Sum, Dir string
	Main                    bool
	Replace                 *goModule
}

type set map[string]bool

func (s set) sorted() []string { return slices.Sorted(maps.Keys(s)) }

// links collects which program links which modules.
type links struct {
	main     string // path of the main module
	modules  map[string]module
	folders  map[string]set // module path to folders
	imports  map[string]set // module path to module paths
	programs map[string]set // import path to module paths
}

func newLinks(standard module) *links {
	return &links{
		modules:  map[string]module{standard.path: standard},
		folders:  map[string]set{standard.path: {".": true}},
		imports:  map[string]set{},
		programs: map[string]set{},
	}
}

// add takes the packages of one platform, as go list -deps -json prints them:
// each behind all that it imports.
func (l *links) add(list io.Reader) error {
	owner := map[string]string{} // import path to module path
	needs := map[string]set{}    // import path to module paths, directly or not
	for decoder := json.NewDecoder(list); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		self, err := l.own(p)
		if err != nil {
			return err
		}
		owner[p.ImportPath], needs[p.ImportPath] = self, set{}
		for _, imported := range p.Imports {
			maps.Copy(needs[p.ImportPath], needs[imported])
			to := owner[imported]
			if to == "" || to == l.main { // the first is the "C" of cgo
				continue
			}
			needs[p.ImportPath][to] = true
			if to != self {
				member(l.imports, self)[to] = true
			}
		}
		if p.Name == "main" && !p.DepOnly {
			maps.Copy(member(l.programs, p.ImportPath), needs[p.ImportPath])
		}
	}
}

// member returns the set at key, which it makes when there is none.
func member(sets map[string]set, key string) set {
	if sets[key] == nil {
		sets[key] = set{}
	}
	return sets[key]
}

// own returns the path of the module that a package belongs to, and keeps the
// module and the package's folders.
func (l *links) own(p goPackage) (string, error) {
	switch {
	case p.Standard:
		return stdlib, nil
	case p.Module == nil:
		return "", fmt.Errorf("package %s belongs to no module", p.ImportPath)
	case p.Module.Main:
		l.main = p.Module.Path
		return l.main, nil
	case p.Module.Replace != nil || p.Module.Version == "":
		// A fork would need its origin's name and its own; a folder has neither.
		return "", fmt.Errorf("module %s is replaced: releases take modules as they are published", p.Module.Path)
	}
	m := p.Module
	l.modules[m.Path] = module{path: m.Path, version: m.Version, sum: m.Sum, dir: m.Dir}
	folders := member(l.folders, m.Path)
	folders["."] = true
	folder, err := filepath.Rel(m.Dir, p.Dir)
	if err != nil || !filepath.IsLocal(folder) {
		return "", fmt.Errorf("package %s in %s is outside its module in %s", p.ImportPath, p.Dir, m.Dir)
	}
	for ; folder != "."; folder = filepath.Dir(folder) {
		folders[folder] = true
	}
	return m.Path, nil
}

// inventory returns all that was added, sorted.
func (l *links) inventory() inventory {
	found := inventory{module: l.main}
	for _, path := range slices.Sorted(maps.Keys(l.programs)) {
		found.programs = append(found.programs, program{path: path, modules: l.programs[path].sorted()})
	}
	for _, path := range slices.Sorted(maps.Keys(l.modules)) {
		m := l.modules[path]
		m.folders = l.folders[path].sorted()
		m.imports = l.imports[path].sorted()
		found.modules = append(found.modules, m)
	}
	return found
}
