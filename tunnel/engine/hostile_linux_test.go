package engine_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/enginetest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/logtest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine"
	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/control"
)

func startEngine(t *testing.T) *logtest.Buffer {
	t.Helper()
	nstest.Namespaces(t)
	log := new(logtest.Buffer)
	stop, err := enginetest.Start(slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return log
}

// descriptors returns the number of open descriptors of this process, which runs the
// supervisor.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func connect(t *testing.T) *net.UnixConn {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: control.Path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// TestHostileClients sends malformed messages to the control socket. The engine closes the
// connection or answers with an error, leaks no descriptor, and serves the next client.
func TestHostileClients(t *testing.T) {
	startEngine(t)
	file, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	const hello = `{"id":1,"op":"hello","protocol":1}`
	many := make([]int, 100)
	for i := range many {
		many[i] = int(file.Fd())
	}
	before := descriptors(t)
	for name, attack := range map[string]struct {
		messages []string
		files    []int // with the last message
	}{
		"nothing":                           {},
		"no JSON":                           {messages: []string{"\x00\xff garbage"}},
		"half a message":                    {messages: []string{`{"id":1,"op":"hel`}},
		"half a message, with descriptors":  {messages: []string{`{"id":1,"op":"hel`}, files: many[:3]},
		"a message that is too large":       {messages: []string{hello, `{"id":2,"op":"list","name":"` + strings.Repeat("x", control.MaxMessage) + `"}`}, files: many[:2]},
		"JSON of another kind":              {messages: []string{`[1,2]`}},
		"no hello":                          {messages: []string{`{"id":1,"op":"list"}`}, files: many[:1]},
		"a hello of another protocol":       {messages: []string{`{"id":1,"op":"hello","protocol":99}`, `{"id":2,"op":"list"}`}},
		"an answer without a request":       {messages: []string{hello, `{"id":7}`}, files: many[:1]},
		"an unknown operation":              {messages: []string{hello, `{"id":2,"op":"format"}`}, files: many[:4]},
		"a descriptor that is no TUN":       {messages: []string{hello, `{"id":2,"op":"serve","name":"wireguard.gcp","index":1}`}, files: many[:1]},
		"no descriptor":                     {messages: []string{hello, `{"id":2,"op":"serve","name":"wireguard.gcp","index":1}`}},
		"too many descriptors":              {messages: []string{hello, `{"id":2,"op":"serve","name":"wireguard.gcp","index":1}`}, files: many},
		"a name that leads elsewhere":       {messages: []string{hello, `{"id":2,"op":"serve","name":"../../etc/passwd","index":1}`}, files: many[:1]},
		"an unknown device":                 {messages: []string{hello, `{"id":2,"op":"up","name":"\u0000"}`, `{"id":3,"op":"remove","name":"../x"}`}},
		"handshakes of no device":           {messages: []string{hello, `{"id":2,"op":"handshake","name":"x","keys":["","zz"]}`}, files: many[:1]},
		"the end of an engine of a service": {messages: []string{hello, `{"id":2,"op":"end"}`}},
		"a notification of the engine":      {messages: []string{hello, `{"op":"died","name":"wireguard.gcp"}`, `{"op":"sockets","name":"x"}`}, files: many[:2]},
	} {
		t.Run(name, func(t *testing.T) {
			conn := connect(t)
			for i, message := range attack.messages {
				var rights []byte
				if i == len(attack.messages)-1 && len(attack.files) > 0 {
					rights = unix.UnixRights(attack.files...)
				}
				_, _, err := conn.WriteMsgUnix([]byte(message), rights, nil)
				if err != nil && !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
					t.Fatal(err)
				}
			}
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if err := conn.Close(); err != nil {
				t.Fatal(err)
			}
			served(t)
			polltest.Until(t, time.Minute, "all descriptors to be closed", func() bool { return descriptors(t) <= before })
		})
	}
}

// served checks that the engine serves a client, and no device.
func served(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client, err := control.Dial(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	answer, err := client.Ask(ctx, control.Message{Op: control.List})
	if err != nil || len(answer.Devices) > 0 {
		t.Errorf("list: %+v, %v", answer, err)
	}
}

// TestOtherUsersMayNot connects as another user, after the modes of socket and directory were
// changed.
func TestOtherUsersMayNot(t *testing.T) {
	log := startEngine(t)
	if err := errors.Join(os.Chmod(control.Path, 0o777), os.Chmod(control.Dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	conn, err := asOtherUser(func() (net.Conn, error) { return net.Dial("unixpacket", control.Path) })
	if err != nil {
		if errors.Is(err, syscall.EINVAL) {
			t.Skip("the user namespace has no other user; runs as root elsewhere")
		}
		t.Fatal(err)
	}
	_, _ = conn.Write([]byte(`{"id":1,"op":"hello","protocol":1}`))
	if n, err := conn.Read(make([]byte, 1000)); err == nil && n > 0 {
		t.Error("another user gets an answer")
	}
	_ = conn.Close()
	polltest.Until(t, time.Minute, "the refusal in the log", func() bool { return strings.Contains(log.String(), "user 65534: operation not permitted") })
	served(t)
}

// asOtherUser calls f on a thread of another user, which ends afterwards.
func asOtherUser(f func() (net.Conn, error)) (conn net.Conn, err error) {
	const user = 65534
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlock it
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, user, user, user); errno != 0 {
			err = errno
			return
		}
		conn, err = f()
	}()
	<-done
	return conn, err
}

// TestAnEngineThatRunsIsNotReplaced starts a second engine, which must not take over.
func TestAnEngineThatRunsIsNotReplaced(t *testing.T) {
	startEngine(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	err := engine.Run(ctx, engine.Config{Temporary: true, Logger: slog.New(slog.DiscardHandler)})
	if !strings.Contains(fmt.Sprint(err), "another process") {
		t.Errorf("got %v, want an error about the socket's other process", err)
	}
	served(t)
}
