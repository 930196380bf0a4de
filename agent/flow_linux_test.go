package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/polltest"
)

const (
	// flowPort is the port on which pods echo.
	flowPort = 7
	// flowSpacing is the interval between two packets of a flow.
	flowSpacing = 5 * time.Millisecond
	// flowBuffer is the receive buffer in bytes, for a busy machine.
	flowBuffer = 8 << 20
	// flowEnd replaces the number of a packet that checks whether the earlier ones are back.
	flowEnd = 1<<64 - 1
)

// flow sends numbered packets from a pod to another, which echoes them, and counts those
// that are lost.
type flow struct {
	conn          net.PacketConn
	to            net.Addr
	sent, got     atomic.Uint64
	ends          atomic.Uint64
	heldBack      time.Duration // the longest time; to be read after the end
	quit          chan struct{}
	done, sending sync.WaitGroup
}

// serveEcho echoes, in a pod, UDP packets and TCP streams.
func (n *testNode) serveEcho(t *testing.T) {
	t.Helper()
	servePackets(t, n.pod, netip.AddrPortFrom(n.podIP, flowPort))
	var listener net.Listener
	check(t, n.pod.Do(func() (err error) {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(n.podIP, flowPort).String())
		return err
	}))
	ctx, cancel := context.WithCancel(context.Background())
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
			serving.Go(func() {
				defer stop()
				defer conn.Close()
				buffer := make([]byte, 2048)
				for {
					size, err := conn.Read(buffer)
					if err != nil {
						return
					}
					if _, err := conn.Write(buffer[:size]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		cancel() // What the client says may not arrive any more.
		check(t, listener.Close())
		serving.Wait()
	})
}

// servePackets echoes UDP packets at an address, until stop is called or the test
// ends.
func servePackets(t *testing.T, ns *nstest.Namespace, address netip.AddrPort) (stop func()) {
	t.Helper()
	packets := openUDP(t, ns, address)
	var serving sync.WaitGroup
	serving.Go(func() {
		buffer := make([]byte, 2048)
		for {
			size, from, err := packets.ReadFrom(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				// A refusal of the network is what a flow counts.
				_, _ = packets.WriteTo(buffer[:size], from)
			}
		}
	})
	stop = sync.OnceFunc(func() {
		_ = packets.Close()
		serving.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// openUDP opens a socket in a namespace.
func openUDP(t *testing.T, ns *nstest.Namespace, address netip.AddrPort) net.PacketConn {
	t.Helper()
	var conn *net.UDPConn
	check(t, ns.Do(func() (err error) {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(address))
		return err
	}))
	raw, err := conn.SyscallConn()
	check(t, err)
	var forced error
	check(t, raw.Control(func(fd uintptr) {
		forced = syscall.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, flowBuffer)
	}), forced)
	return conn
}

// flowTo starts a flow from the node's pod to that of another one.
func (n *testNode) flowTo(t *testing.T, to *testNode) *flow {
	t.Helper()
	return n.flowOf(t, to, 1)
}

// flowOf is flowTo with burst packets at once.
func (n *testNode) flowOf(t *testing.T, to *testNode, burst int) *flow {
	t.Helper()
	return startFlow(t, n.pod, netip.AddrPortFrom(n.podIP, 0), netip.AddrPortFrom(to.podIP, flowPort), burst)
}

// maxUnderWay bounds the packets in flight, and lost, of a flow in bursts.
const maxUnderWay = 1000

// startFlow starts a flow from an address in a namespace to another one, of burst packets
// at once.
func startFlow(t *testing.T, ns *nstest.Namespace, from, to netip.AddrPort, burst int) *flow {
	t.Helper()
	f := &flow{conn: openUDP(t, ns, from), to: net.UDPAddrFromAddrPort(to), quit: make(chan struct{})}
	f.done.Go(func() {
		buffer := make([]byte, 2048)
		for {
			size, _, err := f.conn.ReadFrom(buffer)
			switch {
			case errors.Is(err, net.ErrClosed):
				return
			case err != nil || size != 8:
			case binary.BigEndian.Uint64(buffer) == flowEnd:
				f.ends.Add(1)
			default:
				f.got.Add(1)
			}
		}
	})
	f.sending.Go(func() {
		tick := time.NewTicker(flowSpacing)
		defer tick.Stop()
		sent := time.Now()
		for {
			select {
			case <-f.quit:
				return
			case <-tick.C:
			}
			// The reader of the TUN may be preempted: its queue holds 2000 packets.
			if burst > 1 && f.sent.Load() >= f.got.Load()+maxUnderWay {
				f.heldBack = max(f.heldBack, time.Since(sent))
				continue
			}
			sent = time.Now()
			for range burst {
				f.send(f.sent.Add(1))
			}
		}
	})
	t.Cleanup(func() {
		f.pause()
		check(t, f.conn.Close())
		f.done.Wait()
	})
	return f
}

// send sends one packet. An error counts as a lost packet.
func (f *flow) send(number uint64) {
	_, _ = f.conn.WriteTo(binary.BigEndian.AppendUint64(nil, number), f.to)
}

// pause stops sending. When it returns, all sent packets have been counted.
func (f *flow) pause() {
	select {
	case <-f.quit:
	default:
		close(f.quit)
	}
	f.sending.Wait()
}

// waitPassing waits until packets that are sent from now on come back.
func (f *flow) waitPassing(t *testing.T, what string) {
	t.Helper()
	before := f.ends.Load()
	polltest.Until(t, patience, what+": packets to pass", func() bool {
		f.send(flowEnd)
		return f.ends.Load() > before
	})
}

// end ends the flow and returns how many packets were sent, and how many of them
// didn't come back.
func (f *flow) end(t *testing.T, what string) (sent, lost uint64) {
	t.Helper()
	f.pause()
	f.waitPassing(t, what)
	// Packets are reordered across processors: one echo of flowEnd isn't enough.
	sent = f.sent.Load()
	for range 100 {
		if f.got.Load() == sent {
			break
		}
		f.waitPassing(t, what)
	}
	lost = sent - f.got.Load()
	t.Logf("%s: %d of %d packets lost, held back for %v at most", what, lost, sent, f.heldBack)
	return sent, lost
}

// stream is a TCP connection from a pod to another one, which echoes.
type stream struct {
	conn net.Conn
	buf  [8]byte
	n    uint64
}

func (n *testNode) streamTo(t *testing.T, to *testNode) *stream {
	t.Helper()
	s := &stream{}
	check(t, n.pod.Do(func() (err error) {
		s.conn, err = net.DialTimeout("tcp", netip.AddrPortFrom(to.podIP, flowPort).String(), patience)
		return err
	}))
	t.Cleanup(func() { _ = s.conn.Close() })
	s.echo(t, "at first")
	return s
}

// echo checks that the connection is alive.
func (s *stream) echo(t *testing.T, what string) {
	t.Helper()
	s.n++
	binary.BigEndian.PutUint64(s.buf[:], s.n)
	_, writing := s.conn.Write(s.buf[:])
	check(t, writing, s.conn.SetReadDeadline(time.Now().Add(patience)))
	if _, err := s.conn.Read(s.buf[:]); err != nil || binary.BigEndian.Uint64(s.buf[:]) != s.n {
		t.Fatalf("%s: the TCP connection doesn't go on: %v", what, err)
	}
}

// connected waits until two nodes' pods reach each other, and returns a connection
// from the first to the second.
func connected(t *testing.T, a, b *testNode) *stream {
	t.Helper()
	for _, way := range [][2]*testNode{{a, b}, {b, a}} {
		f := way[0].flowTo(t, way[1])
		f.waitPassing(t, way[0].name+" to "+way[1].name)
		f.pause()
	}
	return a.streamTo(t, b)
}
