package nstest_test

import (
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

func TestNewNamespaceHoldsOnlyALoopbackThatIsUp(t *testing.T) {
	n := nstest.New(t)
	err := n.Do(func() error {
		links, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, link := range links {
			attrs := link.Attrs()
			if attrs.Flags&net.FlagLoopback == 0 && attrs.Flags&net.FlagUp != 0 {
				t.Errorf("unexpected link %s is up", attrs.Name)
			}
		}
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		return listener.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestDoLeavesTheCallerWhereItWas(t *testing.T) {
	nstest.Namespaces(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := current(t)
	n := nstest.New(t)
	var inside string
	err := n.Do(func() error {
		var err error
		inside, err = os.Readlink("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if inside == before {
		t.Errorf("Do ran in the namespace of its caller, %s", before)
	}
	if after := current(t); after != before {
		t.Errorf("caller moved from %s to %s", before, after)
	}
}

func TestDoReturnsTheErrorOfItsFunction(t *testing.T) {
	want := errors.New("from inside")
	if err := nstest.New(t).Do(func() error { return want }); !errors.Is(err, want) {
		t.Errorf("got %v, want %v", err, want)
	}
}

func TestDoSaysSoWhenItsFunctionNeverReturns(t *testing.T) {
	err := nstest.New(t).Do(func() error {
		runtime.Goexit()
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "Goexit") {
		t.Errorf("got %v, want an error that names Goexit", err)
	}
}

func TestRunCoversTheCleanupsOfTheTest(t *testing.T) {
	nstest.Namespaces(t)
	var inside, cleanup string
	t.Run("body", func(t *testing.T) {
		nstest.Run(t, func(t *testing.T) {
			inside = current(t)
			t.Cleanup(func() { cleanup = current(t) })
		})
	})
	if outside := current(t); inside == outside {
		t.Errorf("Run stayed in the namespace of its caller, %s", outside)
	}
	if cleanup != inside {
		t.Errorf("cleanup ran in %s, the body in %s", cleanup, inside)
	}
}

func TestCurrentTakesGoroutinesAlong(t *testing.T) {
	nstest.Run(t, func(t *testing.T) {
		want, n := current(t), nstest.Current(t)
		got := make(chan string)
		go func() {
			_ = n.Do(func() error {
				name, err := os.Readlink("/proc/thread-self/ns/net")
				got <- name
				return err
			})
		}()
		if name := <-got; name != want {
			t.Errorf("goroutine ran in %s, the test in %s", name, want)
		}
	})
}

func TestPairCarriesPackets(t *testing.T) {
	a, b := nstest.New(t), nstest.New(t)
	nstest.Pair(t, a, b, "left", "right")
	address(t, a, "left", "192.0.2.1/24", "2001:db8::1/64")
	address(t, b, "right", "192.0.2.2/24", "2001:db8::2/64")

	for _, target := range []string{"192.0.2.2", "2001:db8::2"} {
		var listener net.Listener
		err := b.Do(func() (err error) {
			listener, err = net.Listen("tcp", net.JoinHostPort(target, "0"))
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = listener.Close() })
		err = a.Do(func() error {
			conn, err := net.Dial("tcp", listener.Addr().String())
			if err != nil {
				return err
			}
			return conn.Close()
		})
		if err != nil {
			t.Error(err)
		}
	}
}

func address(t *testing.T, n *nstest.Namespace, name string, addresses ...string) {
	t.Helper()
	err := n.Do(func() error {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		for _, address := range addresses {
			addr, err := netlink.ParseAddr(address)
			if err != nil {
				return err
			}
			addr.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(link, addr); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("add addresses to %s: %v", name, err)
	}
}

func current(t *testing.T) string {
	t.Helper()
	name, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	return name
}
