package tunnel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

func TestMissingPermissionIsNamed(t *testing.T) {
	nstest.Root(t)
	cfg := config(t, "gcp", Userspace)
	tests := map[string]func() error{
		"creating a TUN": func() error {
			file, err := openTUN(cfg.Name, true)
			if err == nil {
				_ = file.Close()
			}
			return err
		},
		"creating a kernel link": func() error { return createKernelLink(cfg.Name, 1420) },
	}
	for what, f := range tests {
		if err := withoutNetAdmin(f); err == nil || !strings.Contains(err.Error(), "NET_ADMIN") {
			t.Errorf("%s: got %v, want an error that names NET_ADMIN", what, err)
		}
	}
}

// withoutNetAdmin runs f on a thread without the capability NET_ADMIN. The thread ends
// after f.
func withoutNetAdmin(f func() error) error {
	done := make(chan error)
	go func() {
		done <- func() error {
			runtime.LockOSThread() // Never unlocked: the thread ends with the goroutine.
			header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var data [2]unix.CapUserData
			if err := unix.Capget(&header, &data[0]); err != nil {
				return fmt.Errorf("capget: %w", err)
			}
			data[0].Effective &^= 1 << unix.CAP_NET_ADMIN
			if err := unix.Capset(&header, &data[0]); err != nil {
				return fmt.Errorf("capset: %w", err)
			}
			return f()
		}()
	}()
	return <-done
}

func TestDeviceNodeIsCreatedWhereItIsMissing(t *testing.T) {
	nstest.Root(t)
	cfg := config(t, "gcp", Userspace)
	if err := unix.Mount("tmpfs", "/dev/net", "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount("/dev/net", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := open(t, cfg)
	d.ensure(t)
	d.check(t)
}

// The manifest mounts the host's /dev/net, which may be empty. Only the userspace backend
// needs the device node there.
func TestADeviceNodeThatTheHostDoesNotHave(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		cfg := config(t, "gcp", backend)
		if err := unix.Mount("tmpfs", "/dev/net", "tmpfs", unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount("/dev/net", unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
		d := open(t, cfg)
		if backend == Kernel {
			d.ensure(t)
			d.check(t)
			return
		}
		if _, err := d.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), "this host has no /dev/net/tun") {
			t.Errorf("got %v, want an error that says what the host lacks", err)
		}
	})
}

func TestRemoveLeavesOnlyTheKey(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		cfg := config(t, "gcp", backend)
		d := open(t, cfg)
		d.ensure(t)
		if err := d.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := d.Remove(t.Context()); err != nil {
			t.Errorf("a second call: %v", err)
		}
		checkGone(t, cfg.Name)
		checkNames(t, cfg.KeyPath, cfg.Name+".key")
		if _, err := d.Ensure(t.Context()); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Ensure of a removed device: %v, want os.ErrClosed", err)
		}
	})
}

func checkGone(t *testing.T, name string) {
	t.Helper()
	if _, err := findLink(name); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the link: %v, want it gone", err)
	}
	if _, err := os.Lstat(control.DevicePath(name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v, want it gone", err)
	}
}

func TestOrphansAreListedAndRemoved(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		if links, err := List(t.Context()); err != nil || len(links) > 0 {
			t.Fatalf("before: %v, %v", links, err)
		}
		cfg := config(t, "merit", backend)
		d := open(t, cfg)
		d.ensure(t)
		index, _ := d.Index()
		if err := foreignTUN("foreign", "openvpn"); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = mustFind(t, "foreign").remove() }()

		links, err := List(t.Context())
		want := []Link{{Name: "wireguard.merit", Alias: "semaphore merit", Remote: "merit", Backend: backend, Index: index}}
		if diff := cmp.Diff(want, links); diff != "" || err != nil {
			t.Fatalf("-want +got:\n%s%v", diff, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if err := Remove(t.Context(), "foreign", cfg.Alias); err == nil {
			t.Error("a foreign link is removed")
		}
		if err := Remove(t.Context(), cfg.Name, Alias("gcp")); err == nil {
			t.Error("the link of another remote is removed")
		}
		for range 2 {
			if err := Remove(t.Context(), cfg.Name, cfg.Alias); err != nil {
				t.Fatal(err)
			}
			checkGone(t, cfg.Name)
		}
	})
}

// A call that is cancelled at any step doesn't prevent later ones from succeeding.
func TestEnsureIsCancelled(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		d := open(t, config(t, "gcp", backend))
		began := time.Now()
		d.ensure(t)
		whole := time.Since(began)
		steps := unlessShort(50, 5)
		for i := range steps {
			if err := mustFind(t, d.Name()).remove(); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), whole*time.Duration(i)*5/time.Duration(4*steps))
			_, _ = d.Ensure(ctx)
			cancel()
			d.ensure(t)
		}
		d.check(t)
	})
}

// All calls concurrently, while the link is deleted repeatedly: for the race detector, and
// for deadlocks.
func TestCallsFromSeveralGoroutines(t *testing.T) {
	eachBackend(t, func(t *testing.T, backend string) {
		d := open(t, config(t, "gcp", backend))
		d.ensure(t)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		var wg sync.WaitGroup
		repeat := func(f func(i int)) {
			wg.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					f(i)
				}
			})
		}
		repeat(func(int) { _, _ = d.Ensure(ctx) })
		repeat(func(i int) { _, _ = d.Configure(ctx, thousands(50)[i%20:]) })
		repeat(func(int) { _, _ = d.Status(ctx) })
		repeat(func(int) { d.later() })
		repeat(func(int) { d.Index() })
		repeat(func(int) {
			if l, err := findLink(d.Name()); err == nil {
				_ = l.remove()
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		})
		wg.Wait()
		d.later()
		d.ensure(t)
		d.configure(t, thousands(5)...)
		d.check(t)
		if got := len(d.status(t).Peers); got != 5 {
			t.Errorf("%d peers, want 5", got)
		}
	})
}
