package testbed

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// withGroups is a testbed that has the control groups of a machine, with one inside
// them as of a pod, and returns the latter.
func withGroups(t *testing.T, dir string) (*Testbed, []string) {
	t.Helper()
	nstest.Root(t)
	tb, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	g, err := tb.newGroups("aws-1")
	if err != nil {
		t.Fatal(err)
	}
	if len(g.paths) != len(g.hierarchies) {
		t.Errorf("%d groups in the hierarchies %q", len(g.paths), g.hierarchies)
	}
	var pods []string
	for i, path := range g.paths {
		pod := filepath.Join(controlGroupRoot, strings.TrimPrefix(g.hierarchies[i], "name="), path, "pod")
		if err := os.Mkdir(pod, 0o755); err != nil {
			t.Fatal(err)
		}
		pods = append(pods, pod)
	}
	return tb, pods
}

func gone(t *testing.T, paths []string) {
	t.Helper()
	for _, path := range paths {
		testbedGroup := filepath.Dir(filepath.Dir(path))
		if _, err := os.Stat(testbedGroup); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", testbedGroup, err)
		}
	}
}

func TestControlGroupsGoWithTheTestbed(t *testing.T) {
	tb, pods := withGroups(t, t.TempDir())
	if err := tb.Close(); err != nil {
		t.Fatal(err)
	}
	gone(t, pods)
}

func TestControlGroupsOfADeadTestbedAreRemoved(t *testing.T) {
	dir := t.TempDir()
	dead, pods := withGroups(t, dir)
	// What the kernel does when its process dies.
	if err := dead.underlay.close(); err != nil {
		t.Fatal(err)
	}
	if err := dead.state.lock.Close(); err != nil {
		t.Fatal(err)
	}
	next, err := New(Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	gone(t, pods)
	if err := next.Close(); err != nil {
		t.Fatal(err)
	}
}
