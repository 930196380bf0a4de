package tunnel

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/enginetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// Roles of this test binary, chosen with an environment variable.
const (
	roleVariable = "TUNNEL_TEST_ROLE"
	roleTests    = "tests"  // run the tests, in their own namespaces
	roleAgent    = "agent"  // serve a device for a test, see agent
	roleHolder   = "holder" // bind a port, see holdPort
)

// TestMain runs the tests in a process with its own network and mount namespaces. The
// namespace of a thread isn't enough: wireguard-go opens its sockets on other goroutines.
func TestMain(m *testing.M) {
	enginetest.Main()
	switch os.Getenv(roleVariable) {
	case roleAgent:
		os.Exit(runAgent())
	case roleHolder:
		os.Exit(runHolder())
	case roleTests:
		if nstest.FuzzWorker() { // several at once, with the same path for an engine's socket
			os.Exit(m.Run())
		}
		if err := isolate(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare namespaces:", err)
			os.Exit(1)
		}
		goleak.VerifyTestMain(withEngine{m})
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

// withEngine runs tests with an engine.
type withEngine struct{ tests *testing.M }

// Run implements goleak.TestingM.
func (w withEngine) Run() (code int) {
	if err := startTestEngine(); err != nil {
		fmt.Fprintln(os.Stderr, "start engine:", err)
		return 1
	}
	code = w.tests.Run()
	if code != 0 {
		fmt.Fprintf(os.Stderr, "log of the engine:\n%s", engineLog.Take())
	}
	if err := endTestEngine(); err != nil {
		fmt.Fprintln(os.Stderr, "end engine:", err)
		return 1
	}
	return code
}

// endTestEngine ends the engine of the tests.
var endTestEngine func() error

func startTestEngine() (err error) {
	endTestEngine, err = enginetest.Start(slog.New(slog.NewTextHandler(&engineLog, nil)))
	return err
}

// withoutEngine stops the engine of the tests until comes is called, or the test ends. Moving
// its socket wouldn't be enough: the engine watches that, and restores it or exits when
// another engine has it.
func withoutEngine(t *testing.T) (comes func()) {
	t.Helper()
	nstest.Namespaces(t)
	if err := endTestEngine(); err != nil {
		t.Fatal(err)
	}
	comes = sync.OnceFunc(func() {
		if err := startTestEngine(); err != nil {
			panic(fmt.Sprintf("start engine: %v", err)) // No other test could pass.
		}
	})
	t.Cleanup(comes)
	return comes
}

// engineLog is the log of the tests' engine, without its serving process.
var engineLog logtest.Buffer

// command is this program in another role. It is killed when the starting thread ends.
func command(role string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// isolate prepares the namespaces of a new process: no foreign UAPI sockets, loopback up, and
// addresses that can be used at once.
func isolate() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	run := filepath.Dir(control.Dir)
	if err := os.MkdirAll(run, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", run, "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount %s: %w", run, err)
	}
	return nstest.Prepare()
}
