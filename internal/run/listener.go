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
	// How many connections may be open at once, and with that how many requests
	// may be under way: HTTP/1.1 has one of them per connection. Probes come from
	// the same source as whatever else runs on the host's network, and the more
	// connections that may hold, the longer one of theirs stays.
	maxConnections      = 256
	maxProbeConnections = 1024
	// minStay is what a connection has before it is closed for another one: many
	// times what a probe takes.
	minStay = 20 * time.Millisecond
	// backlog is how many connections the kernel keeps that haven't been accepted
	// yet. With its default of 4,096 a probe in a flood would wait for seconds.
	backlog = 128
	// sendBuffer is what the kernel keeps of an answer for a client that
	// doesn't read it, in bytes. It doubles that.
	sendBuffer = 32 << 10
)

// fairListener accepts every connection and keeps no more than limit of them:
// one too many closes another one, of the source that holds the most. So who
// opens many connections, and sends nothing on them or reads nothing, loses
// connections of its own, and one that somebody else opens is always served.
type fairListener struct {
	net.Listener
	limit int

	mu    sync.Mutex
	open  int
	held  map[netip.Prefix]*holding
	freed chan struct{} // a connection was closed; holds one
}

// holding is what one source holds: connections that nobody serves, and those
// that a handler works for, each in the order in which they became that.
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
	kind  int           // index of a holding
	place *list.Element // in the owner's lists; nil: closed
}

// Accept waits for a connection. On the loopback it takes none that comes from
// another machine: where net.ipv4.conf.all.route_localnet is set, as kube-proxy
// does, the kernel would deliver it.
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
			// Without it answers are sent just as well.
			_ = tcp.SetWriteBuffer(sendBuffer)
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

// admit adds c, and returns the connection that has to go for it; or else how
// long to wait for there to be one.
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

// remove takes a connection out of those that are open, if it is one.
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

// serve says whether a handler works for the connection.
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

// surplus returns which of the open connections is to be closed for another one:
// among those of the sources that hold the most, of the ones that are served and
// the ones that aren't, the more numerous; of these, the oldest. Neither
// connections that send nothing nor those that read nothing can push the other
// kind out that way.
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

// sourceOf returns what counts as one source: an IPv4 address, or the /64 that
// one host has of IPv6 (RFC 6177).
func sourceOf(addr netip.Addr) netip.Prefix {
	bits := addr.BitLen()
	if addr.Is6() && !addr.IsLoopback() {
		bits = 64
	}
	// An address that isn't valid has the zero prefix.
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

// abort closes a connection without keeping what hasn't been sent yet.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	// Nobody waits for what is lost by that.
	_ = conn.Close()
}
