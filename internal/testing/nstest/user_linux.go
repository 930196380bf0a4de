package nstest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// userVariable is in the environment of a process that is root only in a user namespace of
// this package.
const userVariable = "NSTEST_USER_NAMESPACE"

// Main runs the tests of a package, for its TestMain, and returns the exit code. Without
// root it runs them as root in a user namespace, if the kernel permits that, which is
// sufficient for network namespaces. Otherwise it prints why not, and tests that need
// namespaces are skipped or fail.
func Main(m *testing.M) int {
	if os.Geteuid() == 0 {
		return m.Run()
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Args, cmd.Env = os.Args, os.Environ()
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS}
	if err := AsRoot(cmd); err != nil {
		fmt.Fprintln(os.Stderr, "nstest:", err)
		return m.Run()
	}
	return Again(cmd)
}

// FuzzWorker reports whether this process is a worker of go test -fuzz, which runs in the
// namespaces of its parent.
func FuzzWorker() bool { return slices.Contains(os.Args, "-test.fuzzworker") }

// AsRoot configures a command, with its SysProcAttr and Env set, to run as root: in a user
// namespace of its own, unless this process is root. It returns an error if the kernel
// doesn't permit that.
func AsRoot(cmd *exec.Cmd) error {
	if os.Geteuid() == 0 {
		return nil
	}
	probe := exec.Command("/bin/sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	mapRoot(probe.SysProcAttr)
	if out, err := probe.CombinedOutput(); err != nil {
		return fmt.Errorf("network namespaces need root here, because the kernel doesn't permit them in user namespaces: %w %s",
			err, strings.TrimSpace(string(out)))
	}
	mapRoot(cmd.SysProcAttr)
	cmd.Env = append(cmd.Env, userVariable+"=1")
	return nil
}

// mapRoot maps the current user to root in a new user namespace.
func mapRoot(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
}

// Again runs a command that executes this program again, usually in namespaces, and returns
// its exit code. The command is killed when this process ends.
func Again(cmd *exec.Cmd) int {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	// The signal for a parent's death comes when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The terminal signals the child as well, which handles the signal.
	signal.Ignore(os.Interrupt)
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "nstest: run tests in namespaces:", err)
		return 1
	}
	return 0
}

// Root declares that a test needs root on this machine. With -short the test is skipped;
// otherwise it fails without root, so that it is never skipped by accident.
func Root(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root: left out by -short")
	}
	QuickRoot(t)
}

// QuickRoot declares that a test needs root of this machine, as Root does, and takes seconds:
// under -short it runs where it has root.
func QuickRoot(t testing.TB) {
	t.Helper()
	switch {
	case isRoot():
	case testing.Short():
		t.Skip("NOT RUN: needs root")
	default:
		t.Fatal("needs root; run as root, or with -short to leave such tests out")
	}
}

// Long skips a test under -short. Shorter tests cover the same code.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out by -short; runs in make test-all")
	}
}

// isRoot reports whether this process is root of this machine.
func isRoot() bool { return os.Geteuid() == 0 && os.Getenv(userVariable) == "" }

// Namespaces declares that a test needs network namespaces, of which those in Main's user
// namespace are sufficient. Without them it is skipped with -short, and fails otherwise.
func Namespaces(t testing.TB) {
	t.Helper()
	switch {
	case os.Geteuid() == 0:
	case testing.Short():
		t.Skip("NOT RUN: needs root here to create network namespaces")
	default:
		t.Fatal("needs root here to create network namespaces; run as root, or with -short to leave such tests out")
	}
}

// TUN declares that a test creates TUN devices, for which root in a user namespace needs
// access to /dev/net/tun.
func TUN(t testing.TB) {
	t.Helper()
	Namespaces(t)
	if os.Getenv(userVariable) == "" {
		return
	}
	file, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err == nil {
		_ = file.Close() // unused
		return
	}
	if testing.Short() {
		t.Skipf("NOT RUN: needs root here to create TUN devices: %v", err)
	}
	t.Fatalf("needs root here to create TUN devices; run as root, or with -short to leave such tests out: %v", err)
}
