package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kube-semaphore/kube-semaphore/e2e/tools"
)

// Before is the last commit whose agents serve devices themselves, know nothing of
// turns, and are rolled out without surge. Clusters are moved over from there.
const Before = "b1cc85b2dabfffb24964f4fbfe5319da060c7ad9"

// BuildBefore builds a program of cmd/ as it was at Before, from the repository's
// history, into dir and returns its path.
func BuildBefore(ctx context.Context, program, dir string) (path string, err error) {
	root, err := tools.Root(ctx)
	if err != nil {
		return "", err
	}
	source, err := os.MkdirTemp("", "kube-semaphore-before-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(source) }()
	archive := filepath.Join(source, "source.tar")
	path = filepath.Join(dir, program+"-before")
	for _, step := range []*exec.Cmd{
		exec.CommandContext(ctx, "git", "-C", root, "archive", "-o", archive, Before, "go.mod", "go.sum", "cmd", "internal", "mirror", "peers", "policy", "routes", "tunnel"),
		exec.CommandContext(ctx, "tar", "-C", source, "-xf", archive),
		exec.CommandContext(ctx, "go", "build", "-C", source, "-o", path, Module+"/cmd/"+program),
	} {
		if out, err := step.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s as of %s, which needs the repository's history: %w\n%s", program, Before, err, out)
		}
	}
	return path, nil
}

// FileBefore returns a file of the repository as it was at Before.
func FileBefore(ctx context.Context, path string) ([]byte, error) {
	root, err := tools.Root(ctx)
	if err != nil {
		return nil, err
	}
	content, err := exec.CommandContext(ctx, "git", "-C", root, "show", Before+":"+path).Output()
	if err != nil {
		return nil, fmt.Errorf("%s as of %s, which needs the repository's history: %w", path, Before, err)
	}
	return content, nil
}
