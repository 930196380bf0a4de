package tunnel

import (
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/nstest"
)

// TestAbleChangesNothing asks on a host that can, and as a process that may not.
func TestAbleChangesNothing(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		nstest.TUN(t)
		links := func() (names []string) {
			t.Helper()
			all, err := netlink.LinkList()
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range all {
				names = append(names, l.Attrs().Name)
			}
			return names
		}
		before := links()
		for _, b := range []string{backend, Auto} {
			if err := Able(b); err != nil {
				t.Errorf("%s: %v", b, err)
			}
			if err := withoutCapabilities(func() error { return Able(b) }); err == nil || !strings.Contains(err.Error(), "NET_ADMIN") {
				t.Errorf("%s without capabilities: %v", b, err)
			}
		}
		if diff := cmp.Diff(before, links()); diff != "" {
			t.Errorf("links (-before +after):\n%s", diff)
		}
	})
	if err := Able("wishful"); err == nil {
		t.Error("an unknown backend is one that can be had")
	}
}

func TestAbleTellsOfAKernelWithout(t *testing.T) {
	nstest.Namespaces(t)
	kernel, err := Supported()
	if err != nil {
		t.Fatal(err)
	}
	if err := Able(Kernel); (err == nil) != kernel {
		t.Errorf("kernel WireGuard is there: %v; able: %v", kernel, err)
	}
}

// withoutCapabilities calls f on a thread that has none.
func withoutCapabilities(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // The thread ends with the goroutine.
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		err := unix.Capset(&header, &none[0])
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
