package udp

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

const (
	// grouped is how many messages are read at once that may hold many datagrams each.
	grouped = 2
	// atOnce is how many datagrams are read or sent at once: a message of 64 KiB holds 49 of
	// a link with the least MTU, 1,280 bytes. wireguard-go keeps two lists of that length
	// for each peer; from 112 on they are of the next size of Go's allocator.
	atOnce = grouped * 55
	// The kernel puts no fragments together, nor small packets of many senders. Where
	// messages hold one datagram each, alone of them are read at once; when they hold
	// more after all, these are copied twice. So that is done only after all of aloneAfter
	// reads had no such message.
	alone      = 32
	aloneAfter = 8
	// aloneRoom is how many bytes of each of these go into the engine's buffer, if
	// datagrams aren't larger. Of one that holds many after all the rest goes elsewhere:
	// all pages of a buffer that it has filled once would stay in memory.
	aloneRoom = 4 << 10

	maxMessage = 65535
	// firstSegment is the size of datagrams that are expected first: those of full packets
	// in a tunnel over Ethernet.
	firstSegment = 1452
)

// receiver reads one socket. Where the kernel puts datagrams of one size together, it
// writes each of them into a buffer of its own, as far as they have the size of those
// before. Only one goroutine uses it.
type receiver struct {
	socket   *socket
	messages [atOnce]message
	names    [atOnce]socketAddress
	control  [atOnce][]byte
	vectors  [atOnce + grouped]unix.Iovec
	beyond   [alone][]byte // what doesn't fit into a message's buffers; nil: not used yet
	whole    []byte        // a message that is cut in other places

	used    int // of messages
	n       int // what poll returns
	errno   syscall.Errno
	poll    func(fd uintptr) bool // reads messages
	slots   int                   // buffers of each message
	part    int                   // bytes that are read into each of them, at most
	segment int                   // size of datagrams that is expected

	spare   int  // first of the engine's buffers into which nothing was read
	spilled bool // a message of this read has taken some, those behind it follow

	last    *endpoint // where the last packet came from
	lastOf  origin    // the same
	origins map[origin]*endpoint
	held    []heldMessage // what the engine had no room for, in order
	store   []byte        // of held
	singles int           // how often in a row all that could be read at once were datagrams by themselves
}

// origin is where a packet came from, and to.
type origin struct {
	from  socketAddress
	local source
}

// maxOrigins bounds the endpoints that are remembered. Beyond it they are made again.
const maxOrigins = 256

// heldMessage is what is left of a message of datagrams of one size.
type heldMessage struct {
	data []byte
	size int
	from *endpoint
}

func newReceiver(s *socket) *receiver {
	r := &receiver{socket: s, origins: make(map[origin]*endpoint), whole: make([]byte, maxMessage), segment: firstSegment}
	for i := range r.control {
		r.control[i] = make([]byte, controlRoom)
	}
	r.poll = func(fd uintptr) bool {
		r.n, r.errno = exchange(unix.SYS_RECVMMSG, fd, r.messages[:r.used])
		return r.errno != unix.EAGAIN
	}
	return r
}

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
// have to wait. Those may leave packets of size 0 between others.
func (r *receiver) once(packets [][]byte, sizes []int, endpoints []conn.Endpoint) (count int, err error) {
	r.socket.turns.ready(func(from *endpoint, packet []byte) bool {
		if count == len(packets) {
			return false
		}
		sizes[count], endpoints[count] = copy(packets[count], packet), from
		count++
		return true
	})
	if count > 0 {
		return count, nil
	}
	if count = r.rest(packets, sizes, endpoints); count > 0 {
		return count, nil
	}
	r.prepare(packets)
	if err := r.socket.raw.Read(r.poll); err != nil {
		// wireguard-go stops receiving at once for a net.Error that isn't temporary,
		// as one that the socket gets from outside and survives (ECONNABORTED). Of
		// others it takes ten in a row; net.ErrClosed is found in either.
		return 0, fmt.Errorf("receive: %w", err)
	}
	if r.errno != 0 {
		return 0, fmt.Errorf("receive: %w", r.errno)
	}
	return r.arrived(packets, sizes, endpoints), nil
}

// rest delivers what there was no room for before.
func (r *receiver) rest(packets [][]byte, sizes []int, endpoints []conn.Endpoint) (count int) {
	for len(r.held) > 0 && count < len(packets) {
		h := &r.held[0]
		var filled int
		h.data, filled = r.deliver(h.data, h.size, h.from, packets[count:], sizes[count:], endpoints[count:])
		count += filled
		if len(h.data) == 0 {
			r.held = r.held[1:]
		}
	}
	if len(r.held) == 0 {
		r.held, r.store = nil, r.store[:0]
	}
	return count
}

// arrived delivers what was read into packets.
func (r *receiver) arrived(packets [][]byte, sizes []int, endpoints []conn.Endpoint) (count int) {
	if r.n == r.used {
		r.singles++
	}
	clear(sizes)
	r.spare, r.spilled = r.used*r.slots, false
	for i := range r.n {
		count = max(count, r.take(i, packets, sizes, endpoints))
	}
	return count
}

// prepare has messages read into packets, as they are expected to be.
func (r *receiver) prepare(packets [][]byte) {
	r.used, r.slots, r.part = min(len(packets), len(r.messages)), 1, maxMessage
	switch {
	case !r.socket.coalesce || len(packets) <= grouped:
	case r.singles >= aloneAfter:
		r.used, r.part = min(r.used, alone), max(r.segment, aloneRoom)
	default:
		r.used, r.slots, r.part = grouped, min(len(packets), len(r.messages))/grouped, r.segment
	}
	vectors := r.vectors[:0]
	for i := range r.used {
		start := len(vectors)
		for _, packet := range packets[i*r.slots : (i+1)*r.slots] {
			vectors = append(vectors, vector(packet[:min(r.part, len(packet))]))
		}
		if r.part < maxMessage {
			if r.beyond[i] == nil {
				r.beyond[i] = make([]byte, maxMessage)
			}
			vectors = append(vectors, vector(r.beyond[i]))
		}
		header := &r.messages[i].header
		header.Name, header.Namelen = &r.names[i][0], uint32(len(r.names[i]))
		header.Iov = &vectors[start]
		header.SetIovlen(len(vectors) - start)
		header.Control = &r.control[i][0]
		header.SetControllen(len(r.control[i]))
	}
}

// take delivers a message that was read into its slots of packets, and returns how many
// packets are filled.
func (r *receiver) take(i int, packets [][]byte, sizes []int, endpoints []conn.Endpoint) (count int) {
	header, length := &r.messages[i].header, int(r.messages[i].length)
	local, size := parseControl(r.control[i][:header.Controllen])
	if size <= 0 || size > length {
		size = length
	}
	if size < length {
		r.singles = 0
	}
	from := r.endpoint(&r.names[i], local)
	if from == nil || length == 0 {
		return 0
	}
	first, placed := i*r.slots, 0 // bytes that are where they belong
	switch {
	case r.spilled: // Keep the order.
	case r.slots == 1 && size <= r.part:
		placed = size
	case r.slots > 1 && (size == r.part || size == length && size < r.part):
		placed = min(length, r.slots*size)
	default:
		r.segment = size
	}
	for slot, at := first, 0; at < placed; slot, at = slot+1, at+size {
		n := min(size, placed-at)
		if r.socket.turns.arrived(from, packets[slot][:n]) {
			sizes[slot], endpoints[slot] = n, from
			count = slot + 1
		}
	}
	if placed == length {
		return count
	}
	// The rest is copied: into the message's own slots when they are free, and then into
	// buffers that nothing was read into.
	end := first + r.slots
	rest := r.gather(i, length, packets[first:end])[placed:length]
	if placed == 0 && !r.spilled {
		var filled int
		rest, filled = r.deliver(rest, size, from, packets[first:end], sizes[first:], endpoints[first:])
		count = first + filled
	}
	if len(rest) > 0 {
		var filled int
		rest, filled = r.deliver(rest, size, from, packets[r.spare:], sizes[r.spare:], endpoints[r.spare:])
		r.spare += filled
		r.spilled, count = true, max(count, r.spare)
	}
	if len(rest) > 0 {
		start := len(r.store)
		r.store = append(r.store, rest...)
		r.held = append(r.held, heldMessage{data: r.store[start:], size: size, from: from})
	}
	return count
}

// gather copies a message of that length, which was read into packets, to one place, unless
// it is in one already.
func (r *receiver) gather(i, length int, packets [][]byte) []byte {
	if length <= min(r.part, len(packets[0])) {
		return packets[0]
	}
	at := 0
	for _, packet := range packets {
		at += copy(r.whole[at:], packet[:min(r.part, len(packet))])
	}
	copy(r.whole[at:], r.beyond[i])
	return r.whole
}

// deliver copies the datagrams of a message into packets, as many as there is room for. It
// returns the rest of the message, and how many packets were filled.
func (r *receiver) deliver(data []byte, size int, from *endpoint, packets [][]byte, sizes []int, endpoints []conn.Endpoint) (rest []byte, filled int) {
	taken := split(data, size, func(datagram []byte) bool {
		if filled == len(packets) {
			return false
		}
		if r.socket.turns.arrived(from, datagram) {
			sizes[filled], endpoints[filled] = copy(packets[filled], datagram), from
			filled++
		}
		return true
	})
	return data[taken:], filled
}

// endpoint returns where a packet came from, as what answers go to. It is nil when
// that isn't an address.
func (r *receiver) endpoint(from *socketAddress, local source) *endpoint {
	of := origin{*from, local}
	if r.lastOf != of || r.last == nil {
		r.last, r.lastOf = r.origins[of], of
	}
	if r.last == nil || r.last.chosen.Load() != (r.last.control != nil) {
		addr := from.addrPort()
		if !addr.IsValid() {
			return nil
		}
		if len(r.origins) >= maxOrigins {
			clear(r.origins)
		}
		r.last = newEndpoint(addr, local)
		r.origins[of] = r.last
	}
	return r.last
}
