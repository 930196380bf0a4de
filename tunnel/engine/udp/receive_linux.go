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
	// grouped is the number of messages read at once when they may have many datagrams each.
	grouped = 2
	// atOnce is the number of datagrams read or sent at once: a message of 64 KiB has 49 of
	// a link with the minimum MTU, 1,280 bytes. wireguard-go has two lists of that length
	// for each peer; from 112 on they need the next size class of Go's allocator.
	atOnce = grouped * 55
	// GRO coalesces neither fragments nor small packets of many senders. When messages have
	// one datagram each, single of them are read at once. If one has several datagrams
	// then, they are copied twice, so this mode starts only after singleAfter reads
	// without such a message.
	single      = 32
	singleAfter = 8
	// singleSize is the number of bytes of each of these that go into wireguard-go's
	// buffer, unless datagrams are larger. The rest of a message of several datagrams goes
	// elsewhere, because all pages of a buffer that it filled would stay resident.
	singleSize = 4 << 10

	maxMessage = 65535
	// overhead is the number of bytes of a socket's buffer that a message takes beside its
	// content, at least.
	overhead = 768
	// firstSegment is the size of datagrams expected at first: that of full packets in a
	// tunnel over Ethernet.
	firstSegment = 1452
)

// receiver reads one socket. It predicts the size of coalesced datagrams (UDP_GRO) from the
// previous message, so that the kernel writes each of them into a buffer of its own. Only one
// goroutine uses it.
type receiver struct {
	socket   *socket
	messages [atOnce]message
	names    [atOnce]socketAddress
	control  [atOnce][]byte
	vectors  [atOnce + grouped]unix.Iovec
	beyond   [single][]byte // the rest of a message beyond its buffers; nil: not used yet
	whole    []byte         // a message whose datagrams aren't of the expected size

	used    int // of messages
	n       int // what poll returns
	errno   syscall.Errno
	poll    func(fd uintptr) bool // reads messages
	slots   int                   // buffers of each message
	part    int                   // bytes that are read into each of them, at most
	segment int                   // expected size of datagrams

	spare   int  // index of the first buffer that nothing was read into
	spilled bool // a message of this read used spare buffers, so later ones must too

	last    *endpoint // of the last packet
	lastOf  origin    // of last
	origins map[origin]*endpoint
	held    []heldMessage // datagrams beyond the caller's buffers, in order
	store   []byte        // backs held
	singles int           // successive reads that were full, with one datagram in each message
	backlog int           // bytes of the socket's buffer to read when it is paused, at most
}

// origin is the remote and the local address of a packet.
type origin struct {
	from  socketAddress
	local source
}

// maxOrigins bounds the cached endpoints.
const maxOrigins = 256

// heldMessage is the rest of a message of datagrams of one size.
type heldMessage struct {
	data []byte
	size int
	from *endpoint
}

func newReceiver(s *socket) *receiver {
	r := &receiver{socket: s, origins: make(map[origin]*endpoint), whole: make([]byte, maxMessage), segment: firstSegment, backlog: 2 * receiveBuffer}
	for i := range r.control {
		r.control[i] = make([]byte, controlSize)
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
		if errors.Is(err, os.ErrDeadlineExceeded) && !r.socket.serializer.paused.Load() {
			err = nil // The deadline was the serializer's alarm: a handshake message may be ready.
		}
	}
	return count, err
}

// once reads once. It returns 0 if all messages were handshake messages that the serializer
// delays. Delayed messages may leave packets of size 0 between others.
func (r *receiver) once(packets [][]byte, sizes []int, endpoints []conn.Endpoint) (count int, err error) {
	r.socket.serializer.ready(func(from *endpoint, packet []byte) bool {
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
	err = r.socket.raw.Read(r.poll)
	if errors.Is(err, os.ErrDeadlineExceeded) && r.socket.serializer.paused.Load() {
		err = r.drain(err)
	}
	if err != nil {
		// Not a net.Error: wireguard-go stops receiving after one that isn't temporary,
		// though the socket survives some that are caused from outside (ECONNABORTED). It
		// stops after ten others in a row, and recognizes a wrapped net.ErrClosed.
		return 0, fmt.Errorf("receive: %w", err)
	}
	if r.errno != 0 {
		return 0, fmt.Errorf("receive: %w", r.errno)
	}
	return r.arrived(packets, sizes, endpoints), nil
}

// drain reads what the socket has. It returns over when that is all, or was as much as its buffer
// takes: more keeps arriving.
func (r *receiver) drain(over error) error {
	if r.backlog <= 0 {
		return over
	}
	if err := r.socket.raw.Control(func(fd uintptr) { r.poll(fd) }); err != nil {
		return err
	}
	if r.errno == unix.EAGAIN {
		r.backlog = 0
		return over
	}
	for i := range r.n {
		r.backlog -= int(r.messages[i].length) + overhead
	}
	return nil
}

// rest delivers held datagrams.
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

// arrived delivers the messages that were read into packets.
func (r *receiver) arrived(packets [][]byte, sizes []int, endpoints []conn.Endpoint) (count int) {
	if r.n == r.used {
		r.singles++
	}
	clear(sizes)
	r.spare, r.spilled = r.used*r.slots, false
	for i := range r.n {
		count = max(count, r.place(i, packets, sizes, endpoints))
	}
	return count
}

// prepare sets the messages' vectors to packets, as expected.
func (r *receiver) prepare(packets [][]byte) {
	r.used, r.slots, r.part = min(len(packets), len(r.messages)), 1, maxMessage
	switch {
	case !r.socket.coalesce || len(packets) <= grouped:
	case r.singles >= singleAfter:
		r.used, r.part = min(r.used, single), max(r.segment, singleSize)
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

// place delivers message i, which was read into its slots of packets, and returns the number
// of packets up to the last one that it filled.
func (r *receiver) place(i int, packets [][]byte, sizes []int, endpoints []conn.Endpoint) (count int) {
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
	first, placed := i*r.slots, 0 // placed: bytes that were read into the right buffers
	switch {
	case r.spilled: // Preserve the order.
	case r.slots == 1 && size <= r.part:
		placed = size
	case r.slots > 1 && (size == r.part || size == length && size < r.part):
		placed = min(length, r.slots*size)
	default:
		r.segment = size
	}
	for slot, at := first, 0; at < placed; slot, at = slot+1, at+size {
		n := min(size, placed-at)
		if r.socket.serializer.arrived(from, packets[slot][:n]) {
			sizes[slot], endpoints[slot] = n, from
			count = slot + 1
		}
	}
	if placed == length {
		return count
	}
	// The rest is copied: into the message's own slots if they are free, then into spare
	// buffers, then into held.
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

// gather returns a message of that length in contiguous memory. It copies it from packets
// unless the first of these has all of it.
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

// deliver copies the datagrams of a message into packets, as many as fit. It returns the rest
// of the message, and the number of filled packets.
func (r *receiver) deliver(data []byte, size int, from *endpoint, packets [][]byte, sizes []int, endpoints []conn.Endpoint) (rest []byte, filled int) {
	delivered := split(data, size, func(datagram []byte) bool {
		if filled == len(packets) {
			return false
		}
		if r.socket.serializer.arrived(from, datagram) {
			sizes[filled], endpoints[filled] = copy(packets[filled], datagram), from
			filled++
		}
		return true
	})
	return data[delivered:], filled
}

// endpoint returns the endpoint for answers to a packet, nil if from isn't an IP address.
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
