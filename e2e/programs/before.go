package programs

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// Before is the last commit whose agents serve devices themselves, don't support takeover, and
// are rolled out without surge. Clusters are upgraded from it.
const Before = "b1cc85b2dabfffb24964f4fbfe5319da060c7ad9"

// BuildBefore builds a program of cmd/ as it was at Before, from the repository's
// history, into dir and returns its path.
func BuildBefore(ctx context.Context, program, dir string) (path string, err error) {
	root, err := os.MkdirTemp("", "kube-semaphore-before-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(root) }()
	if err := Sources(ctx, Before, root); err != nil {
		return "", err
	}
	return BuildIn(ctx, root, Package(root, program), filepath.Join(dir, program+"-before"))
}

// Sources puts the repository as it was at a revision, from its history, into the folder
// dir.
func Sources(ctx context.Context, revision, dir string) error {
	root, err := tools.Root(ctx)
	if err != nil {
		return err
	}
	archive := filepath.Join(dir, "sources.tar")
	for _, step := range []*exec.Cmd{
		exec.CommandContext(ctx, "git", "-C", root, "archive", "-o", archive, revision),
		exec.CommandContext(ctx, "tar", "-C", dir, "-xf", archive),
	} {
		if out, err := step.CombinedOutput(); err != nil {
			return fmt.Errorf("sources as of %s, which needs the repository's history: %w\n%s", revision, err, out)
		}
	}
	return os.Remove(archive)
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
