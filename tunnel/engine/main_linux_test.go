package engine_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/enginetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// insideVariable is set in a test process with namespaces of its own.
const insideVariable = "ENGINE_TEST_INSIDE"

// TestMain runs the tests in network and mount namespaces of their own, and so with sockets
// of their own.
func TestMain(m *testing.M) {
	enginetest.Main()
	if os.Getenv(remoteVariable) != "" {
		if err := serveRemote(); err != nil {
			fmt.Fprintln(os.Stderr, "remote:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if os.Getenv(insideVariable) != "" {
		if nstest.FuzzWorker() {
			os.Exit(m.Run())
		}
		run := filepath.Dir(control.Dir)
		err := errors.Join(
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			os.MkdirAll(run, 0o755),
			unix.Mount("tmpfs", run, "tmpfs", 0, "mode=0755"),
			nstest.Prepare(),
		)
		if err != nil {
			fmt.Fprintln(os.Stderr, "prepare namespaces:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env = os.Args, append(os.Environ(), insideVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	if err := nstest.AsRoot(cmd); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(m.Run()) // Tests that need namespaces skip or fail.
	}
	os.Exit(nstest.Again(cmd))
}

// apartVariable names the test that a process is started for by apart.
const apartVariable = "ENGINE_TEST_APART"

// apart runs a test that mostly waits for timeouts beside others, in a process with namespaces
// of its own, because an engine is alone in its namespaces. In that process it returns false.
func apart(t *testing.T) (done bool) {
	t.Helper()
	if os.Getenv(apartVariable) == t.Name() {
		return false
	}
	nstest.Namespaces(t)
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=10m",
		fmt.Sprintf("-test.short=%v", testing.Short()))
	cmd.Env = append(os.Environ(), insideVariable+"=", apartVariable+"="+t.Name())
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("it doesn't pass in a process of its own: %v", err)
	}
	return true
}
