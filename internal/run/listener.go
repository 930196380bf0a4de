package run

import (
	"container/list"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Bounds of one listener. A scraper and a kubelet hold one connection each.
const (
	// Maximum number of open connections, and of concurrent requests: HTTP/1.1 has one per
	// connection. Probes have the same source as other processes on the host's network: the
	// more connections are allowed, the longer one of a probe stays.
	maxConnections      = 256
	maxProbeConnections = 1024
	// minStay is the minimum time until a connection is closed for another one: many times
	// the duration of a probe.
	minStay = 20 * time.Millisecond
	// backlog is the number of connections that aren't accepted yet. With the kernel's
	// default of 4,096 a probe would wait for seconds in a flood.
	backlog = 128
	// sendBuffer is the size of the kernel's send buffer in bytes, which the kernel doubles,
	// for clients that don't read the response.
	sendBuffer = 32 << 10
)

// fairListener accepts all connections and keeps at most limit of them: beyond that, it
// closes one of the source with the most connections. A client that opens many connections
// without sending or reading loses its own ones, and other clients are always served.
type fairListener struct {
	net.Listener
	limit int

	mu    sync.Mutex
	open  int
	held  map[netip.Prefix]*holding
	freed chan struct{} // signals that a connection was closed; capacity 1
}

// holding has the connections of one source: idle ones, and those with a running handler,
// each in the order in which they became so.
type holding [2]list.List

func (h *holding) count() int { return h[0].Len() + h[1].Len() }

func newFairListener(listener net.Listener, limit int) *fairListener {
	if tcp, ok := listener.(*net.TCPListener); ok {
		setBacklog(tcp)
	}
	return &fairListener{Listener: listener, limit: limit, held: map[netip.Prefix]*holding{}, freed: make(chan struct{}, 1)}
}

// fairConn is a connection of a fairListener.
type fairConn struct {
	net.Conn
	owner  *fairListener
	source netip.Prefix
	since  time.Time

	// Guarded by owner.mu.
	kind  int           // index into holding
	place *list.Element // in the list of the holding; nil: closed
}

// Accept waits for a connection. On the loopback it rejects connections from other machines,
// which the kernel delivers if net.ipv4.conf.all.route_localnet is set, as kube-proxy does.
func (l *fairListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		local, remote := addressOf(conn.LocalAddr()), addressOf(conn.RemoteAddr())
		if local.IsLoopback() && !remote.IsLoopback() {
			abort(conn)
			continue
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetWriteBuffer(sendBuffer) // an error leaves the default
		}
		c := &fairConn{Conn: conn, owner: l, source: sourceOf(remote)}
		for {
			one, wait := l.admit(c)
			if one != nil {
				abort(one.Conn)
			}
			if wait <= 0 {
				return c, nil
			}
			select {
			case <-time.After(wait):
			case <-l.freed:
			}
		}
	}
}

// admit adds c, and returns the connection to close for it, if any; or it returns how long
// to wait before the next attempt.
func (l *fairListener) admit(c *fairConn) (one *fairConn, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c.since = time.Now()
	if l.open >= l.limit {
		one = l.surplus()
		if stay := c.since.Sub(one.since); stay < minStay {
			return nil, minStay - stay
		}
		l.remove(one)
	}
	l.add(c)
	return one, 0
}

func (l *fairListener) add(c *fairConn) {
	h := l.held[c.source]
	if h == nil {
		h = new(holding)
		l.held[c.source] = h
	}
	c.place = h[c.kind].PushBack(c)
	l.open++
}

// remove removes a connection if it is open.
func (l *fairListener) remove(c *fairConn) {
	if c.place == nil {
		return
	}
	h := l.held[c.source]
	h[c.kind].Remove(c.place)
	c.place = nil
	l.open--
	if h.count() == 0 {
		delete(l.held, c.source)
	}
}

// Close closes the connection.
func (c *fairConn) Close() error {
	c.owner.mu.Lock()
	c.owner.remove(c)
	c.owner.mu.Unlock()
	select {
	case c.owner.freed <- struct{}{}:
	default:
	}
	return c.Conn.Close()
}

// serve sets whether the connection has a running handler.
func (c *fairConn) serve(serving bool) {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	open := c.place != nil
	c.owner.remove(c)
	c.kind = 0
	if serving {
		c.kind = 1
	}
	if open {
		c.owner.add(c)
	}
}

// surplus returns the connection to close for another one: of the sources with the most
// connections, the oldest one of the more numerous kind, idle or with a handler, so that
// neither kind can displace the other.
func (l *fairListener) surplus() *fairConn {
	most := 0
	for _, h := range l.held {
		most = max(most, h.count())
	}
	var oldest [2]*fairConn
	var count [2]int
	for _, h := range l.held {
		if h.count() < most {
			continue
		}
		for kind := range h {
			count[kind] += h[kind].Len()
			front := h[kind].Front()
			if front == nil {
				continue
			}
			if c, ok := front.Value.(*fairConn); ok && (oldest[kind] == nil || c.since.Before(oldest[kind].since)) {
				oldest[kind] = c
			}
		}
	}
	if count[1] > count[0] {
		return oldest[1]
	}
	return oldest[0]
}

// sourceOf returns the source of an address: the IPv4 address, or the IPv6 /64 of a host
// (RFC 6177).
func sourceOf(addr netip.Addr) netip.Prefix {
	bits := addr.BitLen()
	if addr.Is6() && !addr.IsLoopback() {
		bits = 64
	}
	// The zero prefix for an invalid address.
	prefix, _ := addr.Prefix(bits)
	return prefix
}

// addressOf returns the address of one end of a TCP connection.
func addressOf(addr net.Addr) netip.Addr {
	if tcp, ok := addr.(*net.TCPAddr); ok {
		return tcp.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// abort closes a connection and discards unsent data.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close() // unsent data is discarded anyway
}
