package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// receiver reads one socket. Only one goroutine uses it.
type receiver struct {
	socket   *socket
	messages [conn.IdealBatchSize]ipv6.Message
	last     *endpoint     // where the last packet came from
	held     []heldMessage // what the engine had no room for, in order
	singles  int           // how often in a row all that could be read at once were datagrams by themselves
}

// heldMessage is what is left of a message of datagrams of one size.
type heldMessage struct {
	data []byte
	size int
	from *endpoint
}

// grouped is how many messages are read at once that may hold many datagrams each:
// two of those that this bind sends fill what the engine gives.
const grouped = 2

// The kernel puts no fragments together, nor small packets of many senders. Where
// messages hold one datagram each, alone of them are read at once; when they hold more
// after all, the engine has no room for them, and they are copied once more. So that is
// done only after all of aloneAfter reads had no such message.
const (
	alone      = 32
	aloneAfter = 8
)

// receive implements [conn.ReceiveFunc].
func (r *receiver) receive(packets [][]byte, sizes []int, endpoints []conn.Endpoint) (count int, err error) {
	for count == 0 && err == nil {
		count, err = r.once(packets, sizes, endpoints)
		if errors.Is(err, os.ErrDeadlineExceeded) && !r.socket.turns.paused.Load() {
			err = nil // a handshake message may go on
		}
	}
	return count, err
}

// once reads once, and returns nothing when that was only handshake messages which
// have to wait.
func (r *receiver) once(packets [][]byte, sizes []int, endpoints []conn.Endpoint) (count int, err error) {
	put := func(datagram []byte, from *endpoint) {
		sizes[count], endpoints[count] = copy(packets[count], datagram), from
		count++
	}
	r.socket.turns.ready(func(from *endpoint, packet []byte) bool {
		if count == len(packets) {
			return false
		}
		put(packet, from)
		return true
	})
	if count > 0 {
		return count, nil
	}
	// Delivers datagrams into buffers below end, and returns how many bytes.
	deliver := func(message []byte, size int, from *endpoint, end int) int {
		return split(message, size, func(datagram []byte) bool {
			if count >= end {
				return false
			}
			if r.socket.turns.arrived(from, datagram) {
				put(datagram, from)
			}
			return true
		})
	}
	for len(r.held) > 0 {
		h := &r.held[0]
		h.data = h.data[deliver(h.data, h.size, h.from, len(packets)):]
		if len(h.data) > 0 {
			return count, nil
		}
		r.held = r.held[1:]
	}
	if count > 0 {
		return count, nil
	}

	read, first := r.prepare(packets)
	n, err := r.socket.batch.ReadBatch(read, 0)
	if err != nil {
		// wireguard-go stops receiving at once for a net.Error that isn't temporary,
		// as one that the socket gets from outside and survives (ECONNABORTED). Of
		// others it takes ten in a row; net.ErrClosed is found in either.
		return 0, fmt.Errorf("receive: %w", err)
	}
	if n == len(read) {
		r.singles++
	}
	for i := range read[:n] {
		m := &read[i]
		local, size := parseControl(m.OOB[:m.NN])
		if size > 0 && size < m.N {
			r.singles = 0
		}
		from := r.endpoint(m.Addr, local)
		if from == nil {
			continue
		}
		// The buffers up to this message's own are free, behind it are others.
		end := first + i + 1
		if i == n-1 {
			end = len(packets)
		}
		message := m.Buffers[0][:m.N]
		if len(r.held) > 0 {
			end = 0 // keep the order
		}
		if taken := deliver(message, size, from, end); taken < len(message) {
			// Of a sender that puts more into one message than this one does.
			r.held = append(r.held, heldMessage{data: slices.Clone(message[taken:]), size: size, from: from})
		}
	}
	return count, nil
}

// prepare returns the messages to read, with buffers from the one at first on.
// Messages of many datagrams are read into the last buffers, and cut into the
// first.
func (r *receiver) prepare(packets [][]byte) (read []ipv6.Message, first int) {
	read = r.messages[:min(len(packets), len(r.messages))]
	switch {
	case !r.socket.coalesce || len(read) <= grouped:
	case r.singles >= aloneAfter:
		read = read[:min(len(read), alone)]
	default:
		first = len(packets) - grouped
		read = read[:grouped]
	}
	for i := range read {
		m := &read[i]
		if m.OOB == nil {
			m.OOB, m.Buffers = make([]byte, controlRoom), make([][]byte, 1)
		}
		m.OOB, m.Buffers[0] = m.OOB[:cap(m.OOB)], packets[first+i]
	}
	return read, first
}

// endpoint returns where a packet came from, as what answers go to. It is nil when
// that isn't an address.
func (r *receiver) endpoint(addr net.Addr, local source) *endpoint {
	udp, ok := addr.(*net.UDPAddr)
	if !ok {
		return nil
	}
	from := unmap(udp.AddrPort())
	if r.last == nil || r.last.addr != from || r.last.from != local || r.last.chosen.Load() != (r.last.control != nil) {
		r.last = newEndpoint(from, local)
	}
	return r.last
}

// parseControl returns the address that a message was sent to, and the size of its
// datagrams, 0 when it is one.
func parseControl(control []byte) (local source, size int) {
	for len(control) >= unix.CmsgSpace(0) {
		header, data, rest, err := unix.ParseOneSocketControlMessage(control)
		if err != nil {
			return local, size
		}
		control = rest
		switch {
		case header.Level == unix.IPPROTO_UDP && header.Type == unix.UDP_GRO && len(data) >= 4:
			size = int(binary.NativeEndian.Uint32(data))
		case header.Level == unix.IPPROTO_IP && header.Type == unix.IP_PKTINFO && len(data) >= unix.SizeofInet4Pktinfo:
			local.addr = netip.AddrFrom4([4]byte(data[4:8])) // ipi_spec_dst
		case header.Level == unix.IPPROTO_IPV6 && header.Type == unix.IPV6_PKTINFO && len(data) >= unix.SizeofInet6Pktinfo:
			local.addr = netip.AddrFrom16([16]byte(data[:16]))
			if local.addr.IsLinkLocalUnicast() {
				local.index = binary.NativeEndian.Uint32(data[16:])
			}
		}
	}
	return local, size
}
