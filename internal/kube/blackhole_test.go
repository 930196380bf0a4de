package kube

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// blackhole forwards bytes between a client and a server until it is closed, and drops them
// afterwards, as a broken network does.
type blackhole struct {
	listener net.Listener
	closed   atomic.Bool
}

func newBlackhole(t *testing.T, target string) *blackhole {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &blackhole{listener: listener}
	var copying sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	copying.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", target)
			if err != nil {
				_ = in.Close()
				continue
			}
			mu.Lock()
			conns = append(conns, in, out)
			mu.Unlock()
			copying.Go(func() { _, _ = io.Copy(gate{in, h}, out) })
			copying.Go(func() { _, _ = io.Copy(gate{out, h}, in) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		copying.Wait()
	})
	return h
}

type gate struct {
	to io.Writer
	h  *blackhole
}

func (g gate) Write(p []byte) (int, error) {
	if g.h.closed.Load() {
		return len(p), nil
	}
	return g.to.Write(p)
}

func TestConnectionToAServerThatVanishedIsGivenUp(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "1")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "1")
	var hole *blackhole
	b := prepare(t, func(address string) string {
		hole = newBlackhole(t, address)
		return hole.listener.Addr().String()
	})
	b.api.apply("a", "v1", "")
	b.run(t)
	eventually(t, "sync", func() bool { return b.has(node{"a", "v1"}) })
	hole.closed.Store(true)
	b.api.apply("a", "v2", "")
	requests := len(b.api.seen())
	eventually(t, "error", func() bool { return b.watch.Err() != nil })
	hole.closed.Store(false)
	eventually(t, "new connection", func() bool { return b.has(node{"a", "v2"}) })
	if len(b.api.seen()) == requests {
		t.Error("no new request")
	}
}
