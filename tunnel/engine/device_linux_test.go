package engine

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// serverThat returns a server that handles requests with does.
func serverThat(t *testing.T, does func(op string, files control.Files) error) *server {
	t.Helper()
	ours, theirs, err := socketpair()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := net.FileConn(theirs)
	_ = theirs.Close()
	if err != nil {
		t.Fatal(err)
	}
	c := control.NewConn(raw.(*net.UnixConn), func(m control.Message, files control.Files) (control.Message, control.Files) {
		defer files.Close()
		if err := does(m.Op, files); err != nil {
			return control.ErrorResponse(err), nil
		}
		return control.Message{}, nil
	})
	s := &server{conn: control.NewConn(ours, func(_ control.Message, files control.Files) (control.Message, control.Files) {
		files.Close()
		return control.Message{}, nil
	})}
	c.Start()
	s.conn.Start()
	t.Cleanup(c.Close)
	t.Cleanup(s.conn.Close)
	return s
}

// newTestDevice returns a device that no server has.
func newTestDevice(t *testing.T) *deviceState {
	t.Helper()
	sup := newSupervisor(t.Context(), Config{Logger: slog.New(slog.DiscardHandler)})
	tun, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	d := &deviceState{name: "wg-test", tun: tun}
	if err := sup.devices.add(d); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.drop() })
	return d
}

// A device whose restoration failed, as on a server without processor time, is restored
// again as a whole: a server with a part of the configuration wouldn't read the TUN.
func TestADeviceIsRestoredAgain(t *testing.T) {
	for _, failing := range []string{opUAPI, opStart} {
		t.Run(failing, func(t *testing.T) {
			d := newTestDevice(t)
			var mu sync.Mutex
			has, failed := make(map[string]bool), false
			s := serverThat(t, func(op string, files control.Files) error {
				mu.Lock()
				defer mu.Unlock()
				if op == failing && !failed {
					failed = true
					return unix.ETIMEDOUT
				}
				if op == opClose {
					clear(has)
					return nil
				}
				if op == opOpen && len(has) > 0 {
					return unix.EEXIST
				}
				has[op] = true
				if op != opUAPI {
					return nil
				}
				dup, err := unix.FcntlInt(uintptr(files[0]), unix.F_DUPFD_CLOEXEC, 0)
				if err != nil {
					return err
				}
				socket := os.NewFile(uintptr(dup), "uapi")
				go func() {
					defer func() { _ = socket.Close() }()
					_, _ = io.ReadAll(socket)
					_, _ = socket.WriteString("errno=0\n\n")
				}()
				return nil
			})
			if err := d.with(t.Context(), s, noChange); err == nil {
				t.Fatal("no error when the server fails")
			}
			if err := d.with(t.Context(), s, noChange); err != nil {
				t.Fatal(err)
			}
			mu.Lock()
			defer mu.Unlock()
			for _, op := range []string{opOpen, opUAPI, opStart} {
				if !has[op] {
					t.Errorf("the server wasn't asked to %s", op)
				}
			}
			if d.ready.Load() != s {
				t.Error("the device isn't ready on the server")
			}
		})
	}
}

// A device can be removed after it has ended by itself, because its link was deleted, and
// before the server has reported that.
func TestADeviceIsRemovedThatHasEnded(t *testing.T) {
	d := newTestDevice(t)
	asked := make(chan string, 10)
	d.server = serverThat(t, func(op string, _ control.Files) error {
		asked <- op
		return fmt.Errorf("device %q: %w", d.name, unix.ENODEV)
	})
	if err := d.remove(t.Context()); err != nil {
		t.Errorf("remove: %v", err)
	}
	if op := <-asked; op != opClose {
		t.Errorf("the first request is %s, want %s", op, opClose)
	}
	if d.all.find(d.name) != nil {
		t.Error("the supervisor still has the device")
	}
}

// The pause grows with the duration of a round, up to a bound: after a server that hung,
// the next one may hang, too.
func TestMonitorPause(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{
		time.Millisecond: 2 * time.Second, 80 * time.Millisecond: 8 * time.Second, serverTimeout: 20 * time.Second,
	} {
		if got := pauseAfter(took); got != want {
			t.Errorf("the pause after a round of %v is %v, want %v", took, got, want)
		}
	}
}
