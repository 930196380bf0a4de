package tunnel

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// TestPreflightChangesNothing checks a host with support, with and without permissions.
func TestPreflightChangesNothing(t *testing.T) {
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
			if err := Preflight(t.Context(), b, ""); err != nil {
				t.Errorf("%s: %v", b, err)
			}
			if err := withoutCapabilities(func() error { return Preflight(t.Context(), b, "") }); err == nil || !strings.Contains(err.Error(), "NET_ADMIN") {
				t.Errorf("%s without capabilities: %v", b, err)
			}
		}
		if diff := cmp.Diff(before, links()); diff != "" {
			t.Errorf("links (-before +after):\n%s", diff)
		}
	})
}

func TestPreflightWithoutKernelWireGuard(t *testing.T) {
	nstest.Namespaces(t)
	kernel, err := Supported()
	if err != nil {
		t.Fatal(err)
	}
	if err := Preflight(t.Context(), Kernel, ""); (err == nil) != kernel {
		t.Errorf("kernel WireGuard is there: %v; able: %v", kernel, err)
	}
}

// TestPreflightNeedsAnEngine fails without an engine: otherwise an agent that waits for one
// would be ready, and a rollout would go on.
func TestPreflightNeedsAnEngine(t *testing.T) {
	nstest.TUN(t)
	if err := withoutSockets(func() error { return Preflight(t.Context(), Userspace, "") }); err == nil || !strings.Contains(err.Error(), "engine") {
		t.Errorf("without an engine: %v", err)
	}
	for program, able := range map[string]bool{"/proc/self/exe": true, "/nowhere/semaphore-engine": false} {
		err := withoutSockets(func() error { return Preflight(t.Context(), Userspace, program) })
		if (err == nil) != able {
			t.Errorf("an engine would be started as %s: %v", program, err)
		}
	}
}

// withoutSockets calls f on a thread without access to the sockets of devices and engines.
func withoutSockets(f func() error) error {
	return onThread(func() error {
		return errors.Join(
			unix.Unshare(unix.CLONE_NEWNS|unix.CLONE_FS),
			unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
			unix.Mount("tmpfs", control.Dir, "tmpfs", 0, "mode=0700"),
		)
	}, f)
}

// withoutCapabilities calls f on a thread without capabilities.
func withoutCapabilities(f func() error) error {
	return onThread(func() error {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		return unix.Capset(&header, &none[0])
	}, f)
}

// onThread calls f on its own thread, after prepare.
func onThread(prepare, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // The thread ends with the goroutine.
		err := prepare()
		if err == nil {
			err = f()
		}
		done <- err
	}()
	return <-done
}
