package udp

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"
)

// Packets that arrive while a bind is paused stay in its sockets, for the process that gets these, also
// while a handshake message is delayed.
func TestPausedBindsReadNothing(t *testing.T) {
	var shared []*os.File
	b, from := New(Config{Opened: func(_ uint16, sockets []*os.File) { shared = sockets }}), openBind(t, 0)
	receive, port, err := b.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	packets, sizes, endpoints := [][]byte{make([]byte, 65535)}, make([]int, 1), make([]conn.Endpoint, 1)
	next := func() (byte, error) {
		n, err := receive[0](packets, sizes, endpoints)
		if n == 0 {
			return 0, err
		}
		return packets[0][0], err
	}
	want := func(kind byte) {
		t.Helper()
		if got, err := next(); err != nil || got != kind {
			t.Fatalf("got a message of kind %d, %v, want kind %d", got, err, kind)
		}
	}
	// No delay ends by time, however slow the host is.
	serializer := b.four.Load().serializer
	limited := func(limit time.Duration) {
		serializer.mu.Lock()
		defer serializer.mu.Unlock()
		serializer.limit = limit
		for _, one := range serializer.of {
			one.until = time.Now().Add(limit)
		}
		if !serializer.armed.IsZero() {
			serializer.arm(time.Now().Add(limit))
		}
	}
	limited(time.Minute)
	to := from.to(t, "127.0.0.1", port)
	initiation, data := handshakeMessage(kindInitiation, 1), handshakeMessage(kindTransport, 1)
	if err := from.Send([][]byte{initiation}, to); err != nil {
		t.Fatal(err)
	}
	want(kindInitiation)
	// Another initiation is delayed, and data isn't.
	for _, packet := range [][]byte{initiation, data} {
		if err := from.Send([][]byte{packet}, to); err != nil {
			t.Fatal(err)
		}
	}
	want(kindTransport)
	limited(handlingTime)

	waiting := make(chan error)
	go func() {
		for {
			if _, err := next(); err != nil {
				waiting <- err
				return
			}
		}
	}()
	b.Pause()
	if err := <-waiting; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("a paused bind returns %v, want os.ErrDeadlineExceeded", err)
	}
	if err := from.Send([][]byte{data}, to); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * handlingTime); time.Now().Before(end); {
		// The initiation may be ready.
		if got, err := next(); got != kindInitiation && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("a paused bind returns %d, %v, want os.ErrDeadlineExceeded", got, err)
		}
	}
	later := New(Config{Inherited: shared})
	if receive, _, err = later.Open(port); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = later.Close() }()
	want(kindTransport)
	if err := from.Send([][]byte{data}, to); err != nil {
		t.Fatal(err)
	}
	want(kindTransport)
}

// What a machine that is too busy has left in a socket is read before a pause: the process that gets
// the socket can't decrypt it.
func TestPausedBindsReadWhatHasArrived(t *testing.T) {
	b, from := New(Config{}), openBind(t, 0)
	receive, port, err := b.Open(0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = b.Close() }()
	to := from.to(t, "127.0.0.1", port)
	packets, sizes, endpoints := make([][]byte, b.BatchSize()), make([]int, b.BatchSize()), make([]conn.Endpoint, b.BatchSize())
	for i := range packets {
		packets[i] = make([]byte, 65535)
	}
	read := func() (count int) {
		for {
			n, err := receive[0](packets, sizes, endpoints)
			for _, size := range sizes[:n] {
				if size > 0 {
					count++
				}
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				return count
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	const arrived = 1000
	for i := range arrived {
		if err := from.Send([][]byte{handshakeMessage(kindTransport, uint32(i))}, to); err != nil {
			t.Fatal(err)
		}
	}
	b.Pause()
	if got := read(); got != arrived {
		t.Errorf("%d packets read, want the %d that had arrived", got, arrived)
	}
	if err := from.Send([][]byte{handshakeMessage(kindTransport, 1)}, to); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != 0 {
		t.Errorf("%d packets read that arrived later", got)
	}
}
