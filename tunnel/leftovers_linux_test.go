package tunnel

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestUnfinishedFilesAreRemoved(t *testing.T) {
	nstest.Namespaces(t)
	dir := t.TempDir()
	const long = "a-very-long-name"
	ours := []string{
		filepath.Join(dir, DeviceName("gcp")+".key.new"),
		filepath.Join(dir, DeviceName(long)+".key.new"),
	}
	theirs := []string{
		filepath.Join(dir, DeviceName("gcp")+".key"),
		filepath.Join(dir, DeviceName("gcp")+".key.bad-1"),
		filepath.Join(dir, "other.key.new"),
		filepath.Join(dir, "wireguard.gcp.new"),
	}
	for _, path := range append(slices.Clone(theirs), ours...) {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		writeTestFile(t, path, "x", 0o600)
	}

	removed, err := RemoveUnfinished(dir)
	if diff := cmp.Diff(ours, removed); diff != "" || err != nil {
		t.Errorf("%v, removed (-want +got):\n%s", err, diff)
	}
	for _, path := range ours {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want it gone", path, err)
		}
	}
	for _, path := range theirs {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("%s: %v, want it to stay", path, err)
		}
	}
	if removed, err := RemoveUnfinished(dir); len(removed) > 0 || err != nil {
		t.Errorf("a second call: %v, %v", removed, err)
	}
}
