package paths

import (
	"math"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// State is whether packets reach a peer and return.
type State string

// The states of a path.
const (
	Unknown State = "unknown" // no evidence
	Up      State = "up"
	Down    State = "down"
)

// States returns all states, the worst first.
func States() []State { return []State{Down, Unknown, Up} }

// Sign is the evidence for the state of a path; it is a metric's label.
type Sign string

// The signs of paths.
const (
	SignNone        Sign = "none"         // nothing yet
	SignReceived    Sign = "received"     // authenticated bytes from the peer
	SignHandshake   Sign = "handshake"    // a new one
	SignAnswer      Sign = "answer"       // to a probe
	SignNoAnswer    Sign = "no_answer"    // to several probes, though the peer answered before
	SignOneWay      Sign = "one_way"      // the same, but bytes are received: our packets don't reach the peer
	SignNoHandshake Sign = "no_handshake" // no session
	SignSilence     Sign = "silence"      // a session, but nothing received
)

// Path is the state of the path to a peer.
type Path struct {
	Node      string
	PublicKey tunnel.Key
	State     State
	Since     time.Time // when the state came about
	Sign      Sign
	// Answers is set when the peer answers probes, so that a broken path is detected
	// within seconds.
	Answers bool
	// SmallOnly is set when small packets pass, and those of the device's full size don't.
	SmallOnly bool
	// RTT is the median round trip time of the last probes; 0: not known.
	RTT time.Duration
}

// Health returns the health of the peer, given the one derived from WireGuard alone.
func (p Path) Health(weak Health) Health {
	switch {
	case p.State == Up:
		return HealthUp
	case p.State == Down:
		return HealthDown
	case weak == HealthSilent || weak == HealthWaiting:
		return weak
	}
	return HealthConnecting
}

// path is the state machine of the path to one peer. It takes the time as an argument.
//
// Of a peer that answers probes; each stroke is a probe, retryAfter apart from the first
// unanswered one on:
//
//	answer                next      retries       verify          down
//	  |------ interval -----|----|----|----|----|--|--- handshake? --|-- each second ...
//	                        0   0.3  0.6  0.9  1.2 1.3              1.9 s
//
// Where answers have recently taken longer, as of nodes short of processor time, verify
// and down are later, see [path.answerTimeout].
//
// An answer at any time means up. At verify a handshake is sent. If it succeeds, the path
// works in both directions and only probes are unanswered, because of a missing address, a
// stopped agent or a firewall. The existing session goes on meanwhile, where the backend
// can do that, because it may work with late answers. The path stays up, and from then on
// is evaluated like that of a peer that never answered, below.
//
// While packets of the peer arrive, only the direction to it is in doubt, and only a
// handshake can decide: the path stays up until one has succeeded, or failed twice, see
// [path.heardFrom]. WireGuard starts none within rekeyTimeout of the last one.
//
// A peer that doesn't answer:
//
//	handshake         heard             next due       session ends
//	    |---- up ------|--- up ----|------ unknown --------|---- down ...
//	    0              t           t+45 s                180 s
//
// Without a handshake it is unknown for 90 s after it was configured, then down. WireGuard
// renews a session after 120 s with traffic, which keepalives are, uses none after 180 s,
// and gives up a handshake after 90 s (whitepaper, section 6.1).
type path struct {
	node      string
	key       tunnel.Key
	addr      netip.Addr // for probes
	passive   bool       // no endpoint configured: the peer has to send first
	located   bool       // the device knows an endpoint
	initiator bool       // this side initiates handshakes sooner

	state State
	since time.Time
	sign  Sign

	// Read from the device.

	startedAt time.Time // configured or reset
	handshake time.Time
	heard     time.Time // bytes were received
	rx, tx    int64
	counted   bool // rx is a baseline: growth means received since

	trafficRx, trafficTx int64 // at the last measurement of traffic
	used                 bool

	// Probes.

	answers         bool
	answered        time.Time // last
	trip            roundTrip
	unanswered      int       // unanswered probes
	unansweredSince time.Time // the first of them
	probedInSession int       // probes sent in this session to a peer that doesn't answer
	next            time.Time // probe
	suspected       bool      // to be probed because another peer seems to be down
	handshakeSent   bool      // a handshake was sent because answers are missing
	upByHandshake   bool      // a handshake ended the state down, and no answer came since
	nudgedAt        time.Time // last handshake sent

	// While probes are unanswered:
	baseline bool      // rx was read since heardAfter
	heardAt  time.Time // rx was last read to have grown
	triedAt  time.Time // a handshake was sent that WireGuard doesn't refuse
	readAt   time.Time // rx was read

	largeNext   time.Time
	largeSent   time.Time // zero: none in flight
	largeMisses int
	smallOnly   bool
}

// The timeline above.
const (
	retryAfter  = 300 * time.Millisecond
	verifyAfter = 1300 * time.Millisecond
	downAfter   = 1900 * time.Millisecond
	// maxAnswerTimeout is the latest time of verify.
	maxAnswerTimeout = 3 * time.Second
	// rekeyTimeout is the minimum time between two handshakes, and, with up to a third of a
	// second more, between two attempts (REKEY_TIMEOUT, whitepaper, section 6.1).
	rekeyTimeout = 5 * time.Second
	// heardAfter is when received packets begin to count: earlier ones may have been in
	// flight when the path broke.
	heardAfter = 2 * retryAfter
	// heardFor is how long a received packet counts: several intervals of the peer's probes.
	heardFor = 2500 * time.Millisecond
	// readEvery is the minimum interval of reading whether packets are received.
	readEvery = 500 * time.Millisecond
	// oneWayAfter is how long a handshake may take while packets are received. If both sides
	// send one at once both fail, and the next attempt succeeds.
	oneWayAfter = rekeyTimeout + time.Second
	// responderAfter delays the handshake of the side that doesn't initiate, while packets are
	// received.
	responderAfter = 1500 * time.Millisecond
	// giveUpAfter is how long a path is down until its session is given up: the peer may
	// have lost it or have moved.
	giveUpAfter = 15 * time.Second

	minUnanswered = 5 // unanswered probes until verify or down
	suspectAfter  = 3 // unanswered probes until the paths to other nodes are probed, too
)

// Minimum intervals of probes by the kind of path.
const (
	usedInterval    = 750 * time.Millisecond
	downInterval    = time.Second
	unheardInterval = 10 * time.Second // of peers that don't answer probes
	unheardTries    = 5                // first probes to such peers in each session, one a second
	largeInterval   = 20 * time.Second
	largeRetry      = 5 * time.Second
	largeWait       = 2 * time.Second // timeout
	minLargeMisses  = 3               // unanswered full-size probes, while small ones are answered
)

// answerOverdue reports whether an answer is overdue.
func (p *path) answerOverdue() bool { return p.answers && p.unanswered > 0 && p.state != Down }

// sessionless reports whether the peer neither answers probes nor has a session.
func (p *path) sessionless(now time.Time) bool {
	return !p.answers && !inSession(now, p.handshake)
}

// sent records a probe.
func (p *path) sent(now time.Time) {
	if p.unanswered == 0 {
		p.unansweredSince = now
		p.baseline, p.heardAt, p.triedAt, p.readAt = false, time.Time{}, time.Time{}, time.Time{}
	}
	p.unanswered++
	p.probedInSession++
}

// answer records an answer and its round trip time; 0: not known.
func (p *path) answer(now time.Time, large bool, rtt time.Duration) {
	if !large && rtt > 0 { // Larger packets take longer.
		if p.state != Up {
			p.trip = roundTrip{} // The route may have changed.
		}
		p.trip.sample(now, rtt)
	}
	p.answers, p.answered, p.unanswered, p.handshakeSent, p.upByHandshake = true, now, 0, false, false
	if large {
		p.largeSent, p.largeMisses, p.smallOnly = time.Time{}, 0, false
	}
	p.setState(now, Up, SignAnswer)
}

// updateStatus records the peer's status on the device.
func (p *path) updateStatus(now time.Time, handshake, heard time.Time, rx, tx int64) {
	if rx < p.rx {
		p.rx = 0 // The peer was removed and added again.
	}
	if handshake.IsZero() && !p.handshake.IsZero() {
		p.startedAt, p.triedAt = now, now // Removed and added again, too: a handshake is sent.
	}
	if p.state == Down && p.answers && p.counted && rx > p.rx {
		p.sign = SignOneWay
	}
	if !p.answers && handshake.After(p.handshake) {
		p.probedInSession, p.next = 0, now // It may have restarted, and answer now.
	}
	if p.unanswered > 0 && now.Sub(p.unansweredSince) >= heardAfter {
		if p.baseline && rx > p.rx {
			p.heardAt = now
		}
		p.baseline, p.readAt = true, now
	}
	p.handshake, p.heard, p.rx, p.tx, p.counted = handshake, latest(heard, handshake), rx, tx, true
	if !p.answers || p.unanswered < minUnanswered || !handshake.After(p.unansweredSince) {
		return
	}
	// The handshake proves both directions.
	if p.state == Down && !p.upByHandshake {
		p.setState(now, Up, SignHandshake)
		p.unanswered, p.handshakeSent, p.upByHandshake, p.next = 0, false, true, now
		return
	}
	// Only probes are unanswered. If the status was read too late, after the path had gone
	// down, a second handshake is needed to distinguish that from a path that was down.
	p.fallBack(now)
}

// fallBack makes the path evaluated by WireGuard's status alone.
func (p *path) fallBack(now time.Time) {
	p.answers, p.unanswered, p.probedInSession, p.handshakeSent, p.upByHandshake, p.next = false, 0, 0, false, false, now
	p.trip = roundTrip{}
	p.largeSent, p.largeMisses, p.smallOnly = time.Time{}, 0, false
	p.evaluate(now)
}

// skipStall discounts time in which this process didn't run.
func (p *path) skipStall(by time.Duration) {
	p.unansweredSince = p.unansweredSince.Add(by)
	for _, at := range []*time.Time{&p.heardAt, &p.triedAt} {
		if !at.IsZero() {
			*at = at.Add(by)
		}
	}
	if !p.largeSent.IsZero() {
		p.largeSent = p.largeSent.Add(by)
	}
}

// awaitsPeer reports whether the peer has to send first, and hasn't yet.
func (p *path) awaitsPeer() bool { return p.passive && !p.located && p.handshake.IsZero() }

// evaluate sets the state at the time now.
func (p *path) evaluate(now time.Time) {
	p.evaluateSize(now)
	if p.awaitsPeer() {
		p.answers = false
		p.setState(now, Unknown, SignNone)
		return
	}
	if p.answers {
		switch {
		case p.state == Down || !p.passed(now, downAfter):
		case !p.heardFrom(now), p.passive: // A passive peer isn't asked for a handshake.
			p.setState(now, Down, SignNoAnswer)
			p.counted = p.handshakeSent
		case p.triedAt.IsZero() || now.Sub(p.triedAt) < oneWayAfter:
			p.setState(now, Up, SignReceived)
		default:
			p.setState(now, Down, SignOneWay)
		}
		return
	}
	switch HealthAt(now, p.startedAt, p.handshake, p.heard, true) {
	case HealthUp:
		sign := SignHandshake
		if p.heard.After(p.handshake) {
			sign = SignReceived
		}
		p.setState(now, Up, sign)
	case HealthConnecting:
		if p.state != Down {
			p.setState(now, Unknown, SignNone)
		}
	case HealthSilent:
		p.setState(now, Unknown, SignSilence)
	case HealthDown:
		p.setState(now, Down, SignNoHandshake)
	}
}

// evaluateSize sets smallOnly.
func (p *path) evaluateSize(now time.Time) {
	if p.largeSent.IsZero() || now.Sub(p.largeSent) < largeWait {
		return
	}
	switch {
	case p.answered.Sub(p.largeSent) > retryAfter:
		p.largeMisses++
		p.smallOnly = p.smallOnly || p.largeMisses >= minLargeMisses
		p.largeNext = now.Add(largeRetry)
	case now.Sub(p.largeSent) < largeInterval:
		return // Small probes are unanswered as well.
	}
	p.largeSent = time.Time{}
}

func (p *path) setState(now time.Time, state State, sign Sign) {
	if p.state != state {
		p.state, p.since = state, now
	}
	p.sign = sign
}

// answerTimeout is verifyAfter, or longer by the measured round trips, within bounds.
func (p *path) answerTimeout() time.Duration {
	return min(max(verifyAfter, p.trip.bound()), maxAnswerTimeout)
}

// passed reports whether a point of the timeline, delayed by answerTimeout, has passed.
func (p *path) passed(now time.Time, point time.Duration) bool {
	return p.unanswered >= minUnanswered && now.Sub(p.unansweredSince) >= p.answerTimeout()+point-verifyAfter
}

// heardFrom reports whether packets of the peer arrive while its answers don't: pods'
// packets, or its own probes. A firewall on its host drops our probes then, or ours don't
// reach it.
func (p *path) heardFrom(now time.Time) bool {
	return !p.heardAt.IsZero() && now.Sub(p.heardAt) < heardFor
}

// listening reports whether to read if packets of the peer arrive.
func (p *path) listening(now time.Time) bool {
	return p.answerOverdue() && !p.awaitsPeer() && now.Sub(p.unansweredSince) >= heardAfter && now.Sub(p.readAt) >= readEvery
}

// verifiable reports whether WireGuard starts a handshake, unless it sent one within
// rekeyTimeout.
func (p *path) verifiable(now time.Time) bool { return now.Sub(p.handshake) >= rekeyTimeout }

// verifies reports whether a handshake is due because probes are unanswered. While packets
// are received, it waits until WireGuard starts one, and, on one side, for the other side's.
func (p *path) verifies(now time.Time) bool {
	switch {
	case !p.answers || p.state == Down || !p.passed(now, verifyAfter):
		return false
	case !p.heardFrom(now):
		return !p.handshakeSent
	}
	return p.triedAt.IsZero() && p.verifiable(now) && (p.initiator || p.passed(now, verifyAfter+responderAfter))
}

// nudge returns whether and how to send a handshake: once when probes are unanswered, and
// repeatedly to a peer that is down. WireGuard itself retries every 5 s, and gives up
// after 90 s. When both sides initiate at once both attempts fail, so one side does it
// less often.
//
//	session  answers probes  down             do
//	none     -               -                reset
//	yes      no              -                nothing: the session is new
//	yes      yes             for giveUpAfter  reset
//	yes      yes             shorter          handshake: the session may work again later
func (p *path) nudge(now time.Time) tunnel.Nudge {
	first := p.verifies(now)
	again := p.state == Down && now.Sub(p.nudgedAt) >= p.nudgeInterval(now)
	switch {
	case p.passive || !first && !again:
		return tunnel.NudgeNone
	case !inSession(now, p.handshake), p.answers && p.state == Down && now.Sub(p.since) >= giveUpAfter:
		return tunnel.NudgeReset
	case p.answers:
		return tunnel.NudgeHandshake
	}
	return tunnel.NudgeNone
}

const (
	nudgeInitiator = 1500 * time.Millisecond
	nudgeResponder = 4 * time.Second
	// nudgeIdle is the interval of peers that have been down for longer than nudgeIdleAfter.
	nudgeIdle      = 5 * time.Second
	nudgeIdleAfter = 10 * time.Minute
)

func (p *path) nudgeInterval(now time.Time) time.Duration {
	switch {
	case now.Sub(p.since) > nudgeIdleAfter:
		return nudgeIdle
	case p.initiator:
		// A new attempt before the response to the last one invalidates that.
		return max(nudgeInitiator, p.answerTimeout())
	}
	return nudgeResponder
}

// nudged records that a handshake is sent.
func (p *path) nudged(now time.Time, how tunnel.Nudge) {
	if p.verifiable(now) && p.triedAt.IsZero() {
		p.triedAt = now
	}
	p.nudgedAt, p.handshakeSent, p.counted, p.next = now, true, true, now
	if how == tunnel.NudgeReset {
		p.startedAt, p.handshake, p.rx, p.tx = now, time.Time{}, 0, 0
	}
}

// export returns the exported form of the path.
func (p *path) export() Path {
	shown := Path{
		Node: p.node, PublicKey: p.key, State: p.state, Since: p.since, Sign: p.sign,
		Answers: p.answers, SmallOnly: p.smallOnly,
	}
	if p.state == Up {
		shown.RTT = p.trip.median()
	}
	return shown
}

// roundTrip estimates the round trip time like TCP (RFC 6298, section 2).
type roundTrip struct {
	smoothed, variation time.Duration
	at                  time.Time // of the last sample
	last                [7]uint32 // samples in microseconds, the latest at count-1 modulo 7
	count               uint32
}

// sample adds a measurement, at most one per round trip: those in between are not
// independent.
func (r *roundTrip) sample(now time.Time, rtt time.Duration) {
	switch {
	case r.smoothed == 0:
		r.smoothed, r.variation = rtt, rtt/2
	case now.Sub(r.at) < r.smoothed:
		return
	default:
		r.variation += ((r.smoothed - rtt).Abs() - r.variation) / 4
		r.smoothed += (rtt - r.smoothed) / 8
	}
	r.at = now
	r.last[r.count%uint32(len(r.last))] = uint32(min(rtt.Microseconds(), math.MaxUint32))
	r.count++
}

// median returns the median of the last samples. Unlike the smoothed time it doesn't show for
// how long a busy processor lets an answer wait now and then: with a load of 20 on two
// processors, the median of 60 probes was 0.5 ms, their 90th percentile 9 ms and the slowest
// 121 ms.
func (r *roundTrip) median() time.Duration {
	last := r.last
	n := min(int(r.count), len(last))
	if n == 0 {
		return 0
	}
	slices.Sort(last[:n])
	return time.Duration(last[n/2]) * time.Microsecond
}

// bound returns the longest plausible round trip time: at least a quarter more than the
// smoothed one.
func (r *roundTrip) bound() time.Duration {
	return r.smoothed + max(4*r.variation, r.smoothed/4)
}
