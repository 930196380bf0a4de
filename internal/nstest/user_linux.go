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

// userVariable is in the environment of a process that is root only in a user
// namespace of this package's.
const userVariable = "NSTEST_USER_NAMESPACE"

// Main runs the tests of a package, for its TestMain, and returns the exit code.
// Who isn't root is root in a user namespace for them, where the kernel lets that
// be: network namespaces need no more. Where it doesn't, Main says so, and the
// tests that want namespaces say it again.
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

// FuzzWorker reports whether this process fuzzes for another one, whose namespaces it has,
// with what was prepared in them.
func FuzzWorker() bool { return slices.Contains(os.Args, "-test.fuzzworker") }

// AsRoot lets a command, which isn't started and has its attributes and
// environment, be root: in a user namespace of its own, unless this process is root
// already. Its error says why that can't be here.
func AsRoot(cmd *exec.Cmd) error {
	if os.Geteuid() == 0 {
		return nil
	}
	probe := exec.Command("/bin/sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	probe.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	mapRoot(probe.SysProcAttr)
	if out, err := probe.CombinedOutput(); err != nil {
		return fmt.Errorf("network namespaces need root here, because the kernel doesn't let a user namespace have them: %w %s",
			err, strings.TrimSpace(string(out)))
	}
	mapRoot(cmd.SysProcAttr)
	cmd.Env = append(cmd.Env, userVariable+"=1")
	return nil
}

// mapRoot makes who starts a process root in a user namespace of its own.
func mapRoot(attr *syscall.SysProcAttr) {
	attr.Cloneflags |= unix.CLONE_NEWUSER
	attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}}
	attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}}
}

// Again runs this program as a command, usually in namespaces, and returns its exit
// code. It dies with this process.
func Again(cmd *exec.Cmd) int {
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	// The signal for a parent's death comes when the thread that forked ends.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// The child gets a terminal's signals itself, and decides.
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

// Root states that a test needs root of this machine. Under -short the test is
// skipped; otherwise it fails when it isn't root, so that a run that proves nothing
// is never green by accident.
func Root(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("needs root: left out by -short")
	}
	if os.Geteuid() != 0 || os.Getenv(userVariable) != "" {
		t.Fatal("needs root; run as root, or with -short to leave such tests out")
	}
}

// Namespaces states that a test needs network namespaces, and nothing else of
// root's: it runs in a user namespace, too, which Main makes. Where there is none it
// is skipped under -short, and fails otherwise.
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

// TUN states that a test makes TUN devices: who is root in a user namespace must
// be let at the file for them, as on most machines everybody is.
func TUN(t testing.TB) {
	t.Helper()
	Namespaces(t)
	if os.Getenv(userVariable) == "" {
		return
	}
	file, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err == nil {
		_ = file.Close() // Nothing was done with it.
		return
	}
	if testing.Short() {
		t.Skipf("NOT RUN: needs root here to create TUN devices: %v", err)
	}
	t.Fatalf("needs root here to create TUN devices; run as root, or with -short to leave such tests out: %v", err)
}
