package udp

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// isolated is in the environment of a process with its own network namespace.
const isolated = "UDP_TEST_ISOLATED"

// TestMain runs the tests in a process with its own network namespace, which has only
// loopback: wireguard-go opens sockets on goroutines of its own.
func TestMain(m *testing.M) {
	if os.Getenv(isolated) != "" {
		if err := nstest.Prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare namespace:", err)
			os.Exit(1)
		}
		goleak.VerifyTestMain(m)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env = os.Args, append(os.Environ(), isolated+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if err := nstest.AsRoot(cmd); err != nil {
		fmt.Fprintln(os.Stderr, err)
		goleak.VerifyTestMain(m) // Tests that need namespaces skip or fail.
	}
	os.Exit(nstest.Again(cmd))
}
