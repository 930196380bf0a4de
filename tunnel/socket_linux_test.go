package tunnel

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

func TestOnlyRootReachesTheSocket(t *testing.T) {
	nstest.Namespaces(t)
	d := open(t, config(t, "gcp", Userspace))
	d.ensure(t)
	checkMode(t, control.DevicePath(d.Name()), 0o600)
	checkMode(t, control.Dir, 0o700)
	checkNames(t, control.Dir, filepath.Base(control.Path), filepath.Base(control.DevicePath(d.Name())))
}

func TestTheSocketGoesWithTheDevice(t *testing.T) {
	nstest.Namespaces(t)
	d := open(t, config(t, "gcp", Userspace))
	d.ensure(t)
	// An idle client must not block the end.
	conn, err := net.Dial("unix", control.DevicePath(d.Name()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := d.Remove(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkNames(t, control.Dir, filepath.Base(control.Path))
}

func TestARemovedSocketIsRestored(t *testing.T) {
	nstest.Namespaces(t)
	for name, remove := range map[string]func(path string) error{
		"removed": os.Remove,
		"replaced by a dead one": func(path string) error {
			listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path + ".other"})
			if err != nil {
				return err
			}
			listener.SetUnlinkOnClose(false)
			if err := os.Rename(path+".other", path); err != nil {
				return err
			}
			return listener.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := open(t, config(t, "gcp", Userspace))
			d.ensure(t)
			d.configure(t, thousands(2)...)
			if err := remove(control.DevicePath(d.Name())); err != nil {
				t.Fatal(err)
			}
			if !d.ensure(t) {
				t.Error("no change is reported")
			}
			d.check(t)
			if n := len(d.status(t).Peers); n != 2 {
				t.Errorf("%d peers, want the 2 that the device had", n)
			}
		})
	}
}

func TestASocketOfADeadProcessIsReplaced(t *testing.T) {
	nstest.Namespaces(t)
	cfg := config(t, "gcp", Userspace)
	if err := os.MkdirAll(control.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: control.DevicePath(cfg.Name)})
	if err != nil {
		t.Fatal(err)
	}
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	d := open(t, cfg)
	d.ensure(t)
	d.check(t)
}

func TestAFileInPlaceOfTheSocketIsReported(t *testing.T) {
	nstest.Namespaces(t)
	path := control.DevicePath(DeviceName("gcp"))
	tests := map[string]struct {
		create func(t *testing.T) error
		want   string
	}{
		"a file":      {func(*testing.T) error { return os.WriteFile(path, []byte("mine"), 0o600) }, "isn't a socket"},
		"a directory": {func(*testing.T) error { return os.Mkdir(path, 0o700) }, "isn't a socket"},
		"a live socket": {func(t *testing.T) error {
			listener, err := net.Listen("unix", path)
			if err == nil {
				t.Cleanup(func() { _ = listener.Close() })
			}
			return err
		}, "another process"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, "gcp", Userspace)
			if err := os.MkdirAll(control.Dir, 0o700); err != nil {
				t.Fatal(err)
			}
			if err := tt.create(t); err != nil {
				t.Fatal(err)
			}
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			d := open(t, cfg)
			if _, err := d.Ensure(t.Context()); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error about %s that says %q", err, path, tt.want)
			}
			if after, err := os.Lstat(path); err != nil || !os.SameFile(before, after) {
				t.Errorf("what was in its place is gone: %v", err)
			}
			if _, err := findLink(cfg.Name); err == nil {
				t.Error("a link was created nevertheless")
			}
			if tt.want == "isn't a socket" {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// Two agents on one node, an old one that is still ending and a new one: the old one keeps
// the device until it has ended.
func TestASecondProcessWaitsForTheFirst(t *testing.T) {
	nstest.Namespaces(t)
	cfg := config(t, "gcp", Userspace)
	n := nstest.New(t)
	first := startAgent(t, n, cfg) // with its own mount namespace, and so its own sockets
	err := n.Do(func() error {
		file, err := openTUN(cfg.Name, false)
		if err == nil {
			_ = file.Close()
		}
		return err
	})
	if err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("got %v, want an error that names the reason", err)
	}
	first.kill()
	second := startAgent(t, n, cfg)
	if second.key != first.key {
		t.Error("the key changed")
	}
}

func TestClosingDoesNotNotify(t *testing.T) {
	nstest.Namespaces(t)
	d := open(t, config(t, "gcp", Userspace))
	d.ensure(t)
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.notified:
		t.Error("a notification about a device that was closed")
	default:
	}
}
