package peers

import (
	"net/netip"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// PathState says whether packets get to a peer and back.
type PathState string

// The states of a path.
const (
	PathUnknown PathState = "unknown" // no sign for or against it
	PathUp      PathState = "up"
	PathDown    PathState = "down"
)

// PathStates are all of them, the worst first.
func PathStates() []PathState { return []PathState{PathDown, PathUnknown, PathUp} }

// Sign says by what the state of a path is known, in a word fit for a metric's label.
type Sign string

// The signs of paths.
const (
	SignNone        Sign = "none"         // nothing was seen yet
	SignReceived    Sign = "received"     // authenticated bytes from the peer
	SignHandshake   Sign = "handshake"    // a new one
	SignAnswer      Sign = "answer"       // to a probe
	SignNoAnswer    Sign = "no_answer"    // to several probes, though the peer answered before
	SignOneWay      Sign = "one_way"      // the same, and yet the peer is heard: our packets don't get there
	SignNoHandshake Sign = "no_handshake" // no session
	SignSilence     Sign = "silence"      // a session, and nothing heard
)

// Path is what is known of the way to a peer.
type Path struct {
	Node      string
	PublicKey tunnel.Key
	State     PathState
	Since     time.Time // when the state came about
	Sign      Sign
	// Answers tells whether the peer answers probes, so that a path that breaks is
	// noticed within seconds.
	Answers bool
	// SmallOnly tells that small packets get to the peer and back, and those of the
	// device's full size don't.
	SmallOnly bool
	// RTT is the time from a probe to its answer, smoothed; 0: not known.
	RTT time.Duration
}

// Health returns the health of the peer, given the one that WireGuard alone shows.
func (p Path) Health(weak Health) Health {
	switch {
	case p.State == PathUp:
		return HealthUp
	case p.State == PathDown:
		return HealthDown
	case weak == HealthSilent || weak == HealthWaiting:
		return weak
	}
	return HealthConnecting
}

// path is what decides about one peer. Nothing in it reads a clock.
//
// A peer that answers probes; a stroke is one that is sent, with retryAfter in between
// from the first one on that stays unanswered:
//
//	answer                next      retries       verify          down
//	  |------ interval -----|----|----|----|----|--|--- handshake? --|-- each second ...
//	                        0   0.3  0.6  0.9  1.2 1.3              1.9 s
//
// Where answers have taken longer lately, as those of starved nodes do, verify and down
// come later, see [path.patience].
//
// An answer at any time: up. At verify a handshake is begun: when that succeeds, the
// way there and back is well, and only probes aren't answered any more, for want of an
// address, an agent or a rule of a firewall. The session that there is goes on beside it
// where the device can do that, because it may be well, and answers late. The path stays
// up, and is judged as that of a peer that never answered:
//
//	handshake         heard             next due       session ends
//	    |---- up ------|--- up ----|------ unknown --------|---- down ...
//	    0              t           t+45 s                180 s
//
// and from the time that it is configured unknown for 90 s, then down. WireGuard
// renews a session after 120 s, which keepalives see to, uses none after 180 s, and
// gives up a handshake after 90 s (whitepaper, section 6.1).
type path struct {
	node  string
	key   tunnel.Key
	addr  netip.Addr // that it is probed at
	mute  bool       // it has to speak first: nothing can be begun with it
	known bool       // where it is, by what was last read of the device
	leads bool       // this side begins handshakes sooner

	state PathState
	since time.Time
	sign  Sign

	// What was read of the device.

	begun     time.Time // configured, or begun anew
	handshake time.Time
	heard     time.Time // bytes that were received
	rx, tx    int64
	counted   bool // rx is of a time after which what grows it came

	lookRx, lookTx int64 // at the last look for traffic
	used           bool

	// What was asked.

	answers    bool      // it does
	answered   time.Time // last
	trip       roundTrip
	asked      int       // probes since
	askedSince time.Time // the first of them
	tried      int       // probes that were sent to one that didn't answer in this session
	next       time.Time // probe
	suspected  bool      // a neighbour seems to be gone
	verified   bool      // a handshake was asked for, for want of answers
	shaken     bool      // one has ended a time in which the path was down, and no answer came since
	renewed    time.Time // when one was last begun

	largeNext   time.Time
	largeSent   time.Time // zero: none is on its way
	largeMisses int
	smallOnly   bool
}

// What the timeline above says.
const (
	retryAfter  = 300 * time.Millisecond
	verifyAfter = 1300 * time.Millisecond
	downAfter   = 1900 * time.Millisecond
	// patienceMost is the longest that verify is put off to.
	patienceMost = 3 * time.Second
	// giveUpAfter is how long a path is down until the session is given up: whether the peer
	// still has it isn't known, nor whether it is where it was heard last.
	giveUpAfter = 15 * time.Second

	enough  = 5 // probes that stay unanswered
	suspect = 3 // probes after which a path's neighbours are looked at, too
)

// How often the paths of various kinds are probed, at most.
const (
	usedInterval    = 750 * time.Millisecond
	downInterval    = time.Second
	unheardInterval = 10 * time.Second // of peers that don't answer probes
	unheardTries    = 5                // that such ones are given first in each session, one a second
	largeInterval   = 20 * time.Second
	largeRetry      = 5 * time.Second
	largeWait       = 2 * time.Second // for an answer
	largeEnough     = 3               // full-size probes that stay unanswered while small ones don't
)

// doubtful tells whether an answer is overdue.
func (p *path) doubtful() bool { return p.answers && p.asked > 0 && p.state != PathDown }

// strange tells whether the peer answers no probes and has no session either.
func (p *path) strange(now time.Time) bool {
	return !p.answers && !inSession(now, p.handshake)
}

// sent notes a probe.
func (p *path) sent(now time.Time) {
	if p.asked == 0 {
		p.askedSince = now
	}
	p.asked++
	p.tried++
}

// answer notes an answer, and how long it took; 0: not known.
func (p *path) answer(now time.Time, large bool, rtt time.Duration) {
	if !large && rtt > 0 { // Larger packets take longer.
		if p.state != PathUp {
			p.trip = roundTrip{} // It may be another way by now.
		}
		p.trip.measured(now, rtt)
	}
	p.answers, p.answered, p.asked, p.verified, p.shaken = true, now, 0, false, false
	if large {
		p.largeSent, p.largeMisses, p.smallOnly = time.Time{}, 0, false
	}
	p.become(now, PathUp, SignAnswer)
}

// read notes what the device says of the peer.
func (p *path) read(now time.Time, handshake, heard time.Time, rx, tx int64) {
	if rx < p.rx {
		p.rx = 0 // The peer was removed and added again.
	}
	if handshake.IsZero() && !p.handshake.IsZero() {
		p.begun = now // The same.
	}
	if p.state == PathDown && p.answers && p.counted && rx > p.rx {
		p.sign = SignOneWay
	}
	if !p.answers && handshake.After(p.handshake) {
		p.tried, p.next = 0, now // It may have begun anew, as one that answers.
	}
	p.handshake, p.heard, p.rx, p.tx, p.counted = handshake, latest(heard, handshake), rx, tx, true
	if !p.answers || p.asked < enough || !handshake.After(p.askedSince) {
		return
	}
	// There and back.
	if p.state == PathDown && !p.shaken {
		p.become(now, PathUp, SignHandshake)
		p.asked, p.verified, p.shaken, p.next = 0, false, true, now
		return
	}
	// It is the probes that are not answered. Where that is read too late for the path
	// not to be down, it takes a second handshake to tell it from one that was.
	p.unanswering(now)
}

// unanswering has the path judged by what WireGuard itself shows.
func (p *path) unanswering(now time.Time) {
	p.answers, p.asked, p.tried, p.verified, p.shaken, p.next = false, 0, 0, false, false, now
	p.trip = roundTrip{}
	p.largeSent, p.largeMisses, p.smallOnly = time.Time{}, 0, false
	p.judge(now)
}

// stalled makes time in which nobody looked not count.
func (p *path) stalled(by time.Duration) {
	p.askedSince = p.askedSince.Add(by)
	if !p.largeSent.IsZero() {
		p.largeSent = p.largeSent.Add(by)
	}
}

// waits reports whether the peer has yet to speak: nothing can be sent to it.
func (p *path) waits() bool { return p.mute && !p.known && p.handshake.IsZero() }

// judge decides about the state at the time now.
func (p *path) judge(now time.Time) {
	p.judgeSize(now)
	if p.waits() {
		p.answers = false
		p.become(now, PathUnknown, SignNone)
		return
	}
	if p.answers {
		if p.state != PathDown && p.overdue(now, downAfter) {
			p.become(now, PathDown, SignNoAnswer)
			p.counted = p.verified
		}
		return
	}
	switch HealthAt(now, p.begun, p.handshake, p.heard, true) {
	case HealthUp:
		sign := SignHandshake
		if p.heard.After(p.handshake) {
			sign = SignReceived
		}
		p.become(now, PathUp, sign)
	case HealthConnecting:
		if p.state != PathDown {
			p.become(now, PathUnknown, SignNone)
		}
	case HealthSilent:
		p.become(now, PathUnknown, SignSilence)
	case HealthDown:
		p.become(now, PathDown, SignNoHandshake)
	}
}

// judgeSize decides whether full-size packets get lost where small ones don't.
func (p *path) judgeSize(now time.Time) {
	if p.largeSent.IsZero() || now.Sub(p.largeSent) < largeWait {
		return
	}
	switch {
	case p.answered.Sub(p.largeSent) > retryAfter:
		p.largeMisses++
		p.smallOnly = p.smallOnly || p.largeMisses >= largeEnough
		p.largeNext = now.Add(largeRetry)
	case now.Sub(p.largeSent) < largeInterval:
		return // No answer to anything yet.
	}
	p.largeSent = time.Time{}
}

func (p *path) become(now time.Time, state PathState, sign Sign) {
	if p.state != state {
		p.state, p.since = state, now
	}
	p.sign = sign
}

// patience is how long an answer may take: verifyAfter, or what is measured, within bounds.
func (p *path) patience() time.Duration {
	return min(max(verifyAfter, p.trip.longest()), patienceMost)
}

// overdue reports whether a point of the timeline, put off by patience, has come.
func (p *path) overdue(now time.Time, point time.Duration) bool {
	return p.asked >= enough && now.Sub(p.askedSince) >= p.patience()+point-verifyAfter
}

// contact tells whether a handshake is to be begun, and how: once to find out why probes
// aren't answered, and again and again with a peer that is down. WireGuard tries each 5 s
// by itself, and gives up after 90 s; when both sides begin at once both attempts fail,
// so that one of them does less often.
//
//	session  the peer answers probes  down             do
//	none     -                        -                begin anew
//	yes      no                       -                nothing: it has just come about
//	yes      yes                      for giveUpAfter  begin anew
//	yes      yes                      not so long      verify: it may still work when the way is back
func (p *path) contact(now time.Time) tunnel.Contact {
	first := p.answers && !p.verified && p.overdue(now, verifyAfter)
	again := p.state == PathDown && now.Sub(p.renewed) >= p.renewInterval(now)
	switch {
	case p.mute || !first && !again:
		return tunnel.ContactNone
	case !inSession(now, p.handshake), p.answers && p.state == PathDown && now.Sub(p.since) >= giveUpAfter:
		return tunnel.ContactAnew
	case p.answers:
		return tunnel.ContactVerify
	}
	return tunnel.ContactNone
}

const (
	renewLeading = 1500 * time.Millisecond
	renewSeldom  = 4 * time.Second
	// renewIdle is for those that have been down for longer than renewIdleAfter.
	renewIdle      = 5 * time.Second
	renewIdleAfter = 10 * time.Minute
)

func (p *path) renewInterval(now time.Time) time.Duration {
	switch {
	case now.Sub(p.since) > renewIdleAfter:
		return renewIdle
	case p.leads:
		// An attempt that comes before the answer to the last one undoes that.
		return max(renewLeading, p.patience())
	}
	return renewSeldom
}

// renew notes that a handshake is begun.
func (p *path) renew(now time.Time, how tunnel.Contact) {
	p.renewed, p.verified, p.counted, p.next = now, true, true, now
	if how == tunnel.ContactAnew {
		p.begun, p.handshake, p.rx, p.tx = now, time.Time{}, 0, 0
	}
}

// show returns the path as others see it.
func (p *path) show() Path {
	shown := Path{
		Node: p.node, PublicKey: p.key, State: p.state, Since: p.since, Sign: p.sign,
		Answers: p.answers, SmallOnly: p.smallOnly,
	}
	if p.state == PathUp {
		shown.RTT = p.trip.smoothed
	}
	return shown
}

// roundTrip is how long answers take, as TCP has it (RFC 6298, section 2).
type roundTrip struct {
	smoothed, variation time.Duration
	at                  time.Time // of the last sample
}

// measured takes one sample of a round trip: of probes that were sent within one the answers
// say the same.
func (r *roundTrip) measured(now time.Time, rtt time.Duration) {
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
}

// longest is how long one may take: a quarter more at least, however steady they are.
func (r *roundTrip) longest() time.Duration {
	return r.smoothed + max(4*r.variation, r.smoothed/4)
}
