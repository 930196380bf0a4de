package programs_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// boundVariable is in the environment of a process that serves a device late: it holds
// the path of a file whose appearance lets it listen.
const boundVariable = "PROGRAMS_TEST_LISTEN"

const lateSocket = "/var/run/wireguard/late.sock"

func TestMain(m *testing.M) {
	if file := os.Getenv(boundVariable); file != "" {
		if err := serveLate(file); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// serveLate binds the socket, and listens once there is the file.
func serveLate(file string) error {
	if err := os.Mkdir(filepath.Dir(lateSocket), 0o755); err != nil {
		return err
	}
	socket, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	if err := unix.Bind(socket, &unix.SockaddrUnix{Name: lateSocket}); err != nil {
		return err
	}
	for {
		if _, err := os.Stat(file); err == nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if err := unix.Listen(socket, 1); err != nil {
		return err
	}
	_, _, err = unix.Accept(socket)
	return err
}

// TestASocketThatIsNotListenedOnYetStays waits for a process between its bind and its
// listen, in which state a busy machine may leave it for long.
func TestASocketThatIsNotListenedOnYetStays(t *testing.T) {
	nstest.Root(t)
	mounts := []sandbox.Mount{sandbox.Tmpfs("/run")}
	if run, err := filepath.EvalSymlinks("/var/run"); err == nil && run != "/run" {
		mounts = append(mounts, sandbox.Tmpfs("/var/run"))
	}
	space, err := sandbox.New("late", mounts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := space.Close(); err != nil {
			t.Error(err)
		}
	})
	dir := t.TempDir()
	listen := filepath.Join(dir, "listen")
	process, err := space.Start(sandbox.Command{
		Name: "late", Path: "/proc/self/exe", Env: []string{boundVariable + "=" + listen}, Log: filepath.Join(dir, "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	refused, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if conn, err := programs.DialUAPI(refused, process, "late"); err == nil {
		_ = conn.Close()
		t.Error("no process listens, and there is an answer")
	}
	if err := os.WriteFile(listen, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	answered, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := programs.DialUAPI(answered, process, "late")
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
}
