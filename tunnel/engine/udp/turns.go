package udp

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Kinds of WireGuard messages by their first byte, their sizes in bytes, and where
// the index of who sends and of who receives is (whitepaper, section 5.4).
const (
	kindInitiation = 1
	kindResponse   = 2
	kindTransport  = 4

	initiationSize = 148
	responseSize   = 92
	senderOffset   = 4 // of initiations and responses
	receiverOffset = 4 // of transport messages
	indexSize      = 4
)

const (
	// handlingTime is how long a handshake message may keep those behind it
	// waiting: nothing tells of one that the engine threw away.
	handlingTime = 50 * time.Millisecond
	// maxTurns and maxWaiting bound what a flood of forged messages can make us
	// remember: addresses, and messages of each. Beyond, they are handed on at once.
	maxTurns   = 1024
	maxWaiting = 4
)

// turns hands one handshake message after the other from each address to
// wireguard-go, whose workers mix up an initiation and the answer to one's own when
// they have both at the same time: the session that comes of it is received under an
// index that nobody knows, see docs/decisions/0005-first-handshakes.md.
//
// A message has been handled when its answer is sent: to an initiation, a response;
// to a response, a transport message in the new session. Messages are delayed, by
// handlingTime at most, and never dropped: anybody can send one in another's name.
type turns struct {
	limit time.Duration // on how long one waits for another
	now   func() time.Time
	// alarm ends the receiver's wait at the given time, so that it asks for those
	// that may go on; zero: not at all.
	alarm func(time.Time)

	idle   atomic.Bool // nothing in of, and no alarm; most packets look no further
	paused atomic.Bool // the receiver reads nothing, whatever alarm was set to

	mu    sync.Mutex
	of    map[netip.AddrPort]*turn
	armed time.Time // what alarm is set to, when the receiver reads
}

// newTurns returns turns without any messages.
func newTurns(now func() time.Time, alarm func(time.Time)) *turns {
	t := &turns{limit: handlingTime, now: now, alarm: alarm, of: make(map[netip.AddrPort]*turn)}
	t.idle.Store(true)
	return t
}

// turn is the message of an address that is being handled.
type turn struct {
	kind    byte
	session uint32 // response: how the sender calls the new session
	until   time.Time
	waiting []waiting // came after it
}

type waiting struct {
	from   *endpoint
	packet []byte
}

func isHandshake(packet []byte) bool {
	return len(packet) == initiationSize && packet[0] == kindInitiation ||
		len(packet) == responseSize && packet[0] == kindResponse
}

// arrived tells whether a packet may be handed on. Otherwise ready returns it when
// its turn has come.
func (t *turns) arrived(from *endpoint, packet []byte) bool {
	if !isHandshake(packet) {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	one, handling := t.of[from.addr]
	switch {
	case !handling && len(t.of) >= maxTurns:
		t.expire(now)
		if len(t.of) >= maxTurns {
			return true
		}
	case handling && len(one.waiting) >= maxWaiting:
		return true
	case handling && (len(one.waiting) > 0 || now.Before(one.until)):
		one.waiting = append(one.waiting, waiting{from, slices.Clone(packet)})
		return false
	}
	t.begin(from.addr, packet, nil, now)
	return true
}

// begin notes that a packet is handed on, and which are behind it.
func (t *turns) begin(from netip.AddrPort, packet []byte, behind []waiting, now time.Time) {
	one := &turn{kind: packet[0], until: now.Add(t.limit), waiting: behind}
	if one.kind == kindResponse {
		one.session = binary.LittleEndian.Uint32(packet[senderOffset:])
	}
	t.of[from] = one
	t.rest()
}

// rest notes whether there is anything to look after.
func (t *turns) rest() { t.idle.Store(len(t.of) == 0 && t.armed.IsZero()) }

// arm sets the alarm.
func (t *turns) arm(at time.Time) {
	if !at.Equal(t.armed) {
		t.armed = at
		if !t.paused.Load() {
			t.alarm(at)
		}
	}
}

// pause ends the receiver's wait, and each that it begins until it may go on.
func (t *turns) pause(paused bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.paused.Store(paused); paused {
		t.alarm(time.Unix(1, 0))
	} else {
		t.alarm(t.armed)
	}
}

// expire forgets what has had its time.
func (t *turns) expire(now time.Time) {
	for from, one := range t.of {
		if len(one.waiting) == 0 && !now.Before(one.until) {
			delete(t.of, from)
		}
	}
}

// sent notes what the engine sends to an address.
func (t *turns) sent(to netip.AddrPort, packets [][]byte) {
	if t.idle.Load() || len(packets) == 0 {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	one, handling := t.of[to]
	if !handling || !one.answeredBy(packets[0]) {
		return
	}
	if len(one.waiting) == 0 {
		delete(t.of, to)
		t.rest()
		return
	}
	one.until = time.Time{}
	t.arm(time.Unix(1, 0))
}

func (t *turn) answeredBy(packet []byte) bool {
	switch t.kind {
	case kindInitiation:
		return len(packet) == responseSize && packet[0] == kindResponse
	case kindResponse:
		return len(packet) >= receiverOffset+indexSize && packet[0] == kindTransport &&
			binary.LittleEndian.Uint32(packet[receiverOffset:]) == t.session
	}
	return false
}

// ready calls deliver with a message whose turn has come, of each address, until that
// has no room. When there was none, the alarm is set to when the next one's comes.
func (t *turns) ready(deliver func(from *endpoint, packet []byte) bool) {
	if t.idle.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.rest()
	var next time.Time
	now, delivered := t.now(), false
	for from, one := range t.of {
		if len(one.waiting) > 0 && !now.Before(one.until) {
			first := one.waiting[0]
			if !deliver(first.from, first.packet) {
				return
			}
			delivered = true
			t.begin(from, first.packet, one.waiting[1:], now)
			one = t.of[from]
		}
		if len(one.waiting) > 0 && (next.IsZero() || one.until.Before(next)) {
			next = one.until
		}
	}
	t.expire(now)
	if !delivered {
		t.arm(next)
	}
}
