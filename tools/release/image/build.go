package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/tools"
)

// builder is a buildah with a storage of its own.
type builder struct {
	dir    string // for everything, removed at the end
	root   string // of the repository
	arch   string // of this machine, in Go's words
	golang goEnv
	flags  []string
}

// goEnv is what we ask the Go tool of this machine.
type goEnv struct{ root, modCache, buildCache string }

func newBuilder(ctx context.Context) (*builder, error) {
	out, err := output(ctx, nil, "go", "env", "GOROOT", "GOMODCACHE", "GOCACHE", "GOARCH")
	if err != nil {
		return nil, err
	}
	env := strings.Split(strings.TrimSpace(out), "\n")
	if len(env) != 4 {
		return nil, fmt.Errorf("go env prints %q", env)
	}
	root, err := tools.Root()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "kube-semaphore-image-")
	if err != nil {
		return nil, err
	}
	return &builder{
		dir: dir, root: root, arch: env[3],
		golang: goEnv{root: env[0], modCache: env[1], buildCache: env[2]},
		// The plain driver works on every file system, also inside a container.
		flags: []string{"--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"},
	}, nil
}

// close unmounts and removes everything.
func (b *builder) close(ctx context.Context) error {
	_, err := b.buildah(ctx, "umount", "--all")
	return errors.Join(err, os.RemoveAll(b.dir))
}

func (b *builder) buildah(ctx context.Context, command string, args ...string) (string, error) {
	args = append(append(append([]string{}, b.flags...), command), args...)
	out, err := output(ctx, []string{"TMPDIR=" + b.dir, "BUILDAH_ISOLATION=chroot"}, "buildah", args...)
	return strings.TrimSpace(out), err
}

// Where builds upon the stand-in find what this machine has.
const (
	goMount    = "/stand-in/go"
	proxyMount = "/stand-in/modules"
	cacheMount = "/stand-in/build"
)

// standIn makes an image that has the name of the Dockerfile's base image and as
// much of its content as the Dockerfile uses: Go, git, a shell and certificates. Its
// Go is this machine's, as are its caches, which are filled with all modules first.
func (b *builder) standIn(ctx context.Context) error {
	name, err := b.baseName()
	if err != nil {
		return err
	}
	for _, module := range []string{b.root, filepath.Join(b.root, "tools")} {
		if _, err := output(ctx, nil, "go", "-C", module, "mod", "download"); err != nil {
			return err
		}
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return err
	}
	git, err := git(ctx)
	if err != nil {
		return err
	}
	container, err := b.buildah(ctx, "from", "scratch")
	if err != nil {
		return err
	}
	var steps [][]string
	for _, file := range git {
		steps = append(steps, []string{"copy", container, file, file})
	}
	steps = append(steps, [][]string{
		{"copy", container, busybox, "/bin/sh"},
		{"copy", container, "/etc/ssl/certs/ca-certificates.crt", "/etc/ssl/certs/ca-certificates.crt"},
		{
			"config",
			"--env", "PATH=" + goMount + "/bin:/bin:/usr/bin",
			"--env", "GOPATH=/go",
			"--env", "GOTOOLCHAIN=local",
			"--env", "GOPROXY=file://" + proxyMount,
			"--env", "GOSUMDB=off",
			"--env", "GOCACHE=" + cacheMount,
			container,
		},
		{"commit", "--rm", container, name},
	}...)
	for _, step := range steps {
		if _, err := b.buildah(ctx, step[0], step[1:]...); err != nil {
			return err
		}
	}
	return nil
}

// git returns the paths of git and of the libraries that it needs.
func git(ctx context.Context) ([]string, error) {
	program, err := exec.LookPath("git")
	if err != nil {
		return nil, err
	}
	out, err := output(ctx, nil, "ldd", program)
	if err != nil {
		return nil, err
	}
	files := []string{program}
	for word := range strings.FieldsSeq(out) {
		if filepath.IsAbs(word) {
			files = append(files, word)
		}
	}
	return files, nil
}

// baseName returns the name of the one image that the Dockerfile builds upon.
func (b *builder) baseName() (string, error) {
	content, err := os.ReadFile(filepath.Join(b.root, "Dockerfile"))
	if err != nil {
		return "", err
	}
	var names []string
	defaults := map[string]string{} // of arguments
	for line := range strings.Lines(string(content)) {
		words := strings.Fields(line)
		if len(words) == 2 && words[0] == "ARG" {
			name, value, _ := strings.Cut(words[1], "=")
			defaults[name] = value
		}
		if len(words) == 0 || words[0] != "FROM" {
			continue
		}
		words = words[1:]
		if strings.HasPrefix(words[0], "--") {
			words = words[1:]
		}
		if words[0] != "scratch" {
			names = append(names, os.Expand(words[0], func(name string) string { return defaults[name] }))
		}
	}
	if names = slices.Compact(names); len(names) != 1 {
		return "", fmt.Errorf("the Dockerfile builds upon %q, expected one image beside scratch", names)
	}
	return "localhost/" + names[0], nil
}

// build builds the Dockerfile, as it is, for an architecture, from a context.
func (b *builder) build(ctx context.Context, arch, folder string) (*image, error) {
	name := "localhost/kube-semaphore:" + arch
	if err := b.target(ctx, "", name, arch, folder); err != nil {
		return nil, err
	}
	root, err := b.mount(ctx, name, arch)
	if err != nil {
		return nil, err
	}
	config, err := b.buildah(ctx, "inspect", "--type", "image", "--format",
		"{{.OCIv1.Architecture}} {{.OCIv1.Config.User}}", name)
	if err != nil {
		return nil, err
	}
	return &image{root: root, arch: arch, config: config}, nil
}

// target builds the Dockerfile up to a stage, or all of it, and gives the result a
// name.
func (b *builder) target(ctx context.Context, stage, name, arch, folder string, arguments ...string) error {
	tmp, err := os.MkdirTemp(b.dir, "tmp-")
	if err != nil {
		return err
	}
	args := []string{
		"--pull-never",
		"--platform", "linux/" + arch,
		"--volume", tmp + ":/tmp",
		"--volume", b.golang.root + ":" + goMount + ":ro",
		"--volume", filepath.Join(b.golang.modCache, "cache", "download") + ":" + proxyMount + ":ro",
		"--volume", b.golang.buildCache + ":" + cacheMount,
		// Docker sets it by itself; buildah of Debian 12 doesn't.
		"--build-arg", "BUILDPLATFORM=linux/" + b.arch,
		"--tag", name,
	}
	if stage != "" {
		args = append(args, "--target", stage)
	}
	for _, argument := range arguments {
		args = append(args, "--build-arg", argument)
	}
	_, err = b.buildah(ctx, "build", append(args, folder)...)
	return err
}

// mount returns the folder with an image's files.
func (b *builder) mount(ctx context.Context, name, arch string) (string, error) {
	container, err := b.buildah(ctx, "from", "--pull-never", "--arch", arch, name)
	if err != nil {
		return "", err
	}
	return b.buildah(ctx, "mount", container)
}
