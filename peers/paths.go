package peers

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// What bounds the probes of one device, in numbers a second. With 5,000 peers each
// side sends 300 and answers as many; those that come due together, as after an alarm,
// may be more for a while.
const (
	routineRate = 300
	routineMost = 450
	usedRate    = 200 // of the former, to peers that carry traffic
	largeRate   = 30  // of it, of full size
	downRate    = 150
	unheardRate = 50 // to peers that don't answer
	// strangeRate is for those of them that have no session either, of which strangeMost may
	// be asked at once: WireGuard keeps what is sent to them until they have one, and
	// wireguard-go 64 KiB for each packet of it.
	strangeRate = 50
	strangeMost = 100
	strangeKept = strangeMost * time.Second / strangeRate
	doubtRate   = 2000
	// suspectRate is for those that are looked at because another one seems to be gone.
	// All that have lost that one look at the same time: so many are what a peer is asked
	// a second, and with routineRate, less than the 1,000 of net.ipv4.icmp_msgs_per_sec that
	// its kernel answers where probes aren't echo requests.
	suspectRate = 500
)

const (
	// pathTick is how often answers are read and probes are sent.
	pathTick = 100 * time.Millisecond
	// stall is a time between two ticks that counts as one in which this process
	// didn't run.
	stall = 3 * pathTick
	// alarmSpacing is how often the peers of a device are all looked at because one of
	// them seems to be gone.
	alarmSpacing = 5 * time.Second
	// usedBytes is how much has to be sent to or received from a peer from one look
	// at the device to the next, for the path to count as used: more than probes,
	// answers, keepalives and handshakes take.
	usedBytes = 10 << 10
)

// paths are those to all peers of a device.
type paths struct {
	mu     sync.Mutex
	of     map[tunnel.Key]*path
	at     map[netip.Addr]*path
	ticked time.Time
	alarm  time.Time // last

	routine, doubt, suspects, strange allowance
	usedEvery                         time.Duration
	idleEvery                         time.Duration
	downEvery                         time.Duration
	unheardEvery                      time.Duration
	largeEvery                        time.Duration
}

// allowance is how many probes may be sent now.
type allowance struct{ left float64 }

// grow adds what a time brings, and leaves no more than what another one does.
func (a *allowance) grow(rate float64, by, most time.Duration) {
	a.left = min(a.left+by.Seconds()*rate, most.Seconds()*rate)
}

func (a *allowance) take() bool {
	if a.left < 1 {
		return false
	}
	a.left--
	return true
}

// set makes the paths those to the given peers, which are probed at addrs, where valid.
func (ps *paths) set(now time.Time, own tunnel.Key, peers []Peer, addrs []netip.Addr, configured map[tunnel.Key]time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	of, at := make(map[tunnel.Key]*path, len(peers)), make(map[netip.Addr]*path, len(peers))
	for i := range peers {
		peer := &peers[i]
		p, known := ps.of[peer.PublicKey]
		if !known {
			p = &path{
				key: peer.PublicKey, addr: addrs[i],
				state: PathUnknown, since: now, sign: SignNone, next: now, largeNext: now.Add(largeRetry),
			}
		}
		if begun := configured[peer.PublicKey]; p.begun.Before(begun) {
			// The device has it anew, as at first or after the device was made anew.
			p.begun, p.handshake, p.rx, p.tx, p.counted = begun, time.Time{}, 0, 0, false
		}
		p.node, p.leads, p.mute = peer.Node, own.Compare(peer.PublicKey) < 0, !peer.Endpoint.IsValid()
		if p.addr != addrs[i] {
			p.addr = addrs[i]
			p.unanswering(now)
		}
		of[peer.PublicKey] = p
		if p.addr.IsValid() {
			at[p.addr] = p
		}
	}
	ps.of, ps.at = of, at
	ps.spread()
}

// spread computes how often paths of each kind are probed. The caller holds ps.mu.
func (ps *paths) spread() {
	var used, idle, down, unheard int
	for _, p := range ps.of {
		switch {
		case !p.answers:
			unheard++
		case p.state == PathDown:
			down++
		case p.used:
			used++
		default:
			idle++
		}
	}
	every := func(n int, rate float64, least time.Duration) time.Duration {
		return max(least, time.Duration(float64(n)/rate*float64(time.Second)))
	}
	ps.usedEvery = every(used, usedRate, usedInterval)
	ps.idleEvery = every(idle, routineRate-largeRate-float64(used)/ps.usedEvery.Seconds(), usedInterval)
	ps.downEvery = every(down, downRate, downInterval)
	ps.unheardEvery = every(unheard, unheardRate, unheardInterval)
	ps.largeEvery = every(used+idle, largeRate, largeInterval)
}

// interval returns how long after a probe at the time now a path gets the next.
func (ps *paths) interval(now time.Time, p *path) time.Duration {
	switch {
	case !p.answers && p.tried < unheardTries && !p.strange(now):
		return downInterval
	case !p.answers:
		return ps.unheardEvery
	case p.state == PathDown:
		return ps.downEvery
	case p.asked > 1:
		return retryAfter
	case p.used:
		return ps.usedEvery
	}
	return ps.idleEvery
}

// probe is one that is to be sent.
type probe struct {
	key   tunnel.Key
	to    netip.Addr
	large bool
}

// tick judges all paths at the time now, after the answers that came until then were
// noted, and returns what to ask, whether a state has changed, and whether a handshake
// is wanted.
//
//	goes first                                  bound
//	doubt: an answer is overdue                 doubtRate
//	suspicion: a neighbour seems to be gone     suspectRate
//	the others: those in use, then the longest  routineMost
//	overdue; those of full size
//	those without a session                     strangeRate
func (ps *paths) tick(now time.Time) (send []probe, changed, handshakes bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	gap := pathTick
	if ps.ticked.IsZero() {
		ps.strange.left = strangeMost
	} else {
		gap = now.Sub(ps.ticked)
	}
	ps.ticked = now
	ps.routine.grow(routineMost, gap, 2*pathTick)
	ps.doubt.grow(doubtRate, gap, 2*pathTick)
	ps.suspects.grow(suspectRate, gap, 2*pathTick)
	ps.strange.grow(strangeRate, gap, strangeKept)
	var doubtful, suspected, due, large, strange []*path
	suspicion := false
	for _, p := range ps.of {
		if gap > stall {
			p.stalled(gap - pathTick)
		}
		before := p.state
		p.judge(now)
		changed = changed || p.state != before
		handshakes = handshakes || p.contact(now) != tunnel.ContactNone
		suspicion = suspicion || p.doubtful() && p.asked >= suspect
		if p.doubtful() && p.asked == 1 && now.Sub(p.askedSince) >= retryAfter {
			p.next = now
		}
		if !p.next.After(now) && p.addr.IsValid() && !p.waits() {
			switch {
			case p.doubtful():
				doubtful = append(doubtful, p)
			case p.suspected:
				suspected = append(suspected, p)
			case p.strange(now):
				strange = append(strange, p)
			default:
				due = append(due, p)
			}
		}
		if p.answers && p.state == PathUp && p.asked == 0 && !p.largeNext.After(now) && p.largeSent.IsZero() {
			large = append(large, p)
		}
	}
	if changed {
		ps.spread()
	}
	if suspicion && now.Sub(ps.alarm) >= alarmSpacing {
		ps.alarm = now
		for _, p := range ps.of {
			if p.answers && p.state == PathUp && p.asked == 0 && p.next.After(now) {
				// In an order of our own: others look at the same peers.
				p.next, p.suspected = now.Add(-rand.N(pathTick)), true
				suspected = append(suspected, p)
			}
		}
	}
	ask := func(some []*path, bound *allowance, large bool) {
		for _, p := range some {
			if !bound.take() {
				return
			}
			send = append(send, probe{p.key, p.addr, large})
		}
	}
	inOrder := func(some []*path) []*path {
		slices.SortFunc(some, func(a, b *path) int {
			if a.asked == b.asked && a.used != b.used {
				if a.used {
					return -1
				}
				return 1
			}
			return cmp.Or(cmp.Compare(b.asked, a.asked), a.next.Compare(b.next), a.addr.Compare(b.addr))
		})
		return some
	}
	ask(inOrder(doubtful), &ps.doubt, false)
	ask(inOrder(suspected), &ps.suspects, false)
	ask(inOrder(due), &ps.routine, false)
	ask(inOrder(large), &ps.routine, true)
	// In any order: thousands of them may wait for their first probe.
	ask(strange, &ps.strange, false)
	return send, changed, handshakes
}

// sent notes that one was.
func (ps *paths) sent(now time.Time, what probe) {
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

// answer notes that a peer answered, and tells whether that changed a state.
func (ps *paths) answer(now time.Time, a tunnel.Answer) (changed bool) {
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
		ps.spread()
	}
	return before != p.state
}

// blind is told that nobody can be asked.
func (ps *paths) blind(now time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	for _, p := range ps.of {
		if p.answers {
			p.unanswering(now)
		}
	}
}

// read notes what the device says of a peer, which was last heard at the given time.
func (ps *paths) read(now time.Time, s *tunnel.PeerStatus, heard time.Time) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p, known := ps.of[s.PublicKey]; known {
		p.known = s.Endpoint.IsValid()
		p.read(now, s.LastHandshake, heard, s.RxBytes, s.TxBytes)
	}
}

// look is read for all of a device's peers, ListenSpacing apart: it finds out which
// paths are used.
func (ps *paths) look(s *tunnel.PeerStatus) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if p, known := ps.of[s.PublicKey]; known {
		p.used = p.counted && (s.RxBytes-p.lookRx > usedBytes || s.TxBytes-p.lookTx > usedBytes)
		p.lookRx, p.lookTx = s.RxBytes, s.TxBytes
	}
}

// contact decides whether a handshake is to be begun with a peer, and how.
func (ps *paths) contact(now time.Time, key tunnel.Key) tunnel.Contact {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, known := ps.of[key]
	if !known {
		return tunnel.ContactNone
	}
	how := p.contact(now)
	if how != tunnel.ContactNone {
		p.renew(now, how)
	}
	return how
}

// show returns all paths, sorted by node.
func (ps *paths) show() []Path {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	all := make([]Path, 0, len(ps.of))
	for _, p := range ps.of {
		all = append(all, p.show())
	}
	slices.SortFunc(all, func(a, b Path) int { return cmp.Or(cmp.Compare(a.Node, b.Node), a.PublicKey.Compare(b.PublicKey)) })
	return all
}

// find returns the path to one peer.
func (ps *paths) find(key tunnel.Key) (Path, bool) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p, known := ps.of[key]
	if !known {
		return Path{}, false
	}
	return p.show(), true
}
