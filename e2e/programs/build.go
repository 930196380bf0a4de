// Package programs runs our programs on the nodes of a testbed as in a cluster: as real
// processes, with the service accounts and rights of our manifests. Tests, demo and benchmarks
// share it.
package programs

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// Module is the import path of the project's module.
const Module = "github.com/kube-semaphore/kube-semaphore"

// Build builds a program of cmd/ into dir and returns its path. The agent gets the
// engine beside it, which it starts. flags are more arguments of "go build", such as
// -race.
func Build(ctx context.Context, program, dir string, flags ...string) (string, error) {
	if program == WireGuard {
		if _, err := Build(ctx, Engine, dir, flags...); err != nil {
			return "", err
		}
	}
	return BuildPackage(ctx, Module+"/cmd/"+program, filepath.Join(dir, program), flags...)
}

// BuildWireGuardGo builds wireguard-go by itself, of the version that the agent
// embeds, into dir and returns its path.
func BuildWireGuardGo(ctx context.Context, dir string) (string, error) {
	return BuildPackage(ctx, "golang.zx2c4.com/wireguard", filepath.Join(dir, "wireguard-go"), "-ldflags=-s -w")
}

// BuildPackage builds a main package into a file, or with a slash at the end of path
// all of a pattern into a folder, and returns path.
func BuildPackage(ctx context.Context, pkg, path string, flags ...string) (string, error) {
	root, err := tools.Root(ctx)
	if err != nil {
		return "", err
	}
	return BuildIn(ctx, root, pkg, path, flags...)
}

// BuildIn is BuildPackage of the sources in the folder root. Where that is makes no
// difference to what is built: the same sources elsewhere aren't compiled again.
func BuildIn(ctx context.Context, root, pkg, path string, flags ...string) (string, error) {
	args := append([]string{"build", "-trimpath", "-o", path}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, pkg)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return path, nil
}
