package testbed_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// child makes the test binary the process that the tests of this file kill: its
// value is the folder for the testbed.
const child = "TESTBED_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(child); dir != "" {
		if err := liveUntilKilled(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// whole builds a testbed with one of everything and returns it with the ids of
// its processes.
func whole(ctx context.Context, dir string) (*testbed.Testbed, []int, error) {
	binaries, err := tools.Build(ctx, io.Discard, tools.Etcd, tools.KubeAPIServer)
	if err != nil {
		return nil, nil, err
	}
	tb, err := testbed.New(testbed.Config{Dir: dir, Tools: binaries, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, nil, err
	}
	pids, err := fill(ctx, tb)
	if err != nil {
		return nil, nil, errors.Join(err, tb.Close())
	}
	return tb, pids, nil
}

func fill(ctx context.Context, tb *testbed.Testbed) ([]int, error) {
	c, err := tb.StartCluster(ctx, testbed.ClusterConfig{Name: "aws"})
	if err != nil {
		return nil, err
	}
	node, err := c.AddNode(ctx, testbed.NodeConfig{})
	if err != nil {
		return nil, err
	}
	pod, err := node.AddPod(ctx, testbed.PodConfig{})
	if err != nil {
		return nil, err
	}
	if err := pod.Serve(ctx, 80, nil); err != nil {
		return nil, err
	}
	if _, err := node.Get(ctx, pod.URL(80)); err != nil {
		return nil, err
	}
	if _, err := tb.Capture(); err != nil {
		return nil, err
	}
	var pids []int
	for _, host := range []*testbed.Host{&node.Host, &pod.Host} {
		pid, err := host.Space().Init()
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

func liveUntilKilled(dir string) error {
	_, pids, err := whole(context.Background(), dir)
	if err != nil {
		return err
	}
	fmt.Println(pids)
	select {}
}

// processesOf lists the processes whose command line mentions the folder, as
// those of the control plane do.
func processesOf(t *testing.T, dir string) []string {
	t.Helper()
	paths, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range paths {
		content, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(content), dir) {
			found = append(found, strings.ReplaceAll(string(content), "\x00", " "))
		}
	}
	return found
}

// alive counts the processes that still exist.
func alive(pids []int) (count int) {
	for _, pid := range pids {
		if syscall.Kill(pid, 0) == nil {
			count++
		}
	}
	return count
}

func folders(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "kube-semaphore-testbed-*"))
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestCloseLeavesNothing(t *testing.T) {
	nstest.Root(t)
	dir := t.TempDir()
	links := func() string {
		out, err := exec.Command("ip", "-o", "link", "show").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	before := strings.Count(links(), "\n")
	tb, pids, err := whole(deadline(t, 2*time.Minute), dir)
	if err != nil {
		t.Fatal(err)
	}
	if now := strings.Count(links(), "\n"); now != before {
		t.Errorf("this machine has %d links, had %d:\n%s", now, before, links())
	}
	if found := processesOf(t, dir); len(found) != 2 || alive(pids) != len(pids) {
		t.Errorf("before the end: %q, %d of %d, want etcd and kube-apiserver, and all", found, alive(pids), len(pids))
	}
	for range 2 {
		if err := tb.Close(); err != nil {
			t.Error(err)
		}
	}
	if found := processesOf(t, dir); len(found) > 0 || alive(pids) > 0 {
		t.Errorf("processes left: %q, %d", found, alive(pids))
	}
	if left := folders(t, dir); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestKilledTestbedLeavesAFolderThatTheNextOneRemoves(t *testing.T) {
	nstest.Root(t)
	dir := t.TempDir()
	for _, signal := range []syscall.Signal{syscall.SIGKILL, syscall.SIGINT} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), child+"="+dir)
		cmd.Stderr = t.Output()
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		var pids []int
		for field := range strings.FieldsSeq(strings.Trim(line, "[]\n")) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatalf("the child says %q", line)
			}
			pids = append(pids, pid)
		}
		if found := processesOf(t, dir); len(found) != 2 || alive(pids) != 2 {
			t.Errorf("before the end: %q and %d others", found, alive(pids))
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = cmd.Wait()
		err = testbed.Wait(deadline(t, time.Minute), "the end of all processes", func(context.Context) error {
			if found := processesOf(t, dir); len(found) > 0 || alive(pids) > 0 {
				return fmt.Errorf("left: %q, and %d others", found, alive(pids))
			}
			return nil
		})
		if err != nil {
			t.Errorf("%s: %v", signal, err)
		}
		if left := folders(t, dir); len(left) != 1 {
			t.Errorf("%s: %d folders, want the one that the dead left", signal, len(left))
		}
		tb, err := testbed.New(testbed.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		// Side by side with a living one.
		other, err := testbed.New(testbed.Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		if left := folders(t, dir); len(left) != 2 {
			t.Errorf("%s: %v, want those of the living only", signal, left)
		}
		if err := errors.Join(tb.Close(), other.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestTwoTestbedsWithTheSameAddresses(t *testing.T) {
	nstest.Root(t)
	ctx := deadline(t, 2*time.Minute)
	dir := t.TempDir()
	first, _, err := whole(ctx, dir)
	if err != nil {
		t.Fatal(err)
	}
	second, _, err := whole(ctx, dir)
	if err != nil {
		t.Fatal(errors.Join(err, first.Close()))
	}
	pods := []*testbed.Pod{
		first.Clusters()[0].Nodes()[0].Pods()[0],
		second.Clusters()[0].Nodes()[0].Pods()[0],
	}
	if pods[0].Addresses[0] != pods[1].Addresses[0] {
		t.Errorf("addresses differ: %s, %s", pods[0].Addresses[0], pods[1].Addresses[0])
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	if _, err := pods[1].Node.Get(ctx, pods[1].URL(80)); err != nil {
		t.Errorf("the second suffers from the end of the first: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Error(err)
	}
}
