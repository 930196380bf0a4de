package tunnel

import (
	"context"
	"log/slog"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// kernelVariable is set where the kernel has WireGuard, so that tests which need it must not
// be skipped.
const kernelVariable = "SEMAPHORE_TEST_KERNEL"

// needKernel skips a test where the kernel has no WireGuard.
func needKernel(t *testing.T) {
	t.Helper()
	nstest.Namespaces(t)
	kernel, err := Supported()
	switch {
	case err != nil:
		t.Fatal(err)
	case !kernel && os.Getenv(kernelVariable) != "":
		t.Fatalf("%s is set, but the kernel has no WireGuard", kernelVariable)
	case !kernel:
		t.Skip("kernel WireGuard is not available here; make test-kernel runs this")
	}
}

// unlessShort returns how often a test repeats a thing, and fewer times under -short.
func unlessShort(all, short int) int {
	if testing.Short() {
		return short
	}
	return all
}

// eachBackend runs a test with both backends.
func eachBackend(t *testing.T, f func(t *testing.T, backend string)) {
	t.Helper()
	nstest.Namespaces(t)
	t.Run(Kernel, func(t *testing.T) {
		needKernel(t)
		f(t, Kernel)
	})
	t.Run(Userspace, func(t *testing.T) { f(t, Userspace) })
}

// testDevice is a device with a manual clock and a recorded log.
type testDevice struct {
	*Device
	log      *logtest.Buffer
	clock    atomic.Int64 // ns past the start
	notified chan struct{}
}

// config returns the configuration of a device of the test's remote. The link is deleted at
// the end of the test.
func config(t *testing.T, remote, backend string) Config {
	t.Helper()
	if backend != Kernel {
		nstest.TUN(t)
	}
	cfg := Config{
		Name:       DeviceName(remote),
		Alias:      Alias(remote),
		KeyPath:    t.TempDir(),
		Backend:    backend,
		ListenPort: 51820,
		MTU:        1420,
	}
	t.Cleanup(func() {
		if err := unserve(context.Background(), cfg.Name); err != nil {
			t.Error(err)
		}
		if l, err := findLink(cfg.Name); err == nil {
			if err := l.remove(); err != nil {
				t.Error(err)
			}
		}
	})
	return cfg
}

func open(t *testing.T, cfg Config) *testDevice {
	t.Helper()
	d := &testDevice{log: new(logtest.Buffer), notified: make(chan struct{}, 1)}
	cfg.Logger = slog.New(slog.NewTextHandler(d.log, nil))
	d.Device = Open(cfg)
	start := time.Now()
	d.now = func() time.Time { return start.Add(time.Duration(d.clock.Load())) }
	d.Notify(func() {
		select {
		case d.notified <- struct{}{}:
		default:
		}
	})
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("log of %s:\n%s", d.Name(), d.log.Take())
		}
	})
	return d
}

func (d *testDevice) ensure(t *testing.T) (changed bool) {
	t.Helper()
	changed, err := d.Ensure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

func (d *testDevice) configure(t *testing.T, want ...Peer) Changes {
	t.Helper()
	changes, err := d.Configure(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	return changes
}

func (d *testDevice) status(t *testing.T) Status {
	t.Helper()
	status, err := d.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return status
}

// later advances the clock, so that key, port and peers are compared in full next time.
func (d *testDevice) later() { d.clock.Add(int64(recheck)) }

// check compares the device with its configuration.
func (d *testDevice) check(t *testing.T) {
	t.Helper()
	got := d.status(t)
	got.Peers = nil
	index, known := d.Index()
	want := Status{
		Name: d.cfg.Name, Index: index, Backend: d.backend,
		PublicKey: d.PublicKey(), ListenPort: d.cfg.ListenPort, MTU: d.cfg.MTU,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("device: -want +got:\n%s", diff)
	}
	found, err := (protocol{}).Device(d.cfg.Name)
	if err != nil || found.FirewallMark != int(d.cfg.Mark) || d.Marked() != (d.cfg.Mark != 0) {
		t.Errorf("firewall mark %#x, known %v, %v; want %#x", found.FirewallMark, d.Marked(), err, d.cfg.Mark)
	}
	l := mustFind(t, d.cfg.Name)
	if l.alias != d.cfg.Alias || !l.up || !known {
		t.Errorf("link %+v, index known: %v", l, known)
	}
}

func mustFind(t *testing.T, name string) link {
	t.Helper()
	l, err := findLink(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
