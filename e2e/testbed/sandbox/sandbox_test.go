package sandbox_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

// child makes the test binary the process that TestNothingOutlivesAKilledProcess
// kills.
const child = "SANDBOX_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(child) != "" {
		if err := liveUntilKilled(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func newSpace(t *testing.T, mounts ...sandbox.Mount) *sandbox.Space {
	t.Helper()
	nstest.Root(t)
	s, err := sandbox.New(t.Name(), mounts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func start(t *testing.T, s *sandbox.Space, c sandbox.Command) *sandbox.Process {
	t.Helper()
	c.Name, c.Path = "shell", "/bin/sh"
	if c.Log == "" {
		c.Log = filepath.Join(t.TempDir(), "log")
	}
	p, err := s.Start(c)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// eventually waits for a condition that is expected to hold within seconds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	polltest.Until(t, time.Minute, what, condition)
}

func TestProcessIsInsideTheNamespace(t *testing.T) {
	s := newSpace(t)
	id, err := s.ID()
	if err != nil {
		t.Fatal(err)
	}
	out, err := s.Output(t.Context(), "sh", "-c", "readlink /proc/self/ns/net && cat /proc/$$/comm && set -- /proc/[0-9]* && echo $#")
	// The processes are the first and the shell, which looks itself: of those in a
	// pipeline one may look before the next one is there.
	if want := fmt.Sprintf("net:[%d]\nsh\n2\n", id); err != nil || out != want {
		t.Errorf("a process sees %q, %v, want %q", out, err, want)
	}
	before, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if before == fmt.Sprintf("net:[%d]", id) {
		t.Error("this process has moved")
	}
}

func TestMountsAreTheSpacesOwn(t *testing.T) {
	shared, changes := t.TempDir(), t.TempDir()
	s := newSpace(t,
		sandbox.Tmpfs("/run"),
		sandbox.Bind(shared, "/var/lib"),
		sandbox.Overlay("/etc", changes),
		sandbox.Sysfs(),
	)
	marker := filepath.Base(shared) + ".marker"
	script := fmt.Sprintf("touch /run/%[1]s /var/lib/%[1]s /etc/%[1]s && ls /run /sys/class/net && cat /etc/hostname", marker)
	out, err := s.Output(t.Context(), "sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	hostname, err := os.ReadFile("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	want := "/run:\n" + marker + "\n\n/sys/class/net:\nlo\n" + string(hostname)
	if out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	for _, dir := range []string{"/run", "/var/lib", "/etc"} {
		if _, err := os.Stat(filepath.Join(dir, marker)); err == nil {
			t.Errorf("the marker is in %s of this machine", dir)
		}
	}
	if _, err := os.Stat(filepath.Join(shared, marker)); err != nil {
		t.Errorf("the marker isn't in the bound folder: %v", err)
	}
}

func TestMountsOfOneProcessAreItsOwn(t *testing.T) {
	s := newSpace(t, sandbox.Tmpfs("/run"))
	secret := t.TempDir()
	file := filepath.Join(secret, "token")
	if err := os.WriteFile(file, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := start(t, s, sandbox.Command{
		Args: []string{"-c", "cat /var/run/secrets/token /run/one && touch /run/shared"},
		Mounts: []sandbox.Mount{
			sandbox.Bind(secret, "/var/run/secrets"),
			sandbox.Bind(file, "/run/one"),
		},
	})
	<-p.Done()
	if p.Err() != nil || p.Log() != "secretsecret" {
		t.Errorf("%v, %q, want the secret twice", p.Err(), p.Log())
	}
	if out, err := s.Output(t.Context(), "sh", "-c", "cat /run/secrets/token || ls /run/shared"); err != nil || !strings.Contains(out, "/run/shared") {
		t.Errorf("another process sees %q, %v, want no token, and the file that the first one made", out, err)
	}
}

func TestMountRefusesToChangeThisMachine(t *testing.T) {
	nstest.Root(t)
	target := filepath.Join(t.TempDir(), "missing", "folder")
	s, err := sandbox.New("refused", sandbox.Tmpfs("/run"), sandbox.Bind(t.TempDir(), target))
	if err == nil {
		t.Fatal(errors.Join(errors.New("created a mount point on this machine"), s.Close()))
	}
	if !strings.Contains(err.Error(), target) {
		t.Errorf("error %v doesn't name the target", err)
	}
	if _, err := os.Stat(filepath.Dir(target)); err == nil {
		t.Error("the parent of the target exists")
	}
}

func TestSocketsBelongToTheSpace(t *testing.T) {
	s, other := newSpace(t), newSpace(t)
	listener, err := s.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		accepted, err := listener.Accept()
		if err == nil {
			_, _ = accepted.Write([]byte("hello"))
			_ = accepted.Close()
		}
	}()
	conn, err := s.Dial(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if line, _ := bufio.NewReader(conn).ReadString('\n'); line != "hello" {
		t.Errorf("got %q, want hello", line)
	}
	if _, err := other.Dial(t.Context(), "tcp", listener.Addr().String()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("from another space: %v, want refused", err)
	}
	if _, err := s.Dial(t.Context(), "tcp", "localhost:1"); err == nil || !strings.Contains(err.Error(), "IP address") {
		t.Errorf("dial by name: %v, want an error that says so", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(nil); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection after Close: %v, want closed", err)
	}
	if _, err := s.Dial(t.Context(), "tcp", "127.0.0.1:1"); err == nil {
		t.Error("dial after Close")
	}
}

func TestDoComesBack(t *testing.T) {
	s := newSpace(t)
	want := errors.New("inside")
	// Many at a time, so that threads are used again.
	done := make(chan error)
	for range 50 {
		go func() { done <- s.Do(func() error { return want }) }()
	}
	for range 50 {
		if err := <-done; !errors.Is(err, want) {
			t.Errorf("got %v, want the error of the function", err)
		}
	}
	id, err := s.ID()
	if err != nil {
		t.Fatal(err)
	}
	// The thread that created the namespace may be about to end.
	eventually(t, "no thread in the namespace", func() bool {
		tasks, err := filepath.Glob("/proc/self/task/*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(tasks, func(task string) bool {
			link, err := os.Readlink(task)
			return err == nil && link == fmt.Sprintf("net:[%d]", id)
		})
	})
}

func TestPIDsAreThoseOfTheSpace(t *testing.T) {
	here, elsewhere := newSpace(t), newSpace(t)
	// One is started by another one, which ends.
	orphan := start(t, here, sandbox.Command{Args: []string{"-c", "sh -c 'sleep 1000; true' & exit 0"}})
	own := start(t, here, sandbox.Command{Args: []string{"-c", "sleep 1000; true"}})
	start(t, elsewhere, sandbox.Command{Args: []string{"-c", "sleep 1000; true"}})
	<-orphan.Done()
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	// What a shell starts is a shell, too, for a moment.
	finds := func(what string, right func(pids []int) bool) {
		eventually(t, what, func() bool {
			pids, err := here.PIDs(filepath.Base(shell))
			if err != nil {
				t.Fatal(err)
			}
			return right(pids)
		})
	}
	finds("both, in order", func(pids []int) bool {
		return len(pids) == 2 && slices.Contains(pids, own.PID()) && slices.IsSorted(pids)
	})
	own.Kill()
	finds("the other one alone", func(pids []int) bool { return len(pids) == 1 && pids[0] != own.PID() })
}

func TestStop(t *testing.T) {
	s := newSpace(t)
	const ready = "echo ready; while :; do sleep 0.01; done"
	begun := func(p *sandbox.Process) func() bool {
		return func() bool { return strings.Contains(p.Log(), "ready") }
	}

	polite := start(t, s, sandbox.Command{Args: []string{"-c", "trap 'echo bye; exit 0' TERM; " + ready}})
	eventually(t, "being ready", begun(polite))
	if err := polite.Stop(t.Context()); err != nil || polite.Tail(1) != "bye" {
		t.Errorf("%v, log ends with %q", err, polite.Tail(1))
	}

	failing := start(t, s, sandbox.Command{Args: []string{"-c", "trap 'exit 3' TERM; " + ready}})
	eventually(t, "being ready", begun(failing))
	if err := failing.Stop(t.Context()); err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v, want exit status 3", err)
	}

	deaf := start(t, s, sandbox.Command{Args: []string{"-c", "trap '' TERM; " + ready}})
	eventually(t, "being ready", begun(deaf))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := deaf.Stop(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want that it didn't end", err)
	}
	if deaf.Running() {
		t.Error("it still runs")
	}
}

func TestEnvironmentIsWhatWasGiven(t *testing.T) {
	t.Setenv("SANDBOX_LEAK", "yes")
	p := start(t, newSpace(t), sandbox.Command{Args: []string{"-c", `echo "$GIVEN,$SANDBOX_LEAK"`}, Env: []string{"GIVEN=1"}})
	<-p.Done()
	if p.Log() != "1,\n" {
		t.Errorf("got %q, want the given variable only", p.Log())
	}
}

func TestStartErrors(t *testing.T) {
	s := newSpace(t)
	if _, err := s.Start(sandbox.Command{Name: "agent", Path: "agent"}); err == nil || !strings.Contains(err.Error(), "absolute") {
		t.Errorf("relative path: %v", err)
	}
	missing := filepath.Join(t.TempDir(), "agent")
	if _, err := s.Start(sandbox.Command{Name: "agent", Path: missing}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing binary: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(sandbox.Command{Name: "agent", Path: "/bin/true"}); err == nil {
		t.Error("started in a closed space")
	}
}

func TestCloseKillsAndLetsGo(t *testing.T) {
	s := newSpace(t)
	p := start(t, s, sandbox.Command{Args: []string{"-c", "trap '' TERM; sleep 1000; true"}})
	watch := newWitness(t, s.Handle())
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if p.Running() {
		t.Error("the process still runs")
	}
	eventually(t, "the end of the namespace", watch.gone)
}

// A witness is one end of a pair of links whose other end is in a namespace: it
// vanishes when the kernel has destroyed that namespace. No list of namespaces
// would do, because a namespace that only a leaked socket holds is on none.
type witness struct {
	t  *testing.T
	ns *nstest.Namespace
}

func newWitness(t *testing.T, of netns.NsHandle) witness {
	t.Helper()
	w := witness{t: t, ns: nstest.New(t)}
	err := w.ns.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "witness"
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "witnessed", PeerNamespace: netlink.NsFd(of)})
	})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func (w witness) gone() bool {
	var missing bool
	err := w.ns.Do(func() error {
		_, err := netlink.LinkByName("witness")
		_, missing = errors.AsType[netlink.LinkNotFoundError](err)
		if missing {
			return nil
		}
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return missing
}

// liveUntilKilled is the child: it keeps a namespace alive in all possible ways, prints what
// the parent needs to find it, and waits.
func liveUntilKilled() error {
	s, err := sandbox.New("child", sandbox.Tmpfs("/run"))
	if err != nil {
		return err
	}
	listener, err := s.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	if _, err := s.Dial(context.Background(), "tcp", listener.Addr().String()); err != nil {
		return err
	}
	p, err := s.Start(sandbox.Command{Name: "shell", Path: "/bin/sh", Args: []string{"-c", "sleep 1000; true"}})
	if err != nil {
		return err
	}
	fmt.Println(p.PID())
	select {}
}

func TestNothingOutlivesAKilledProcess(t *testing.T) {
	nstest.Root(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), child+"=1")
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
	pid, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatalf("the child says %q", line)
	}
	ns, err := netns.GetFromPid(pid)
	if err != nil {
		t.Fatal(err)
	}
	watch := newWitness(t, ns)
	if err := ns.Close(); err != nil {
		t.Fatal(err)
	}
	if watch.gone() {
		t.Fatal("the witness is gone before anything was killed")
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "the end of the process in the space", func() bool {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	})
	eventually(t, "the end of the namespace", watch.gone)
}
