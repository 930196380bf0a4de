package paths

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// Rates of one device's probes, per second. With 5,000 peers each side sends 300 and
// answers as many; after an alarm there may be more for a while.
const (
	routineRate    = 300
	maxRoutineRate = 450
	usedRate       = 200 // of routineRate, to peers that carry traffic
	largeRate      = 30  // of routineRate, of full size
	downRate       = 150
	unheardRate    = 50 // to peers that don't answer
	// sessionlessRate is for unheard peers without a session, with a burst of sessionlessBurst:
	// WireGuard queues packets to them until there is a session, wireguard-go in 64 KiB
	// each.
	sessionlessRate  = 50
	sessionlessBurst = 100
	overdueRate      = 2000
	// suspectRate is for peers that are probed because another one seems to be down. All
	// nodes that have lost it probe at the same time, so that a peer may receive this
	// rate: with routineRate it is less than the 1,000 of net.ipv4.icmp_msgs_per_sec that
	// its kernel answers where probes aren't echo requests.
	suspectRate = 500
)

const (
	// pathTick is the interval of reading answers and sending probes.
	pathTick = 100 * time.Millisecond
	// stallGap is the gap between two ticks from which on this process counts as stalled.
	stallGap = 3 * pathTick
	// alarmSpacing is the minimum interval of probing all peers because one of them seems
	// to be down.
	alarmSpacing = 5 * time.Second
	// usedBytes is the traffic per listenSpacing from which on a path counts as used: more
	// than probes, answers, keepalives and handshakes.
	usedBytes = 10 << 10
)

// table has the paths to all peers of a device.
type table struct {
	mu     sync.Mutex
	of     map[tunnel.Key]*path
	at     map[netip.Addr]*path
	ticked time.Time
	alarm  time.Time // last

	routine, overdue, suspects, sessionless *rate.Limiter // of probes

	usedEvery, idleEvery, downEvery, unheardEvery, largeEvery time.Duration
}

// newTable returns the paths of a device without peers.
func newTable() table {
	// Two ticks' probes at once make up for a late tick.
	limit := func(perSecond int) *rate.Limiter {
		return rate.NewLimiter(rate.Limit(perSecond), perSecond*int(2*pathTick/time.Millisecond)/1000)
	}
	return table{
		routine: limit(maxRoutineRate), overdue: limit(overdueRate), suspects: limit(suspectRate),
		sessionless: rate.NewLimiter(sessionlessRate, sessionlessBurst),
	}
}

// set replaces the peers. Known peers keep their state.
func (ps *table) set(now time.Time, own tunnel.Key, peers []Peer) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	of, at := make(map[tunnel.Key]*path, len(peers)), make(map[netip.Addr]*path, len(peers))
	for i := range peers {
		peer := &peers[i]
		p, known := ps.of[peer.PublicKey]
		if !known {
			p = &path{
				key: peer.PublicKey, addr: peer.Addr,
				state: Unknown, since: now, sign: SignNone, next: now, largeNext: now.Add(largeRetry),
			}
		}
		if p.startedAt.Before(peer.Since) {
			// The peer was added to the device, as at first or when that was recreated.
			p.startedAt, p.handshake, p.rx, p.tx, p.counted = peer.Since, time.Time{}, 0, 0, false
		}
		p.node, p.initiator, p.passive = peer.Node, own.Compare(peer.PublicKey) < 0, peer.Passive
		if p.addr != peer.Addr {
			p.addr = peer.Addr
			p.fallBack(now)
		}
		of[peer.PublicKey] = p
		if p.addr.IsValid() {
			at[p.addr] = p
		}
	}
	ps.of, ps.at = of, at
	ps.updateIntervals()
}

// updateIntervals computes the intervals of probes by kind of path. The caller holds ps.mu.
func (ps *table) updateIntervals() {
	var used, idle, down, unheard int
	for _, p := range ps.of {
		switch {
		case !p.answers:
			unheard++
		case p.state == Down:
			down++
		case p.used:
			used++
		default:
			idle++
		}
	}
	every := func(n int, perSecond float64, least time.Duration) time.Duration {
		return max(least, time.Duration(float64(n)/perSecond*float64(time.Second)))
	}
	ps.usedEvery = every(used, usedRate, usedInterval)
	ps.idleEvery = every(idle, routineRate-largeRate-float64(used)/ps.usedEvery.Seconds(), usedInterval)
	ps.downEvery = every(down, downRate, downInterval)
	ps.unheardEvery = every(unheard, unheardRate, unheardInterval)
	ps.largeEvery = every(used+idle, largeRate, largeInterval)
}

// interval returns the time from a probe at the time now to the next one.
func (ps *table) interval(now time.Time, p *path) time.Duration {
	switch {
	case !p.answers && p.probedInSession < unheardTries && !p.sessionless(now):
		return downInterval
	case !p.answers:
		return ps.unheardEvery
	case p.state == Down:
		return ps.downEvery
	case p.unanswered > 1:
		return retryAfter
	case p.used:
		return ps.usedEvery
	}
	return ps.idleEvery
}

// probe is a probe to send.
type probe struct {
	key   tunnel.Key
	to    netip.Addr
	large bool
}

// tick evaluates all paths at the time now, after answers until then were recorded. It
// returns the probes to send, whether a state has changed, and whether the device is to be
// read, for a handshake or for received packets.
//
//	in this order                                 rate
//	an answer is overdue                          overdueRate
//	suspected, because another peer seems down    suspectRate
//	the others: used ones first, then the longest maxRoutineRate
//	overdue; then those of full size
//	without a session                             sessionlessRate
func (ps *table) tick(now time.Time) (send []probe, changed, handshakes bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	gap := pathTick
	if !ps.ticked.IsZero() {
		gap = now.Sub(ps.ticked)
	}
	ps.ticked = now
	var overdue, suspected, due, large, sessionless []*path
	suspicion := false
	for _, p := range ps.of {
		if gap > stallGap {
			p.skipStall(gap - pathTick)
		}
		before := p.state
		p.evaluate(now)
		changed = changed || p.state != before
		handshakes = handshakes || p.nudge(now) != tunnel.NudgeNone || p.listening(now)
		suspicion = suspicion || p.answerOverdue() && p.unanswered >= suspectAfter
		if p.answerOverdue() && p.unanswered == 1 && now.Sub(p.unansweredSince) >= retryAfter {
			p.next = now
		}
		if !p.next.After(now) && p.addr.IsValid() && !p.awaitsPeer() {
			switch {
			case p.answerOverdue():
				overdue = append(overdue, p)
			case p.suspected:
				suspected = append(suspected, p)
			case p.sessionless(now):
				sessionless = append(sessionless, p)
			default:
				due = append(due, p)
			}
		}
		if p.answers && p.state == Up && p.unanswered == 0 && !p.largeNext.After(now) && p.largeSent.IsZero() {
			large = append(large, p)
		}
	}
	if changed {
		ps.updateIntervals()
	}
	if suspicion && now.Sub(ps.alarm) >= alarmSpacing {
		ps.alarm = now
		for _, p := range ps.of {
			if p.answers && p.state == Up && p.unanswered == 0 && p.next.After(now) {
				// In random order: other nodes probe the same peers.
				p.next, p.suspected = now.Add(-rand.N(pathTick)), true
				suspected = append(suspected, p)
			}
		}
	}
	ask := func(some []*path, bound *rate.Limiter, large bool) {
		for _, p := range some {
			if !bound.AllowN(now, 1) {
				return
			}
			send = append(send, probe{p.key, p.addr, large})
		}
	}
	inOrder := func(some []*path) []*path {
		slices.SortFunc(some, func(a, b *path) int {
			if a.unanswered == b.unanswered && a.used != b.used {
				if a.used {
					return -1
				}
				return 1
			}
			return cmp.Or(cmp.Compare(b.unanswered, a.unanswered), a.next.Compare(b.next), a.addr.Compare(b.addr))
		})
		return some
	}
	ask(inOrder(overdue), ps.overdue, false)
	ask(inOrder(suspected), ps.suspects, false)
	ask(inOrder(due), ps.routine, false)
	ask(inOrder(large), ps.routine, true)
	// Unsorted: thousands of them may wait for their first probe.
	ask(sessionless, ps.sessionless, false)
	return send, changed, handshakes
}

// sent records a sent probe.
func (ps *table) sent(now time.Time, what probe) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, known := ps.of[what.key]
	switch {
	case !known:
	case what.large:
		p.largeSent, p.largeNext = now, now.Add(ps.largeEvery)
	default:
		p.sent(now)
		p.suspected = false
		p.next = now.Add(ps.interval(now, p))
	}
}

// answer records an answer, and reports whether a state changed.
func (ps *table) answer(now time.Time, a tunnel.Answer) (changed bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, known := ps.at[a.From]
	if !known {
		return false
	}
	before := p.state
	p.answer(now, a.Large, a.RTT)
	p.next = now.Add(ps.interval(now, p))
	if before != p.state {
		ps.updateIntervals()
	}
	return before != p.state
}

// fallBackAll makes all paths evaluated by WireGuard's status, because no probes can be
// sent.
func (ps *table) fallBackAll(now time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.of {
		if p.answers {
			p.fallBack(now)
		}
	}
}

// updateStatus records a peer's status on the device, and when it was last heard.
func (ps *table) updateStatus(now time.Time, s *tunnel.PeerStatus, heard time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p, known := ps.of[s.PublicKey]; known {
		p.located = s.Endpoint.IsValid()
		p.updateStatus(now, s.LastHandshake, heard, s.RxBytes, s.TxBytes)
	}
}

// updateTraffic sets whether a path is used, from a peer's counters; it is called every
// listenSpacing.
func (ps *table) updateTraffic(s *tunnel.PeerStatus) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p, known := ps.of[s.PublicKey]; known {
		p.used = p.counted && (s.RxBytes-p.trafficRx > usedBytes || s.TxBytes-p.trafficTx > usedBytes)
		p.trafficRx, p.trafficTx = s.RxBytes, s.TxBytes
	}
}

// nudge decides whether and how to send a handshake to a peer, and records that.
func (ps *table) nudge(now time.Time, key tunnel.Key) tunnel.Nudge {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, known := ps.of[key]
	if !known {
		return tunnel.NudgeNone
	}
	how := p.nudge(now)
	if how != tunnel.NudgeNone {
		p.nudged(now, how)
	}
	return how
}

// export returns all paths, sorted by node.
func (ps *table) export() []Path {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	all := make([]Path, 0, len(ps.of))
	for _, p := range ps.of {
		all = append(all, p.export())
	}
	slices.SortFunc(all, func(a, b Path) int { return cmp.Or(cmp.Compare(a.Node, b.Node), a.PublicKey.Compare(b.PublicKey)) })
	return all
}

// find returns the path to one peer.
func (ps *table) find(key tunnel.Key) (Path, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, known := ps.of[key]
	if !known {
		return Path{}, false
	}
	return p.export(), true
}
