package handover

import (
	"bytes"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/device"
)

// network is between a node and a remote, each of which knows the other one under an
// address of the network's. It delays, loses and keeps messages.
type network struct {
	remote *net.UDPAddr
	far    *net.UDPConn // the node's address, as the remote sees it
	wg     sync.WaitGroup

	mu    sync.Mutex
	near  []*net.UDPConn // the remote's addresses, as the node sees them; the last is in use
	node  netip.AddrPort
	delay func(toRemote bool, m []byte) time.Duration // negative: it is lost; nil: at once
	kept  map[bool][][]byte                           // the first messages, by whether to the remote
	ended bool
}

// newNetwork puts a network between a node, which gets the remote as its peer, and a
// remote, which has no endpoint of the node yet.
func newNetwork(t *testing.T, n *node, r *remote, more string) *network {
	t.Helper()
	w := &network{kept: make(map[bool][][]byte), remote: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: r.port}}
	w.far = listenLoopback(t)
	w.wg.Go(func() { w.pass(w.far, false) })
	t.Cleanup(func() {
		w.mu.Lock()
		w.ended = true
		_ = w.far.Close()
		for _, c := range w.near {
			_ = c.Close()
		}
		w.mu.Unlock()
		w.wg.Wait()
	})
	w.roam(t)
	n.peer(r.node, w.near[0].LocalAddr().String(), more)
	return w
}

func listenLoopback(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	if err := enlarge(c); err != nil {
		t.Fatal(err)
	}
	return c
}

// roam gives the remote another address. Nothing arrives at the one before any more.
func (w *network) roam(t *testing.T) {
	t.Helper()
	fresh := listenLoopback(t)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.near {
		_ = c.Close()
	}
	w.near = append(w.near, fresh)
	w.wg.Go(func() { w.pass(fresh, true) })
}

// behave makes the network delay and lose messages.
func (w *network) behave(delay func(toRemote bool, m []byte) time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay = delay
}

// pass passes on what comes to a socket.
func (w *network) pass(in *net.UDPConn, toRemote bool) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := in.ReadFromUDPAddrPort(buf)
		w.mu.Lock()
		ended := w.ended
		if err == nil && toRemote {
			w.node = from
		}
		if err == nil && (messageType(buf[:n]) != device.MessageTransportType || len(w.kept[toRemote]) < 1000) {
			w.kept[toRemote] = append(w.kept[toRemote], bytes.Clone(buf[:n]))
		}
		var after time.Duration
		if err == nil && w.delay != nil {
			after = w.delay(toRemote, buf[:n])
		}
		w.mu.Unlock()
		switch {
		case err != nil && (ended || !w.uses(in)):
			return
		case err != nil: // an ICMP error
		case after == 0:
			w.deliver(toRemote, buf[:n])
		case after > 0:
			m := bytes.Clone(buf[:n])
			w.wg.Go(func() {
				time.Sleep(after)
				w.deliver(toRemote, m)
			})
		}
	}
}

func (w *network) uses(c *net.UDPConn) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return c == w.far || c == w.near[len(w.near)-1]
}

// deliver hands a message to the node or the remote.
func (w *network) deliver(toRemote bool, m []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if toRemote {
		_, _ = w.far.WriteToUDP(m, w.remote)
	} else if w.node.IsValid() {
		_, _ = w.near[len(w.near)-1].WriteToUDPAddrPort(m, w.node)
	}
}

// found tells the network where the node is, which has sent nothing yet.
func (w *network) found(port int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.node = netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(port))
}

// of returns the messages of a type that the node sent.
func (w *network) of(kind uint32) (found [][]byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.kept[true] {
		if messageType(m) == kind {
			found = append(found, m)
		}
	}
	return found
}

// nodeAddr is where the node is, for whoever sends to it.
func (w *network) nodeAddr() netip.AddrPort {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.node
}

// recorded returns what was sent first.
func (w *network) recorded(toRemote bool) [][]byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.kept[toRemote])
}
