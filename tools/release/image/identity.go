package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// version is the tag of the commit in our repository.
const version = "v0.0.0-check"

// A repository is a context with the files of the working tree in one commit.
type repository struct {
	dir      string
	revision string
}

// repository makes one.
func (b *builder) repository(ctx context.Context) (*repository, error) {
	repo := &repository{dir: filepath.Join(b.dir, "context")}
	for _, args := range [][]string{
		{"init", "--quiet", repo.dir},
		{"--work-tree", b.root, "add", "--all"},
		{"-c", "user.name=check", "-c", "user.email=check@localhost", "commit", "--quiet", "--message", "The working tree."},
		{"tag", version},
		{"-C", repo.dir, "reset", "--quiet", "--hard"},
		{"rev-parse", "HEAD"},
	} {
		out, err := output(ctx, []string{"GIT_DIR=" + filepath.Join(repo.dir, ".git"), "GIT_CONFIG_GLOBAL=/dev/null"}, "git", args...)
		if err != nil {
			return nil, err
		}
		repo.revision = strings.TrimSpace(out)
	}
	return repo, nil
}

// build is how a program names a build of the commit.
func (r *repository) build() string { return version + " (revision " + r.revision[:12] + "," }

// identities checks what the Dockerfile takes for version and revision. It changes
// the repository.
func (b *builder) identities(ctx context.Context, repo *repository) error {
	path := func(name string) string { return filepath.Join(repo.dir, name) }
	var errs []error
	for i, c := range []struct {
		name      string
		change    func() error
		arguments []string
		want      string
	}{
		{"arguments", func() error { return nil }, []string{"VERSION=v1.2.3", "REVISION=0123"}, "v1.2.3 0123"},
		{"a file changed that the context leaves out", func() error {
			return os.WriteFile(path("README.md"), nil, 0o600)
		}, nil, version + " " + repo.revision},
		{"a file of the context added", func() error {
			return os.WriteFile(path("cmd/added.go"), nil, 0o600)
		}, nil, version + "-dirty " + repo.revision + "-dirty"},
		{"a file of the context changed", func() error {
			return errors.Join(os.Remove(path("cmd/added.go")), os.WriteFile(path("LICENSE"), nil, 0o600))
		}, nil, version + "-dirty " + repo.revision + "-dirty"},
		{"no repository", func() error { return os.RemoveAll(path(".git")) }, nil, "devel unknown"},
	} {
		if err := c.change(); err != nil {
			return err
		}
		have, err := b.identity(ctx, fmt.Sprintf("localhost/source:%d", i), repo.dir, c.arguments)
		if err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
		if have != c.want {
			errs = append(errs, fmt.Errorf("%s: the build is %q, expected %q", c.name, have, c.want))
		}
	}
	return errors.Join(errs...)
}

// identity builds what is beside the sources that are compiled, and returns the
// version and the revision.
func (b *builder) identity(ctx context.Context, name, folder string, arguments []string) (string, error) {
	if err := b.target(ctx, "source", name, b.arch, folder, arguments...); err != nil {
		return "", err
	}
	root, err := b.mount(ctx, name, b.arch)
	if err != nil {
		return "", err
	}
	if _, err := os.Lstat(filepath.Join(root, "src", ".git")); !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("the repository is among the sources: %w", err)
	}
	content, err := os.ReadFile(filepath.Join(root, "build"))
	return strings.TrimSpace(string(content)), err
}
