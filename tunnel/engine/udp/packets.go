package udp

import (
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// What one message with UDP_SEGMENT may hold (udp(7)). Kernels before 6.9 take
// 64 segments.
const (
	maxSegments = 64
	maxPayload4 = 65535 - 20 - 8 // the length field of IPv4 counts its header
	maxPayload6 = 65535 - 8
)

// segments returns how many of the first packets can be one message with
// UDP_SEGMENT: all of one size but the last, which may be smaller. Packets larger
// than limit, in bytes, are sent alone. It is 0 when there are no packets.
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

// remedy is what is done about a message that the kernel refused.
type remedy int

const (
	giveUp       remedy = iota // on what is left of the batch
	skipPacket                 // it alone can't be sent
	separate                   // send its packets one by one, for the kernel to fragment
	neverSegment               // the same, and with all others of this socket
	unstick                    // let the kernel choose the source address
)

// remedyFor is this table. Refused are a number of segments, from a source address
// that the sender chose, or not; the first line that fits counts.
//
//	error             segments  source  meaning                               remedy
//	EMSGSIZE, EINVAL  2..       any     a segment is larger than the path's    separate
//	                                    MTU: UDP_SEGMENT doesn't fragment
//	                                    (EINVAL in older kernels)
//	EIO               2..       any     the link doesn't make checksums       neverSegment
//	EINVAL, ENODEV,   any       chosen  this host has that address no more     unstick
//	  ENETUNREACH                         (which of them, differs by kernel)
//	EMSGSIZE          1         any     larger than IP can carry              skipPacket
//	other             any       any                                           giveUp
func remedyFor(err error, segments int, chosen bool) remedy {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return giveUp
	}
	switch {
	case segments > 1 && (errno == syscall.EMSGSIZE || errno == syscall.EINVAL):
		return separate
	case segments > 1 && errno == syscall.EIO:
		return neverSegment
	case chosen && (errno == syscall.EINVAL || errno == syscall.ENODEV || errno == syscall.ENETUNREACH):
		return unstick
	case errno == syscall.EMSGSIZE:
		return skipPacket
	}
	return giveUp
}

const (
	// narrowFor is how long a path counts as narrow. Then a batch is tried as a
	// whole again, which costs one refused system call when it still is.
	narrowFor = time.Second
	// maxNarrow bounds the paths that are remembered. Beyond it each batch is
	// tried and refused first.
	maxNarrow = 4096
)

// paths remembers by destination which packets are too large for UDP_SEGMENT,
// because they are larger than the path's MTU and have to be fragmented. Several
// goroutines may use it at once. Its zero value knows no path.
type paths struct {
	count atomic.Int32 // of narrow; most hosts never have one

	mu     sync.Mutex
	narrow map[netip.Addr]narrowPath
}

type narrowPath struct {
	limit int // bytes of UDP payload that went through, or may
	until time.Time
}

// limit returns the largest packet, in bytes, that may be a segment on its way to
// an address.
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

// tooLarge notes that a packet of that size can't be a segment on its way to an
// address.
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

// split calls deliver for each of the datagrams of one size, but the last, that the
// kernel put together into one message (UDP_GRO), and returns how many bytes it
// took: deliver returns false when it has no room for more. A size of 0 is that of
// a message that is one datagram.
func split(message []byte, size int, deliver func([]byte) bool) (taken int) {
	if size <= 0 {
		size = len(message)
	}
	for taken < len(message) {
		end := min(taken+size, len(message))
		if !deliver(message[taken:end]) {
			break
		}
		taken = end
	}
	return taken
}
