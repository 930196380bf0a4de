package tunnel

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/nstest"
)

func TestOnlyRootReachesTheSocket(t *testing.T) {
	nstest.Namespaces(t)
	d := open(t, config(t, "gcp", Userspace))
	d.ensure(t)
	checkMode(t, socketPath(d.Name()), 0o600)
	checkMode(t, socketDir, 0o700)
	checkNames(t, socketDir, filepath.Base(socketPath(d.Name())))
}

func TestTheSocketGoesWithTheDevice(t *testing.T) {
	nstest.Namespaces(t)
	d := open(t, config(t, "gcp", Userspace))
	d.ensure(t)
	// A client that says nothing must not hold up the end.
	conn, err := net.Dial("unix", socketPath(d.Name()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	checkNames(t, socketDir)
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
			if err := remove(socketPath(d.Name())); err != nil {
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
	if err := os.MkdirAll(socketDir, 0o700); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: socketPath(cfg.Name)})
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

func TestWhatIsInTheSocketsPlaceIsNamed(t *testing.T) {
	nstest.Namespaces(t)
	path := socketPath(DeviceName("gcp"))
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
			if err := os.MkdirAll(socketDir, 0o700); err != nil {
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

// Two agents on one node, an old one that is still ending and a new one: the
// first keeps the device until it is gone.
func TestASecondProcessWaitsForTheFirst(t *testing.T) {
	nstest.Namespaces(t)
	cfg := config(t, "gcp", Userspace)
	n := nstest.New(t)
	first := startAgent(t, n, cfg) // has a mount namespace, and so sockets, of its own
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

func TestListenSocketLeavesNoLitter(t *testing.T) {
	nstest.Namespaces(t)
	if err := os.MkdirAll(filepath.Join(socketPath("d"), "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(socketPath("d")) }()
	if listener, err := bindPrivately(socketPath("d")); err == nil {
		_ = listener.Close()
		t.Error("a directory was replaced")
	}
	entries, err := os.ReadDir(socketDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if entry.Name() != "d.sock" {
			t.Errorf("left behind: %s (%v)", entry.Name(), entry.Type()&fs.ModeDir)
		}
	}
}

// wireguard-go can end on its own: it takes any error on reading from the TUN
// as the end of the device.
func TestABrokenEngineIsReplacedOnTheSameLink(t *testing.T) {
	nstest.Namespaces(t)
	d := open(t, config(t, "gcp", Userspace))
	d.ensure(t)
	d.configure(t, thousands(2)...)
	index, _ := d.Index()
	d.engine.dev.Close()
	select {
	case <-d.notified:
	case <-time.After(10 * time.Second):
		t.Fatal("nobody is notified")
	}
	if !d.ensure(t) {
		t.Error("no change is reported")
	}
	d.check(t)
	if after, _ := d.Index(); after != index {
		t.Errorf("index %d, want that of the link before, %d", after, index)
	}
	if got := d.configure(t, thousands(2)...); got != (Changes{Added: 2}) {
		t.Errorf("peers: %+v, want 2 added", got)
	}
}

func TestClosingNotifiesNobody(t *testing.T) {
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

func TestEngineLogIsLimited(t *testing.T) {
	var out logtest.Buffer
	log := engineLog(slog.New(slog.NewTextHandler(&out, nil)))
	for i := range 1000 {
		log.Errorf("peer %d is not reachable", i)
		log.Verbosef("packet %d", i)
	}
	text := out.Take()
	if lines := strings.Count(text, "\n"); lines != engineLogBurst {
		t.Errorf("%d lines, want %d:\n%s", lines, engineLogBurst, text)
	}
	if !strings.Contains(text, "level=WARN") || strings.Contains(text, "packet") {
		t.Errorf("log:\n%s", text)
	}
}

// What is left of a refused request is logged, and it may hold keys.
func TestRefusedRequestsDoNotShowKeys(t *testing.T) {
	nstest.Namespaces(t)
	d := open(t, config(t, "gcp", Userspace))
	d.ensure(t)
	secret := strings.Repeat("c0ffee00", 8)
	for _, request := range []string{
		"set=1\nlisten_port=none\nprivate_key=" + secret + "\n\n",
		"set=1\nprivate_key " + secret + "\n\n",
		"get=1\nprivate_key=" + secret + "\n\n",
		"private_key=" + secret + "\n\n",
	} {
		conn, err := net.Dial("unix", socketPath(d.Name()))
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(conn, request)
		_, readErr := io.ReadAll(io.LimitReader(conn, 10))
		if err := errors.Join(err, conn.Close()); err != nil {
			t.Error(err, readErr)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	log := d.log.Take()
	if strings.Contains(log, secret[:16]) {
		t.Errorf("a key is logged:\n%s", log)
	}
	if strings.Count(log, "(hidden)") < 2 {
		t.Errorf("the requests were not logged at all:\n%s", log)
	}
}

func TestEngineLogPassesDebugMessagesOnWhenAsked(t *testing.T) {
	var out logtest.Buffer
	handler := slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})
	if !handler.Enabled(context.Background(), slog.LevelDebug) {
		t.Fatal("the handler drops debug messages")
	}
	engineLog(slog.New(handler)).Verbosef("packet %d", 7)
	if text := out.Take(); !strings.Contains(text, "packet 7") {
		t.Errorf("log: %q", text)
	}
}
