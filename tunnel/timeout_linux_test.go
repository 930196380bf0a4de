package tunnel

import (
	"context"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// silence replaces a device's UAPI socket by one that accepts connections and never responds.
// stop closes the socket and its connections.
func silence(t *testing.T, name string) (open *atomic.Int64, stop func()) {
	t.Helper()
	path := control.DevicePath(name)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	open = new(atomic.Int64)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open.Add(1)
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
		}
	})
	stop = sync.OnceFunc(func() {
		_ = listener.Close()
		wg.Wait()
		for _, conn := range conns {
			_ = conn.Close()
		}
	})
	t.Cleanup(stop)
	return open, stop
}

func TestADeviceThatHangsDoesNotBlock(t *testing.T) {
	nstest.Namespaces(t)
	d := open(t, config(t, "gcp", Userspace))
	d.ensure(t)
	held := d.control
	connections, stop := silence(t, d.Name())
	for range 3 * maxPendingCalls {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, err := d.Status(ctx)
		cancel()
		if !errors.Is(err, errTimeout) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v, want %v", err, errTimeout)
		}
	}
	if n := connections.Load(); n > maxPendingCalls {
		t.Errorf("%d connections are open, want %d at most", n, maxPendingCalls)
	}

	// Calls that change the device time out as well, and release its lock.
	d.later()
	held.limit = 20 * time.Millisecond
	if _, err := d.Configure(t.Context(), thousands(1)); !errors.Is(err, errTimeout) {
		t.Errorf("Configure: %v, want %v", err, errTimeout)
	}
	held.limit = requestTimeout
	stop()
	polltest.Until(t, time.Minute, "the calls that were given up to end", func() bool { return len(held.slots) == 0 })
	d.ensure(t)
	d.configure(t, thousands(1)...)
	d.check(t)
}
