package control_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

// connected returns both ends of a connection, not started. The second one answers requests
// by handle.
func connected(t *testing.T, handle func(other *control.Conn, m control.Message) (control.Message, control.Files)) (asks, answers *control.Conn) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "socket")
	l, err := control.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	ours, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	asks = control.NewConn(ours, func(_ control.Message, files control.Files) (control.Message, control.Files) {
		files.Close()
		return control.Message{}, nil
	})
	answers = control.NewConn(theirs, func(m control.Message, files control.Files) (control.Message, control.Files) {
		files.Close()
		return handle(answers, m)
	})
	return asks, answers
}

// Hangup sends the responses to earlier requests.
func TestAnswersAreSentBeforeTheEnd(t *testing.T) {
	for range 100 {
		asks, answers := connected(t, func(c *control.Conn, _ control.Message) (control.Message, control.Files) {
			c.Hangup()
			return control.Message{Changed: true}, nil
		})
		asks.Start()
		answers.Start()
		answer, _, err := asks.Ask(t.Context(), control.Message{Op: control.List})
		if err != nil || !answer.Changed {
			t.Fatalf("got %+v, %v", answer, err)
		}
		answers.Close()
		asks.Close()
	}
}

// A receiver that doesn't read can't block the sender for ever.
func TestSendToAReceiverThatDoesntRead(t *testing.T) {
	asks, _ := connected(t, nil)
	for began := time.Now(); ; {
		if err := asks.Notify(control.Message{Op: control.Died, Name: "wireguard.gcp"}); err != nil {
			t.Logf("after %v: %v", time.Since(began), err)
			return
		}
	}
}

// A response that arrives when its request times out leaves no open descriptor.
func TestLateResponsesAreClosed(t *testing.T) {
	timeout := make(chan context.CancelFunc, 1)
	asks, answers := connected(t, func(*control.Conn, control.Message) (control.Message, control.Files) {
		fd, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Error(err)
		}
		(<-timeout)()
		return control.Message{}, control.Files{fd}
	})
	open := func() int {
		found, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(found)
	}
	before := open()
	asks.Start()
	answers.Start()
	for range 1000 {
		ctx, cancel := context.WithCancel(t.Context())
		timeout <- cancel
		_, files, _ := asks.Ask(ctx, control.Message{Op: control.List})
		files.Close()
	}
	answers.Close()
	<-asks.Done()
	if left := open() - before + 2; left > 0 { // Both ends of the connection are closed.
		t.Errorf("%d descriptors are left", left)
	}
}
