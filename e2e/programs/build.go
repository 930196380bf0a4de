// Package programs runs our programs on the nodes of a testbed as in a cluster: as real
// processes, with the service accounts and rights of our manifests. Tests, demo and benchmarks
// share it.
package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// Module is the import path of the project's module.
const Module = "github.com/kube-semaphore/kube-semaphore"

// Controllers is the program of cmd/ that does what the name says by which it is called.
const Controllers = "semaphore-controllers"

// In returns the names of the programs that the Dockerfile of the sources in the folder root puts
// into the image, without the links' target.
func In(root string) ([]string, error) {
	folders, err := filepath.Glob(filepath.Join(root, "cmd", "semaphore-*"))
	if err != nil {
		return nil, err
	}
	var names []string
	for _, folder := range folders {
		if name := filepath.Base(folder); name != Controllers {
			names = append(names, name)
		} else {
			names = append(names, ServiceMirror, Policy, Relay, Tokens)
		}
	}
	return names, nil
}

// Package returns the import path of a program in the sources in the folder root.
func Package(root, program string) string {
	switch program {
	case ServiceMirror, Policy, Relay, Tokens:
		// Before, each was a program of its own.
		if _, err := os.Stat(filepath.Join(root, "cmd", program, "main.go")); err != nil {
			program = Controllers
		}
	}
	return Module + "/cmd/" + program
}

// Build builds a program of cmd/ into dir and returns its path. The agent gets the
// engine beside it, which it starts. flags are more arguments of "go build", such as
// -race.
func Build(ctx context.Context, program, dir string, flags ...string) (string, error) {
	if program == WireGuard {
		if _, err := Build(ctx, Engine, dir, flags...); err != nil {
			return "", err
		}
	}
	root, err := tools.Root(ctx)
	if err != nil {
		return "", err
	}
	return BuildIn(ctx, root, Package(root, program), filepath.Join(dir, program), flags...)
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
