package contact

import (
	"net"
	"net/netip"
	"sync"
	"time"
)

// Kinds of WireGuard messages: the first byte of each (WireGuard whitepaper,
// section 5.4).
const (
	Initiation = 1
	Response   = 2
	Transport  = 4
)

// Packet is a message on its way from one of the two sides, 0 or 1.
type Packet struct {
	From int
	Kind byte
	Data []byte
}

// Rule decides about a packet: it is dropped if pass is false, otherwise forwarded after the
// delay.
type Rule func(Packet) (delay time.Duration, pass bool)

// relay stands between two sides. Each knows the other one by the relay's address.
type relay struct {
	conns [2]*net.UDPConn // where each side sends to
	sides [2]netip.AddrPort

	log *journal

	mu   sync.Mutex
	rule Rule
	done sync.WaitGroup
}

func (r *relay) set(rule Rule) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rule = rule
}

func (r *relay) start() {
	for from := range r.conns {
		r.done.Go(func() { r.forward(from) })
	}
}

func (r *relay) forward(from int) {
	for {
		buf := make([]byte, 2048)
		n, _, err := r.conns[from].ReadFromUDPAddrPort(buf)
		if err != nil {
			return // closed
		}
		if n == 0 {
			continue
		}
		r.mu.Lock()
		rule := r.rule
		r.mu.Unlock()
		delay, pass := time.Duration(0), true
		if rule != nil {
			delay, pass = rule(Packet{from, buf[0], buf[:n]})
		}
		r.log.packet(Packet{from, buf[0], buf[:n]}, pass)
		switch {
		case !pass:
		case delay > 0:
			time.AfterFunc(delay, func() { r.send(1-from, buf[:n]) })
		default:
			r.send(1-from, buf[:n])
		}
	}
}

// send delivers a packet to a side.
func (r *relay) send(to int, data []byte) {
	// An error counts as loss.
	_, _ = r.conns[to].WriteToUDPAddrPort(data, r.sides[to])
}

func (r *relay) close() {
	for _, c := range r.conns {
		if c != nil {
			_ = c.Close() // It only ends forward.
		}
	}
	r.done.Wait()
}
