package udp

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Kinds of WireGuard messages by their first byte, their sizes in bytes, and the offsets of
// the sender's and the receiver's index (whitepaper, section 5.4).
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
	// handlingTime bounds how long a handshake message delays those behind it: messages
	// that wireguard-go dropped aren't reported.
	handlingTime = 50 * time.Millisecond
	// maxHandling bounds the addresses, and maxWaiting the messages of each, that a flood of
	// forged messages makes the serializer store. Beyond them messages pass at once.
	maxHandling = 1024
	maxWaiting  = 4
)

// serializer passes the handshake messages of each address to wireguard-go one at a time.
// Its workers race when they handle an initiation and the response to our own initiation
// concurrently: the resulting session has a receiver index that the remote doesn't know,
// see decision 5 in docs/decisions.
//
// A message has been handled when its answer is sent: a response to an initiation, a
// transport message in the new session to a response. Messages are delayed, by
// handlingTime at most, and never dropped, because their source address may be forged.
type serializer struct {
	limit time.Duration // on the delay by one message
	now   func() time.Time
	// alarm ends the receiver's wait at the given time, so that it calls ready; zero:
	// never.
	alarm func(time.Time)

	idle   atomic.Bool // of is empty, and no alarm is set: the fast path of most packets
	paused atomic.Bool // the receiver doesn't wait, whatever alarm was set to

	mu    sync.Mutex
	of    map[netip.AddrPort]*inProgress
	armed time.Time // when a waiting message may be ready; alarm is set to it, when the receiver reads
	swept time.Time // when expire last looked at all of of
}

// newSerializer returns a serializer without messages.
func newSerializer(now func() time.Time, alarm func(time.Time)) *serializer {
	t := &serializer{limit: handlingTime, now: now, alarm: alarm, of: make(map[netip.AddrPort]*inProgress)}
	t.idle.Store(true)
	return t
}

// inProgress is the message of an address that wireguard-go is handling.
type inProgress struct {
	kind    byte
	session uint32    // response: the sender's index of the new session
	until   time.Time // when it counts as handled
	waiting []waiting // arrived after it
}

type waiting struct {
	from   *endpoint
	packet []byte
}

func isHandshake(packet []byte) bool {
	return len(packet) == initiationSize && packet[0] == kindInitiation ||
		len(packet) == responseSize && packet[0] == kindResponse
}

// arrived reports whether a packet may be delivered. Otherwise ready delivers it, when those
// before it have been handled.
func (t *serializer) arrived(from *endpoint, packet []byte) bool {
	if !isHandshake(packet) {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	one, handling := t.of[from.addr]
	switch {
	case !handling && len(t.of) >= maxHandling:
		t.expire(now)
		if len(t.of) >= maxHandling {
			return true
		}
	case handling && len(one.waiting) >= maxWaiting:
		return true
	case handling && (len(one.waiting) > 0 || now.Before(one.until)):
		one.waiting = append(one.waiting, waiting{from, slices.Clone(packet)})
		if t.armed.IsZero() || one.until.Before(t.armed) {
			t.arm(one.until)
		}
		return false
	}
	t.begin(from.addr, packet, nil, now)
	return true
}

// begin records that a packet is delivered, and the packets behind it.
func (t *serializer) begin(from netip.AddrPort, packet []byte, behind []waiting, now time.Time) {
	one := &inProgress{kind: packet[0], until: now.Add(t.limit), waiting: behind}
	if one.kind == kindResponse {
		one.session = binary.LittleEndian.Uint32(packet[senderOffset:])
	}
	t.of[from] = one
	t.updateIdle()
}

// updateIdle sets idle.
func (t *serializer) updateIdle() { t.idle.Store(len(t.of) == 0 && t.armed.IsZero()) }

// arm sets the alarm.
func (t *serializer) arm(at time.Time) {
	if !at.Equal(t.armed) {
		t.armed = at
		if !t.paused.Load() {
			t.alarm(at)
		}
	}
}

// pause makes the receiver's current wait and all later ones end at once.
func (t *serializer) pause() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.paused.Store(true)
	t.alarm(time.Unix(1, 0))
}

// expire deletes messages whose time has passed, at intervals of limit/8: a flood of forged
// messages would make each of them cost a walk over maxHandling addresses.
func (t *serializer) expire(now time.Time) {
	if now.Sub(t.swept) < t.limit/8 {
		return
	}
	t.swept = now
	for from, one := range t.of {
		if len(one.waiting) == 0 && !now.Before(one.until) {
			delete(t.of, from)
		}
	}
}

// sent looks for answers among the packets that wireguard-go sends to an address.
func (t *serializer) sent(to netip.AddrPort, packets [][]byte) {
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
		t.updateIdle()
		return
	}
	one.until = time.Time{}
	t.arm(time.Unix(1, 0))
}

func (t *inProgress) answeredBy(packet []byte) bool {
	switch t.kind {
	case kindInitiation:
		return len(packet) == responseSize && packet[0] == kindResponse
	case kindResponse:
		return len(packet) >= receiverOffset+indexSize && packet[0] == kindTransport &&
			binary.LittleEndian.Uint32(packet[receiverOffset:]) == t.session
	}
	return false
}

// ready calls deliver with the next message of each address whose previous one has been
// handled, until deliver returns false. If there was none, it sets the alarm to the time of
// the next one.
func (t *serializer) ready(deliver func(from *endpoint, packet []byte) bool) {
	if t.idle.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.updateIdle()
	var next time.Time
	now, delivered := t.now(), false
	defer t.expire(now)
	if t.armed.IsZero() || now.Before(t.armed) {
		return
	}
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
	if !delivered {
		t.arm(next)
	}
}
