package tunnel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/nstest"
)

// Roles of this test binary, chosen with an environment variable.
const (
	roleVariable = "TUNNEL_TEST_ROLE"
	roleTests    = "tests"  // run the tests: the process has namespaces of its own
	roleAgent    = "agent"  // serve a device for a test, see agent
	roleHolder   = "holder" // have a port, see holdPort
)

// TestMain runs the tests in a process that has network and mount namespaces of
// its own. A namespace of a thread, which is all that one process can give a
// test, doesn't do: wireguard-go opens its sockets on goroutines of its own.
func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case roleAgent:
		os.Exit(runAgent())
	case roleHolder:
		os.Exit(runHolder())
	case roleTests:
		if err := isolate(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare namespaces:", err)
			os.Exit(1)
		}
		goleak.VerifyTestMain(m)
	}
	cmd := command(roleTests)
	cmd.Args = os.Args
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr.Cloneflags = unix.CLONE_NEWNET | unix.CLONE_NEWNS
	if err := nstest.AsRoot(cmd); err != nil {
		fmt.Fprintln(os.Stderr, err)
		goleak.VerifyTestMain(m) // Tests that need namespaces skip or fail.
	}
	os.Exit(nstest.Again(cmd))
}

// command is this program in another role. It dies with the thread that starts
// it.
func command(role string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// isolate prepares the namespaces of a new process: no UAPI sockets but its own,
// loopback up, and addresses that can be used at once.
func isolate() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	run := filepath.Dir(socketDir)
	if err := os.MkdirAll(run, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount %s: %w", run, err)
	}
	err := os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("switch off duplicate address detection: %w", err)
	}
	loopback, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(loopback)
}
