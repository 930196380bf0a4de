package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
)

// batch is what one sendmmsg takes.
type batch struct {
	messages [conn.IdealBatchSize]ipv6.Message
	control  [conn.IdealBatchSize][]byte
}

func newBatch() *batch {
	b := new(batch)
	for i := range b.control {
		b.control[i] = make([]byte, 0, controlRoom)
	}
	return b
}

// Send implements [conn.Bind]. Of packets that can't be sent the others are sent all
// the same, unless the reason is none of the packet's; the error tells of all.
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
	s.turns.sent(e.addr, packets)
	return err
}

// send sends packets, those up to limit bytes as segments where that works.
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
		switch remedyFor(err, n, chosen) {
		case separate:
			separateErr := b.send(s, e, packets[:n], 0)
			if chosen == e.chosen.Load() { // else the source was to blame, and not the size
				limit = min(limit, len(packets[0])-1)
				b.paths.tooLarge(e.addr.Addr(), len(packets[0]), b.now())
			}
			skipped = errors.Join(skipped, separateErr)
			packets = packets[n:]
		case neverSegment:
			s.segment.Store(false)
			limit = 0
		case unstick:
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

// write sends packets until all are sent or a message is refused, and returns how
// many were sent.
func (b *Bind) write(s *socket, e *endpoint, packets [][]byte, limit int) (sent int, err error) {
	batch, ok := b.batches.Get().(*batch)
	if !ok {
		return 0, unix.ENOMEM // can't be: nothing else is in the pool
	}
	messages := batch.fill(e, packets, limit, s.maxPayload)
	defer func() {
		clear(messages) // keep nobody's packets
		b.batches.Put(batch)
	}()
	for done := 0; done < len(messages); {
		n, err := s.batch.WriteBatch(messages[done:], 0)
		if err != nil {
			return sent, err
		}
		for _, m := range messages[done : done+n] {
			sent += len(m.Buffers)
		}
		done += n
	}
	return sent, nil
}

// fill makes messages of as many packets as there is room for.
func (b *batch) fill(e *endpoint, packets [][]byte, limit, maxPayload int) []ipv6.Message {
	var from []byte
	if e.chosen.Load() {
		from = e.control
	}
	count := 0
	for len(packets) > 0 && count < len(b.messages) {
		n := segments(packets, limit, maxPayload)
		control := b.control[count][:0]
		control = append(control, from...)
		if n > 1 {
			control = appendSegmentSize(control, len(packets[0]))
		}
		b.messages[count] = ipv6.Message{Buffers: packets[:n], OOB: control, Addr: e.to}
		packets = packets[n:]
		count++
	}
	return b.messages[:count]
}

// appendSegmentSize appends the control message that cuts a message into datagrams.
func appendSegmentSize(control []byte, size int) []byte {
	var data [2]byte
	binary.NativeEndian.PutUint16(data[:], uint16(size))
	return appendControl(control, unix.IPPROTO_UDP, unix.UDP_SEGMENT, data[:])
}

// appendControl appends a control message for sendmsg. What is there already is
// whole control messages.
func appendControl(control []byte, level, kind int32, data []byte) []byte {
	start := len(control)
	for range unix.CmsgSpace(len(data)) {
		control = append(control, 0)
	}
	var header unix.Cmsghdr
	header.Level, header.Type = level, kind
	header.SetLen(unix.CmsgLen(len(data)))
	copy(control[start:], unsafe.Slice((*byte)(unsafe.Pointer(&header)), unix.SizeofCmsghdr))
	copy(control[start+unix.CmsgLen(0):], data)
	return control
}
