package engine_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
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
			loopbackUp(),
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

func loopbackUp() error {
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(loopback)
}
