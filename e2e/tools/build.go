package tools

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Config says where Build finds the tool modules and puts the binaries. The
// zero value serves callers that run inside the repository.
type Config struct {
	// Modules is the folder that holds the tool modules. Default: e2e/tools of
	// the module that encloses the working directory.
	Modules string
	// Cache is the folder for the binaries. Default: kube-semaphore/tools in
	// the user's cache folder ($XDG_CACHE_HOME, else $HOME/.cache).
	Cache string
	// Progress takes a line when a build starts and one when it ends. A build
	// from nothing takes minutes. Default: none.
	Progress io.Writer
}

// report prints a line of progress. A reader that has gone away is no reason to
// stop building.
func (cfg Config) report(format string, args ...any) {
	_, _ = fmt.Fprintf(cfg.Progress, format+"\n", args...)
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
		root, err := Root(ctx)
		if err != nil {
			return nil, err
		}
		cfg.Modules = filepath.Join(root, "e2e", "tools")
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

// Root returns the folder of the repository, which the working directory must be
// in.
func Root(ctx context.Context) (string, error) {
	gomod, err := goCommand(ctx, "", "env", "GOMOD")
	if err != nil {
		return "", err
	}
	root := filepath.Dir(gomod)
	if _, err := os.Stat(filepath.Join(root, "e2e", "tools")); err != nil {
		return "", fmt.Errorf("find the repository (run this inside it): %w", err)
	}
	return root, nil
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
	for _, t := range missing() {
		if err := buildTool(ctx, cfg, dir, sum, t); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	if left := missing(); len(left) > 0 {
		return fmt.Errorf("the build left no binary of %s", left[0].name)
	}
	return nil
}

// buildTool builds one tool beside its place in the cache and renames the
// whole folder into it, because a rename is all or nothing.
func buildTool(ctx context.Context, cfg Config, dir, sum string, t tool) error {
	gomod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	flags := ldflags
	if version := moduleVersion(string(gomod), t.of); t.version != "" && version != "" {
		flags += " -X " + t.version + "=" + version
	}
	partial, err := os.MkdirTemp(cfg.Cache, ".partial-")
	if err != nil {
		return err
	}
	defer func() {
		// Gone after a successful build; else a leftover that does no harm.
		_ = os.RemoveAll(partial)
	}()
	if err := os.Chmod(partial, 0o755); err != nil {
		return err
	}
	start := time.Now()
	cfg.report("building %s (minutes when Go's build cache is empty)", t.name)
	if _, err := goCommand(ctx, dir, "build", "-trimpath", "-buildvcs=false", "-tags", t.tags,
		"-ldflags", flags, "-o", filepath.Join(partial, t.name), t.pkg); err != nil {
		return err
	}
	place := filepath.Join(cfg.Cache, t.folder(sum))
	// What stands there has no binary in it: missing looked under the lock.
	if err := os.RemoveAll(place); err != nil {
		return err
	}
	if err := os.Rename(partial, place); err != nil {
		return err
	}
	cfg.report("built %s in %s", t.name, time.Since(start).Round(time.Second))
	return nil
}

// goCommand runs the go command in dir, static and for this platform, and
// returns what it printed, trimmed.
func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s", args[0], err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// lock takes an exclusive lock on a file, which it creates, and waits for
// whoever holds it. The kernel gives the lock back when its holder dies.
func lock(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the lock file: %w", err)
	}
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, ctx.Err()), f.Close())
		case <-ticker.C:
		}
	}
}
