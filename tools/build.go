package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/flock"
)

// Config says where Build finds the tool modules and puts the binaries. The
// zero value serves callers that run inside the repository.
type Config struct {
	// Modules is the folder that holds the modules of the tools. Default: the folder tools of
	// the repository.
	Modules string
	// Cache is the folder for the binaries. Default: kube-semaphore/tools in
	// the user's cache folder ($XDG_CACHE_HOME, else $HOME/.cache).
	Cache string
	// Progress takes a line when a build starts, one when it ends, and some in
	// between: a build from nothing takes minutes. Default: none.
	Progress io.Writer
}

// Build returns the binaries of the named tools, after it has built those that
// the cache doesn't hold. Builders that run side by side wait for one another,
// module by module, and a build that was interrupted leaves nothing that a
// later one would take for whole.
func Build(ctx context.Context, cfg Config, names ...string) (Binaries, error) {
	if cfg.Progress == nil {
		cfg.Progress = io.Discard
	}
	modules, byModule, err := choose(names)
	if err != nil {
		return nil, err
	}
	if cfg.Modules == "" {
		root, err := Root()
		if err != nil {
			return nil, err
		}
		cfg.Modules = filepath.Join(root, "tools")
	}
	if cfg.Cache == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find the cache folder: %w", err)
		}
		cfg.Cache = filepath.Join(cache, "kube-semaphore", "tools")
	}
	if err := os.MkdirAll(cfg.Cache, 0o755); err != nil {
		return nil, fmt.Errorf("create the cache folder: %w", err)
	}
	binaries := make(Binaries, len(names))
	for _, module := range modules {
		if err := buildModule(ctx, cfg, module, byModule[module], binaries); err != nil {
			return nil, fmt.Errorf("build the tools of module %s: %w", module, err)
		}
	}
	return binaries, nil
}

// Root returns the folder of the repository, which the working directory must be in.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for root := dir; ; root = filepath.Dir(root) {
		if _, err := os.Stat(filepath.Join(root, "tools", "go.mod")); err == nil {
			return root, nil
		}
		if root == filepath.Dir(root) {
			return "", fmt.Errorf("%s isn't inside the repository", dir)
		}
	}
}

// buildModule adds the binaries of tools, which all belong to one module, to
// binaries.
func buildModule(ctx context.Context, cfg Config, module string, tools []tool, binaries Binaries) error {
	dir := filepath.Join(cfg.Modules, module)
	toolchain, err := goCommand(ctx, dir, "env", "GOVERSION", "GOOS", "GOARCH")
	if err != nil {
		return err
	}
	sum, err := key(dir, toolchain)
	if err != nil {
		return err
	}
	missing := func() (missing []tool) {
		for _, t := range tools {
			path := filepath.Join(cfg.Cache, t.folder(sum), t.name)
			if _, err := os.Stat(path); err != nil {
				missing = append(missing, t)
				continue
			}
			binaries[t.name] = path
		}
		return missing
	}
	if len(missing()) == 0 {
		return nil
	}
	unlock, err := lock(ctx, filepath.Join(cfg.Cache, "."+module+".lock"))
	if err != nil {
		return err
	}
	defer unlock()
	byTags := map[string][]tool{} // a build has one set of them
	for _, t := range missing() {
		byTags[t.tags] = append(byTags[t.tags], t)
	}
	for _, tags := range slices.Sorted(maps.Keys(byTags)) {
		if err := buildTools(ctx, cfg, dir, sum, byTags[tags]); err != nil {
			return err
		}
	}
	if left := missing(); len(left) > 0 {
		return fmt.Errorf("the build left no binary of %s", left[0].name)
	}
	return nil
}

// buildTools builds tools of one module that have the same tags: at once, because
// most of what they are made of is the same. It does so beside their places in the
// cache and renames whole folders into those, because a rename is all or nothing.
func buildTools(ctx context.Context, cfg Config, dir, sum string, tools []tool) error {
	gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	var names, packages []string
	flags := []string{ldflags}
	for _, t := range tools {
		names, packages = append(names, t.name), append(packages, t.pkg)
		if version := moduleVersion(string(gomod), t.of); t.version != "" && version != "" {
			flags = append(flags, "-X "+t.version+"="+version)
		}
	}
	partial, err := os.MkdirTemp(cfg.Cache, ".partial-")
	if err != nil {
		return err
	}
	defer func() {
		// Empty after a successful build; else a leftover that does no harm.
		_ = os.RemoveAll(partial)
	}()
	what := strings.Join(names, ", ")
	p := startProgress(cfg, what)
	defer p.stop()
	// This also downloads what is missing.
	needed, err := goCommandTo(ctx, p, dir, slices.Concat([]string{"list", "-deps", "-tags", tools[0].tags}, packages)...)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	p.building(strings.Count(needed, "\n") + 1)
	// The slash makes go build write to a folder.
	if _, err := goCommandTo(ctx, p, dir, slices.Concat([]string{"build", "-v", "-trimpath", "-buildvcs=false", "-tags", tools[0].tags,
		"-gcflags", gcflags, "-ldflags", strings.Join(slices.Compact(flags), " "), "-o", partial + "/"}, packages)...); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for _, t := range tools {
		if err := place(cfg, t, filepath.Join(partial, t.file()), sum); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	p.done()
	return nil
}

// place puts a binary into the cache.
func place(cfg Config, t tool, binary, sum string) error {
	folder := binary + ".folder"
	if err := os.Mkdir(folder, 0o755); err != nil {
		return err
	}
	if err := os.Rename(binary, filepath.Join(folder, t.name)); err != nil {
		return err
	}
	// What stands there has no binary in it: missing looked under the lock.
	at := filepath.Join(cfg.Cache, t.folder(sum))
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	return os.Rename(folder, at)
}

// goCommand runs the go command in dir, static and for this platform, and
// returns what it printed, trimmed.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	return goCommandTo(ctx, io.Discard, dir, args...)
}

// goCommandTo is goCommand, with what the go command says on the way for said.
func goCommandTo(ctx context.Context, said io.Writer, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	// The compiler collects garbage less often than it would by itself, while memory
	// lasts for two of them, which saves a tenth of its time.
	cmd.Env = append([]string{"GOGC=400", "GOMEMLIMIT=1500MiB"}, append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, io.MultiWriter(said, &stderr)
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// lock creates a file and locks it exclusively, after a process that has it locked. The
// kernel releases the lock when its holder dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	if err := flock.Wait(ctx, f, 100*time.Millisecond); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}
