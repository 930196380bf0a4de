package udp

import (
	"errors"
	"fmt"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// batch has the arguments of one sendmmsg.
type batch struct {
	messages [atOnce]message
	vectors  [atOnce]unix.Iovec
	control  [atOnce][]byte

	used, done int // of messages
	errno      syscall.Errno
	poll       func(fd uintptr) bool // sends the messages from done to used
}

func newBatch() *batch {
	b := new(batch)
	for i := range b.control {
		b.control[i] = make([]byte, 0, controlSize)
	}
	b.poll = func(fd uintptr) bool {
		for b.done < b.used {
			n, errno := exchange(unix.SYS_SENDMMSG, fd, b.messages[b.done:b.used])
			if b.errno = errno; errno != 0 {
				return errno != unix.EAGAIN
			}
			b.done += n
		}
		return true
	}
	return b
}

// Send implements [conn.Bind]. It skips packets that the kernel refuses and sends the
// others, unless the cause isn't the packet. The error joins those of all packets.
func (b *Bind) Send(packets [][]byte, to conn.Endpoint) error {
	e, ok := to.(*endpoint)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	s := b.six.Load()
	if e.addr.Addr().Is4() {
		s = b.four.Load()
	}
	if s == nil {
		return unix.EAFNOSUPPORT
	}
	limit := 0
	if s.segment.Load() {
		limit = b.paths.limit(e.addr.Addr(), b.now)
	}
	err := b.send(s, e, packets, limit)
	s.serializer.sent(e.addr, packets)
	return err
}

// send sends packets, those up to limit bytes with UDP_SEGMENT if that works.
func (b *Bind) send(s *socket, e *endpoint, packets [][]byte, limit int) error {
	var skipped error
	for len(packets) > 0 {
		sent, err := b.write(s, e, packets, limit)
		packets = packets[sent:]
		if err == nil {
			continue
		}
		n := segments(packets, limit, s.maxPayload)
		chosen := e.chosen.Load()
		switch actionFor(err, n, chosen) {
		case separate:
			separateErr := b.send(s, e, packets[:n], 0)
			if chosen == e.chosen.Load() { // else the source was the cause, not the size
				limit = min(limit, len(packets[0])-1)
				b.paths.tooLarge(e.addr.Addr(), len(packets[0]), b.now())
			}
			skipped = errors.Join(skipped, separateErr)
			packets = packets[n:]
		case neverSegment:
			s.segment.Store(false)
			limit = 0
		case clearSource:
			e.ClearSrc()
		case skipPacket:
			skipped = errors.Join(skipped, fmt.Errorf("a packet of %d bytes: %w", len(packets[0]), err))
			packets = packets[n:]
		default:
			return errors.Join(skipped, err)
		}
	}
	return skipped
}

// write sends the packets of one batch, until a message is refused, and returns the number
// of sent packets.
func (b *Bind) write(s *socket, e *endpoint, packets [][]byte, limit int) (sent int, err error) {
	batch, ok := b.batches.Get().(*batch)
	if !ok {
		return 0, unix.ENOMEM // unreachable: the pool has only batches
	}
	used := batch.fill(e, packets, limit, s.maxPayload)
	if err = s.raw.Write(batch.poll); err == nil && batch.errno != 0 {
		err = fmt.Errorf("send: %w", batch.errno)
	}
	for _, m := range batch.messages[:batch.done] {
		sent += int(m.header.Iovlen)
	}
	clear(batch.vectors[:used]) // don't retain packets
	b.batches.Put(batch)
	return sent, err
}

// fill sets the messages for as many packets as fit, and returns the number of packets.
func (b *batch) fill(e *endpoint, packets [][]byte, limit, maxPayload int) (vectors int) {
	var from []byte
	if e.chosen.Load() {
		from = e.control
	}
	b.used, b.done, b.errno = 0, 0, 0
	for packets = packets[:min(len(packets), len(b.vectors))]; len(packets) > 0; b.used++ {
		n := segments(packets, limit, maxPayload)
		control := b.control[b.used][:0]
		control = append(control, from...)
		if n > 1 {
			control = appendSegmentSize(control, len(packets[0]))
		}
		for i, packet := range packets[:n] {
			b.vectors[vectors+i] = vector(packet)
		}
		header := &b.messages[b.used].header
		header.Name, header.Namelen = &e.to[0], e.to.size()
		header.Iov = &b.vectors[vectors]
		header.SetIovlen(n)
		header.Control = unsafe.SliceData(control)
		header.SetControllen(len(control))
		packets = packets[n:]
		vectors += n
	}
	return vectors
}
