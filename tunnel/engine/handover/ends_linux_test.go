package handover

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/kube-semaphore/kube-semaphore/tunnel/engine/udp"
)

// socketPair returns both ends of a pair of the kernel's.
func socketPair(t *testing.T) (oldEnd, newEnd End) {
	t.Helper()
	a, b, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	if oldEnd, err = Conn(a); err != nil {
		t.Fatal(err)
	}
	if newEnd, err = Conn(b); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = oldEnd.Close(), newEnd.Close() })
	return oldEnd, newEnd
}

// eachPair runs a test with a pair of the kernel's, and with one in memory.
func eachPair(t *testing.T, f func(t *testing.T, a, b End)) {
	t.Run("sockets", func(t *testing.T) {
		a, b := socketPair(t)
		f(t, a, b)
	})
	t.Run("memory", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			a, b := newMemoryPair()
			t.Cleanup(func() { _, _ = a.Close(), b.Close() })
			f(t, a, b)
		})
	})
}

// reads checks the messages that an end reads, and the error that ends them.
func reads(t *testing.T, e End, want error, messages ...string) {
	t.Helper()
	buf := make([]byte, maxMessage)
	for _, message := range messages {
		n, err := e.Read(buf)
		if err != nil || string(buf[:n]) != message {
			t.Fatalf("read %q, %v, want %q", buf[:n], err, message)
		}
	}
	if want == nil {
		return
	}
	if n, err := e.Read(buf); !errors.Is(err, want) {
		t.Fatalf("read %q, %v, want %v", buf[:n], err, want)
	}
}

func writes(t *testing.T, e End, messages ...string) {
	t.Helper()
	for _, message := range messages {
		if n, err := e.Write([]byte(message)); n != len(message) || err != nil {
			t.Fatalf("wrote %d bytes, %v", n, err)
		}
	}
}

// Ends in memory behave as those of the kernel do.
func TestEnds(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, a, b End){
		"messages stay whole": func(t *testing.T, a, b End) {
			writes(t, a, "one", "another")
			writes(t, b, "back")
			if !b.unread() {
				t.Error("nothing is unread")
			}
			reads(t, b, nil, "one", "another")
			reads(t, a, nil, "back")
			if a.unread() || b.unread() {
				t.Error("something is unread")
			}
		},
		"closed for reading": func(t *testing.T, a, b End) {
			writes(t, b, "before")
			if err := a.CloseRead(); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Write([]byte("after")); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("written with %v, want %v", err, syscall.EPIPE)
			}
			if _, err := b.try([]byte("after")); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("tried with %v, want %v", err, syscall.EPIPE)
			}
			reads(t, a, io.EOF, "before")
			writes(t, a, "still")
			reads(t, b, nil, "still")
		},
		"closed": func(t *testing.T, a, b End) {
			writes(t, a, "last")
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Write([]byte("after")); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("written with %v, want %v", err, syscall.EPIPE)
			}
			reads(t, b, io.EOF, "last")
			reads(t, a, net.ErrClosed)
			if err := a.SetWriteDeadline(time.Time{}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("a deadline is set with %v, want %v", err, net.ErrClosed)
			}
		},
		"closed with something unread": func(t *testing.T, a, b End) {
			writes(t, a, "last")
			writes(t, b, "unread")
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			reads(t, b, syscall.ECONNRESET)
			reads(t, b, io.EOF, "last")
			if _, err := b.Write([]byte("after")); !errors.Is(err, syscall.EPIPE) {
				t.Errorf("written with %v, want %v", err, syscall.EPIPE)
			}
		},
		"closed with something unread, and written to first": func(t *testing.T, a, b End) {
			writes(t, a, "last")
			writes(t, b, "unread")
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := b.Write([]byte("after")); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("written with %v, want %v", err, syscall.ECONNRESET)
			}
			reads(t, b, io.EOF, "last")
		},
		"closed while it is read": func(t *testing.T, a, _ End) {
			closed := make(chan error, 1)
			time.AfterFunc(10*time.Millisecond, func() { closed <- a.Close() })
			reads(t, a, net.ErrClosed)
			if err := <-closed; err != nil {
				t.Error(err)
			}
		},
		"full": func(t *testing.T, a, b End) {
			large := bytes.Repeat([]byte{1}, maxMessage)
			tried := 0
			for wrote := true; wrote; tried++ {
				var err error
				if wrote, err = a.try(large); err != nil {
					t.Fatal(err)
				}
			}
			written := 0
			for {
				if err := a.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
					t.Fatal(err)
				}
				if _, err := a.Write(large); errors.Is(err, os.ErrDeadlineExceeded) {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				written++
			}
			if tried < 2 || written < 1 {
				t.Errorf("there was room for %d messages that don't wait beside %d others", written, tried)
			}
			reads(t, b, nil, string(large), string(large))
			if err := a.SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
				t.Fatal(err)
			}
			writes(t, a, "room again")
		},
	} {
		t.Run(name, func(t *testing.T) { eachPair(t, f) })
	}
}

// The messages of a new engine that ended with unread messages are still read.
func TestRefuseAfterTheNewEngineEnded(t *testing.T) {
	eachPair(t, func(t *testing.T, oldEnd, newEnd End) {
		writes(t, oldEnd, string(kindPeers))
		writes(t, newEnd, string(kindOwned))
		if err := newEnd.Close(); err != nil {
			t.Fatal(err)
		}
		p := newPair(oldEnd)
		defer p.close()
		if began, took := p.drain(); !began || !took {
			t.Errorf("began: %v, took: %v; want both", began, took)
		}
	})
}

// Relayed messages wait for an engine that doesn't run, in order, and delay no other
// message.
func TestRelayedMessagesWait(t *testing.T) {
	eachPair(t, func(t *testing.T, oldEnd, newEnd End) {
		p := newPair(newEnd)
		defer p.close()
		const messages, size = 10000, 1500 // more than a pair has room for
		message := make([]byte, size)
		message[0] = byte(kindRelayed)
		for i := range messages {
			binary.BigEndian.PutUint32(message[1:], uint32(i))
			p.enqueue(message)
		}
		for range 100 {
			if err := p.send(kindProgress); err != nil {
				t.Fatal(err)
			}
		}
		buf := make([]byte, maxMessage)
		for relayed, others := 0, 0; relayed < messages || others < 100; {
			n, err := oldEnd.Read(buf)
			switch {
			case err != nil:
				t.Fatalf("after %d messages: %v", relayed, err)
			case kind(buf[0]) != kindRelayed:
				others++
			case n != size || binary.BigEndian.Uint32(buf[1:]) != uint32(relayed):
				t.Fatalf("message %d has %d bytes, and number %d", relayed, n, binary.BigEndian.Uint32(buf[1:]))
			default:
				relayed++
			}
		}
		if n := p.lost.Load(); n > 0 {
			t.Errorf("%d messages are lost", n)
		}
	})
}

// Messages that are relayed to an engine that hangs for good take a bounded amount of
// memory.
func TestRelayedMessagesAreBounded(t *testing.T) {
	eachPair(t, func(t *testing.T, _, newEnd End) {
		p := newPair(newEnd)
		defer p.close()
		message := make([]byte, 1<<16)
		for range 4 * maxQueued / len(message) {
			p.enqueue(message)
		}
		if queued, lost := p.queued.Load(), p.lost.Load(); queued > maxQueued || lost == 0 {
			t.Errorf("%d bytes wait, and %d messages are lost", queued, lost)
		}
	})
}

// Sockets in memory behave as those of the kernel do: two binds have one, and what arrives
// while both are paused is received later.
func TestSockets(t *testing.T) {
	// descriptor returns sockets that aren't open, twice.
	test := func(t *testing.T, descriptor func() Sockets, addr string, from conn.Bind) {
		port := uint16(0)
		var binds [2]Sockets
		var functions [2][]conn.ReceiveFunc
		for i := range binds {
			binds[i] = descriptor()
			var err error
			if functions[i], port, err = binds[i].Open(port); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = binds[i].Close() })
		}
		first, second := binds[0], binds[1]
		to, err := from.ParseEndpoint(net.JoinHostPort(addr, strconv.Itoa(int(port))))
		if err != nil {
			t.Fatal(err)
		}
		packets, sizes, endpoints := make([][]byte, first.BatchSize()), make([]int, first.BatchSize()), make([]conn.Endpoint, first.BatchSize())
		for i := range packets {
			packets[i] = make([]byte, 1<<16)
		}
		received := func(i int) string {
			t.Helper()
			var all []string
			n, err := functions[i][0](packets, sizes, endpoints)
			for k := range n {
				all = append(all, string(packets[k][:sizes[k]]))
			}
			if err != nil {
				all = append(all, strings.TrimPrefix(err.Error(), "receive: "))
			}
			return strings.Join(all, " ")
		}
		send := func(m string) {
			t.Helper()
			if err := from.Send([][]byte{[]byte(m)}, to); err != nil {
				t.Fatal(err)
			}
		}
		check := func(got, want string) {
			t.Helper()
			if !strings.Contains(got, want) {
				t.Fatalf("received %q, want %q", got, want)
			}
		}
		second.Pause(true)
		send("one")
		check(received(0), "one")
		first.Pause(true)
		send("two")
		timeout := "i/o timeout"
		for i, f := range functions {
			check(received(i), timeout)
			check(received(i), timeout)
			if _, err := f[len(f)-1](packets, sizes, endpoints); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("the last function returns %v, want %v", err, os.ErrDeadlineExceeded)
			}
		}
		second.Pause(false)
		check(received(1), "two")
		time.AfterFunc(10*time.Millisecond, func() { second.Pause(true) })
		check(received(1), timeout)
		time.AfterFunc(10*time.Millisecond, func() { _ = first.Close() })
		first.Pause(false)
		if _, err := functions[0][0](packets, sizes, endpoints); !errors.Is(err, net.ErrClosed) {
			t.Errorf("received with %v, want %v", err, net.ErrClosed)
		}
		if err := second.Close(); err != nil { // while it is paused
			t.Fatal(err)
		}
		if _, err := functions[1][0](packets, sizes, endpoints); !errors.Is(err, net.ErrClosed) {
			t.Errorf("received with %v, want %v", err, net.ErrClosed)
		}
	}
	t.Run("of the kernel", func(t *testing.T) {
		var files []*os.File
		from := udp.New(udp.Config{})
		if _, _, err := from.Open(0); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = from.Close() })
		test(t, func() Sockets {
			return udp.New(udp.Config{Inherited: files, Opened: func(_ uint16, opened []*os.File) { files = opened }})
		}, "127.0.0.1", from)
		for _, f := range files {
			_ = f.Close()
		}
	})
	t.Run("in memory", func(t *testing.T) {
		inBubble(t, func(t *testing.T) {
			l := newLAN()
			p, from := l.listen(), newPortBind(l.listen())
			if _, _, err := from.Open(0); err != nil {
				t.Fatal(err)
			}
			test(t, func() Sockets { return newPortBind(p) }, p.addr.Addr().String(), from)
		})
	})
}
