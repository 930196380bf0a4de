package nstest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace that lives as long as the test that created
// it, or as long as a process or socket keeps it alive.
type Namespace struct {
	file *os.File
}

// New creates an empty network namespace with its loopback up, which is released when t
// ends. IPv6 duplicate address detection is off in it, but a kernel worker still has to
// make addresses usable: a test that uses an IPv6 address at once adds it with
// IFA_F_NODAD. New calls Namespaces.
func New(t testing.TB) *Namespace {
	t.Helper()
	Namespaces(t)
	n := new(Namespace)
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare network namespace: %w", err)
		}
		file, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			return fmt.Errorf("open network namespace: %w", err)
		}
		n.file = file
		return Prepare()
	})
	if n.file != nil {
		t.Cleanup(func() { _ = n.file.Close() })
	}
	if err != nil {
		t.Fatalf("create network namespace: %v", err)
	}
	return n
}

// Current returns the namespace of the calling thread: inside Run, the one that Run
// created. It is for goroutines of a test, which are outside of Run's namespace.
func Current(t testing.TB) *Namespace {
	t.Helper()
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatalf("open current network namespace: %v", err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return &Namespace{file: file}
}

// Run runs f inside a fresh namespace on the goroutine of the test, so that
// t.Fatal works in it. The test stays in the namespace until its last cleanup
// has run: cleanups that f registers find their links and routes.
func Run(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	n := New(t)
	runtime.LockOSThread()
	leave, err := n.enter()
	if err != nil {
		runtime.UnlockOSThread()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// A thread that can't go back stays locked: the runtime ends it with the goroutine
		// of the test, so that no other goroutine runs in the namespace.
		if err := leave(); err != nil {
			t.Error(err)
			return
		}
		runtime.UnlockOSThread()
	})
	f(t)
}

// Do runs f on a thread inside the namespace and returns its error. f runs on
// another goroutine than the caller: it must return errors instead of calling
// t.Fatal.
func (n *Namespace) Do(f func() error) error {
	return onThread(func() error {
		leave, err := n.enter()
		if err != nil {
			return err
		}
		return errors.Join(f(), leave())
	})
}

// FD returns the open file descriptor of the namespace, for setns(2) and for
// netlink.NsFd. It is valid until the test ends.
func (n *Namespace) FD() int { return int(n.file.Fd()) }

// carrierWait bounds the wait for a new link to become operational. The kernel
// handles such changes at most once a second.
const carrierWait = time.Minute

// Pair joins a and b with a veth pair, named nameA in a and nameB in b, both up
// and operational, without addresses other than the link-local ones of IPv6.
func Pair(t testing.TB, a, b *Namespace, nameA, nameB string) {
	t.Helper()
	err := a.Do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = nameA
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: nameB, PeerNamespace: netlink.NsFd(b.FD())}
		if err := netlink.LinkAdd(veth); err != nil {
			return fmt.Errorf("create: %w", err)
		}
		return linkUp(nameA)
	})
	if err == nil {
		err = b.Do(func() error { return errors.Join(linkUp(nameB), operational(nameB)) })
	}
	if err == nil {
		err = a.Do(func() error { return operational(nameA) })
	}
	if err != nil {
		t.Fatalf("veth pair %s, %s: %v", nameA, nameB, err)
	}
}

// enter moves the calling thread, which must be locked, into the namespace. leave moves it
// back.
func (n *Namespace) enter() (leave func() error, err error) {
	before, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open current network namespace: %w", err)
	}
	if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
		_ = before.Close()
		return nil, fmt.Errorf("enter network namespace: %w", err)
	}
	return func() error {
		defer func() { _ = before.Close() }()
		if err := unix.Setns(int(before.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("leave network namespace: %w", err)
		}
		return nil
	}, nil
}

// onThread runs f on a locked thread and waits for it. The thread isn't unlocked, so that
// the runtime ends it with the goroutine, and other goroutines aren't affected.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := errors.New("ended by runtime.Goexit; t.Fatal and t.FailNow belong on the goroutine of the test")
		defer func() { done <- err }()
		err = f()
	}()
	return <-done
}

// Prepare makes the namespace of the calling thread usable: loopback up; no duplicate address
// detection, which would leave addresses tentative for a second or more; and no socket that asks
// for any port, as wireguard-go's do before they are configured, gets one on which WireGuard
// listens in tests (kernel documentation, networking/ip-sysctl: accept_dad,
// ip_local_reserved_ports).
func Prepare() error {
	for path, value := range map[string]string{
		"ipv6/conf/all/accept_dad":     "0",
		"ipv6/conf/default/accept_dad": "0",
		"ipv4/ip_local_reserved_ports": "51820-51829",
	} {
		err := os.WriteFile("/proc/sys/net/"+path, []byte(value), 0)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("prepare network namespace: %w", err)
		}
	}
	return linkUp("lo")
}

func linkUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("find link %s: %w", name, err)
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("set link %s up: %w", name, err)
	}
	return nil
}

// operational waits until the link passes packets. A link with a new carrier drops them
// until a kernel worker has handled the change, for up to a second.
func operational(name string) error {
	deadline := time.After(carrierWait)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return fmt.Errorf("find link %s: %w", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return nil
		}
		select {
		case <-deadline:
			return fmt.Errorf("link %s is %s after %s", name, link.Attrs().OperState, carrierWait)
		case <-tick.C:
		}
	}
}
