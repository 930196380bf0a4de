package udp

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Limits of one message with UDP_SEGMENT (udp(7)). Kernels before 6.9 accept 64 segments.
const (
	maxSegments = 64
	maxPayload4 = 65535 - 20 - 8 // the length field of IPv4 counts its header
	maxPayload6 = 65535 - 8
)

// segments returns the number of leading packets that fit one message with UDP_SEGMENT: all
// have the same size, except a smaller last one. A packet of more than limit bytes is sent
// alone.
func segments(packets [][]byte, limit, maxPayload int) int {
	if len(packets) == 0 {
		return 0
	}
	size, total := len(packets[0]), len(packets[0])
	if size > limit {
		return 1
	}
	n := 1
	for n < len(packets) && n < maxSegments {
		next := len(packets[n])
		if next > size || total+next > maxPayload {
			break
		}
		total += next
		n++
		if next < size {
			break
		}
	}
	return n
}

// action is how send continues after a message that the kernel refused.
type action int

const (
	abort        action = iota // drop the rest of the batch
	skipPacket                 // drop this packet
	separate                   // send its packets one by one, so that the kernel fragments them
	neverSegment               // stop using UDP_SEGMENT on this socket
	clearSource                // let the kernel choose the source address
)

// actionFor implements this table, for a refused message of a number of segments, whose
// source address was chosen by the sender or not. The first matching row counts.
//
//	error             segments  source  cause                                action
//	EMSGSIZE, EINVAL  2..       any     a segment exceeds the path MTU:      separate
//	                                    UDP_SEGMENT doesn't fragment
//	                                    (EINVAL in older kernels)
//	EIO               2..       any     the link has no checksum offload     neverSegment
//	EINVAL, ENODEV,   any       chosen  this host no longer has the address  clearSource
//	  ENETUNREACH                       (the error depends on the kernel)
//	EMSGSIZE          1         any     exceeds IP's maximum length          skipPacket
//	other             any       any                                          abort
func actionFor(err error, segments int, chosen bool) action {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return abort
	}
	switch {
	case segments > 1 && (errno == syscall.EMSGSIZE || errno == syscall.EINVAL):
		return separate
	case segments > 1 && errno == syscall.EIO:
		return neverSegment
	case chosen && (errno == syscall.EINVAL || errno == syscall.ENODEV || errno == syscall.ENETUNREACH):
		return clearSource
	case errno == syscall.EMSGSIZE:
		return skipPacket
	}
	return abort
}

const (
	// narrowFor is how long a path counts as narrow. After that, a batch is tried with
	// UDP_SEGMENT again, which costs one refused system call if the path still is.
	narrowFor = time.Second
	// maxNarrow bounds the paths in the cache. Beyond it, each batch costs a refused
	// system call.
	maxNarrow = 4096
)

// paths caches by destination the size of packets that exceed the path MTU, and so are too
// large for UDP_SEGMENT. It is safe for concurrent use. The zero value is empty.
type paths struct {
	count atomic.Int32 // of narrow; 0 on most hosts

	mu     sync.Mutex
	narrow map[netip.Addr]narrowPath
}

type narrowPath struct {
	limit int // bytes of UDP payload that may pass unfragmented
	until time.Time
}

// limit returns the size in bytes of the largest packet to an address that may be a segment.
func (p *paths) limit(to netip.Addr, now func() time.Time) int {
	if p.count.Load() == 0 {
		return maxPayload6
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	found, narrow := p.narrow[to]
	if !narrow {
		return maxPayload6
	}
	if now().Before(found.until) {
		return found.limit
	}
	delete(p.narrow, to)
	p.count.Store(int32(len(p.narrow)))
	return maxPayload6
}

// tooLarge records that a packet of that size to an address can't be a segment.
func (p *paths) tooLarge(to netip.Addr, size int, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	found, known := p.narrow[to]
	if !known && len(p.narrow) >= maxNarrow {
		for other, path := range p.narrow {
			if !now.Before(path.until) {
				delete(p.narrow, other)
			}
		}
		if len(p.narrow) >= maxNarrow {
			return
		}
	}
	limit := size - 1
	if known && now.Before(found.until) {
		limit = min(limit, found.limit)
	}
	if p.narrow == nil {
		p.narrow = make(map[netip.Addr]narrowPath)
	}
	p.narrow[to] = narrowPath{limit: limit, until: now.Add(narrowFor)}
	p.count.Store(int32(len(p.narrow)))
}

// split calls deliver for each datagram of a message that the kernel coalesced (UDP_GRO),
// until deliver returns false, and returns the number of delivered bytes. All datagrams but
// the last have that size; 0 is for a message of one datagram.
func split(message []byte, size int, deliver func([]byte) bool) (delivered int) {
	if size <= 0 {
		size = len(message)
	}
	for delivered < len(message) {
		end := min(delivered+size, len(message))
		if !deliver(message[delivered:end]) {
			break
		}
		delivered = end
	}
	return delivered
}
