package paths

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// mesh simulates a device with peers, with its own clock. Answers arrive at the next tick.
type mesh struct {
	t     *testing.T
	table table
	now   time.Time
	peers []Peer

	// cut are peers that packets don't reach, or don't return from; deaf are peers whose
	// kernels don't answer probes, though handshakes succeed.
	cut, deaf map[tunnel.Key]bool
	rest      time.Duration // between two reads of the device
	rested    time.Time
	large     bool // full-size packets get lost
	heard     bool // packets of cut peers arrive
	busy      bool // packets of the others arrive, too
	sent      int  // probes
	begun     int  // handshakes
	resets    int  // resets, which end a session

	late    time.Duration // delay of answers and handshakes; 0: until the next tick
	pending []answer
}

// answer is an answer in flight.
type answer struct {
	at time.Time
	tunnel.Answer
}

func keyOf(n int) (k tunnel.Key) {
	binary.BigEndian.PutUint32(k[:], uint32(n))
	k[31] = 1
	return k
}

func newMesh(t *testing.T, size int) *mesh {
	t.Helper()
	m := &mesh{table: newTable(), t: t, now: time.Unix(1_800_000_000, 0), cut: map[tunnel.Key]bool{}, deaf: map[tunnel.Key]bool{}}
	for i := range size {
		k := keyOf(i + 1)
		m.peers = append(m.peers, Peer{Node: fmt.Sprintf("gcp-%d", i), PublicKey: k, Addr: tunnel.LinkLocal(k), Since: m.now})
	}
	m.table.set(m.now, tunnel.Key{}, m.peers)
	return m
}

// onDevice is a peer as the device has it.
func onDevice(p Peer) tunnel.Peer {
	return tunnel.Peer{PublicKey: p.PublicKey, Endpoint: netip.MustParseAddrPort("10.22.0.1:51820")}
}

// meet establishes sessions with all peers.
func (m *mesh) meet() {
	for _, p := range m.peers {
		m.table.updateStatus(m.now, &tunnel.PeerStatus{Peer: onDevice(p), LastHandshake: m.now}, time.Time{})
	}
}

// read reads the device: all peers that aren't cut have a session. A handshake succeeds
// rekeyTimeout after the last one at the earliest.
func (m *mesh) read() {
	for i := range m.peers {
		key := m.peers[i].PublicKey
		s := tunnel.PeerStatus{Peer: onDevice(m.peers[i])}
		p := m.table.of[key]
		switch {
		case !m.cut[key] && p.nudgedAt.Sub(p.handshake) >= rekeyTimeout && !m.now.Before(p.nudgedAt.Add(m.late)):
			s.LastHandshake = m.now
		default:
			s.LastHandshake = p.handshake
		}
		s.RxBytes = p.rx
		if m.cut[key] && m.heard || !m.cut[key] && m.busy {
			s.RxBytes += 148
		}
		m.table.updateStatus(m.now, &s, time.Time{})
	}
}

// step is one tick. Handshakes that are due are sent at once.
func (m *mesh) step() {
	m.now = m.now.Add(pathTick)
	send, _, handshakes := m.table.tick(m.now)
	m.sent += len(send)
	for _, p := range send {
		m.table.sent(m.now, p)
	}
	if handshakes && !m.now.Before(m.rested) {
		m.rested = m.now.Add(m.rest)
		m.read()
		for i := range m.peers {
			switch m.table.nudge(m.now, m.peers[i].PublicKey) {
			case tunnel.NudgeNone, tunnel.NudgeKeepalive:
			case tunnel.NudgeReset:
				m.resets++
				m.begun++
			case tunnel.NudgeHandshake:
				if m.table.of[m.peers[i].PublicKey].verifiable(m.now) {
					m.begun++
				}
			}
		}
	}
	for _, p := range send {
		if !m.cut[p.key] && !m.deaf[p.key] && (!p.large || !m.large) {
			took := max(pathTick/2, m.late)
			m.pending = append(m.pending, answer{m.now.Add(took), tunnel.Answer{From: p.to, Large: p.large, RTT: took}})
		}
	}
	rest := m.pending[:0]
	for _, a := range m.pending {
		if a.at.Before(m.now.Add(pathTick)) {
			m.table.answer(a.at, a.Answer)
		} else {
			rest = append(rest, a)
		}
	}
	m.pending = rest
}

// until steps until the given peers are in a state, and returns how long that took.
func (m *mesh) until(what string, limit time.Duration, state State, of ...int) time.Duration {
	m.t.Helper()
	started := m.now
	for m.now.Sub(started) <= limit {
		m.step()
		n := 0
		for _, i := range of {
			if m.table.of[keyOf(i+1)].state == state {
				n++
			}
		}
		if n == len(of) {
			return m.now.Sub(started)
		}
	}
	m.t.Fatalf("not within %v: %s", limit, what)
	return 0
}

func upTo(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// TestPathsInTime checks, for meshes of several sizes, how soon a path is known to be down
// and up, and the number of probes. All times are of the mesh's clock.
func TestPathsInTime(t *testing.T) {
	for _, c := range []struct {
		size       int
		down, used time.Duration
	}{{2, 3 * time.Second, 3 * time.Second}, {500, 4 * time.Second, 3 * time.Second}, {5000, 30 * time.Second, 3 * time.Second}} {
		t.Run(fmt.Sprint(c.size), func(t *testing.T) {
			if testing.Short() && c.size > 500 {
				t.Skip("left out by -short: minutes with the race detector")
			}
			m := newMesh(t, c.size)
			m.meet()
			m.until("all up", time.Minute, Up, upTo(c.size)...)
			m.table.of[keyOf(1)].used = true
			m.table.mu.Lock()
			m.table.updateIntervals()
			m.table.mu.Unlock()
			for range 300 {
				m.step()
			}
			m.sent = 0
			const quiet = 200
			for range quiet {
				m.step()
			}
			rate := float64(m.sent) / (quiet * pathTick.Seconds())
			if rate > maxRoutineRate+1 {
				t.Errorf("%.0f probes a second", rate)
			}
			var worstUsed, worstIdle, worstUp time.Duration
			for try := range min(5, 10_000/c.size) {
				for range try * 3 {
					m.step()
				}
				for who, worst := range map[int]*time.Duration{0: &worstUsed, c.size - 1: &worstIdle} {
					m.cut[keyOf(who+1)] = true
					*worst = max(*worst, m.until("down", c.down, Down, who))
					for range 50 {
						m.step()
					}
					delete(m.cut, keyOf(who+1))
					worstUp = max(worstUp, m.until("up", 2*time.Second, Up, who))
				}
				m.table.of[keyOf(1)].used = true
			}
			if worstUsed > c.used {
				t.Errorf("a used path is down after %v", worstUsed)
			}
			for i := range c.size {
				m.cut[keyOf(i+1)] = true
			}
			m.sent = 0
			began := m.now
			all := m.until("all down", 30*time.Second, Down, upTo(c.size)...)
			t.Logf("%d peers: %.0f probes a second; down: used %v, idle %v, all of them %v (with %.0f probes a second); up %v",
				c.size, rate, worstUsed, worstIdle, all, float64(m.sent)/m.now.Sub(began).Seconds(), worstUp)
			if c.size <= 500 && all > 4*time.Second {
				t.Errorf("all are down after %v", all)
			}
		})
	}
}

// A used path doesn't wait for idle ones that are all due at once, as after an alarm, nor
// for full-size probes.
func TestUsedPathsGoFirst(t *testing.T) {
	m := newMesh(t, 500)
	m.until("all up", time.Minute, Up, upTo(500)...)
	used := m.table.of[keyOf(1)]
	for _, p := range m.table.of {
		p.next, p.largeNext = m.now, m.now
	}
	used.used, used.next = true, m.now.Add(pathTick)
	send, _, _ := m.table.tick(m.now.Add(pathTick))
	if len(send) == 0 || len(send) == 500 || !slices.ContainsFunc(send, func(p probe) bool { return p.key == used.key && !p.large }) {
		t.Errorf("it isn't among the %d that are asked", len(send))
	}
}

// A peer that never answered isn't down for lack of answers, and one that stops answering
// while handshakes succeed stays up.
func TestPathsOfPeersThatDontAnswer(t *testing.T) {
	m := newMesh(t, 2)
	m.deaf[keyOf(1)] = true
	m.until("the other one up", time.Minute, Up, 1)
	p := m.table.of[keyOf(1)]
	for range 600 {
		m.step()
	}
	if p.state != Unknown || p.answers {
		t.Errorf("one that was never heard is %s (%s)", p.state, p.sign)
	}
	session := tunnel.PeerStatus{Peer: onDevice(m.peers[0]), LastHandshake: m.now}
	m.table.updateStatus(m.now, &session, time.Time{})
	m.step()
	if p.state != Up || p.sign != SignHandshake {
		t.Errorf("one with a session is %s (%s)", p.state, p.sign)
	}

	m.deaf[keyOf(2)] = true
	q, before := m.table.of[keyOf(2)], m.table.of[keyOf(2)].since
	for range 100 {
		m.step()
		m.read()
		if q.state != Up || !q.since.Equal(before) {
			t.Fatalf("one that stopped answering is %s (%s)", q.state, q.sign)
		}
	}
	if q.answers || m.begun != 1 {
		t.Errorf("it is still thought to answer: %v, and %d handshakes were begun", q.answers, m.begun)
	}
}

// A peer that hasn't answered is probed seldom until it has another session: it may have
// been down, and go down again soon.
func TestPeersAreProbedAgainInEachSession(t *testing.T) {
	m := newMesh(t, 2)
	m.deaf[keyOf(1)] = true
	for range 150 { // It was just probed again.
		m.step()
	}
	delete(m.deaf, keyOf(1))
	session := tunnel.PeerStatus{Peer: onDevice(m.peers[0]), LastHandshake: m.now}
	m.table.updateStatus(m.now, &session, time.Time{})
	m.step()
	if p := m.table.of[keyOf(1)]; !p.answers {
		t.Errorf("it is %s (%s), and is asked in %v", p.state, p.sign, p.next.Sub(m.now))
	}
}

// Where a device is read seldom, as a large one is, a peer that stopped answering may count
// as down, twice. Its session isn't renewed repeatedly.
func TestHandshakeThatIsReadLate(t *testing.T) {
	m := newMesh(t, 2)
	m.until("all up", time.Minute, Up, 0, 1)
	m.deaf[keyOf(1)], m.rest = true, time.Second
	p, downs, before := m.table.of[keyOf(1)], 0, Up
	for range 300 {
		m.step()
		if p.nudgedAt.After(p.handshake) && !m.now.Before(m.rested) {
			m.read()
		}
		if p.state == Down && before != Down {
			downs++
		}
		before = p.state
	}
	if p.state != Up || downs > 2 || m.begun > 2 {
		t.Errorf("it is %s (%s), was down %d times, and %d handshakes were begun", p.state, p.sign, downs, m.begun)
	}
}

// While packets of a peer arrive that stopped answering, its path isn't down before a
// handshake has failed, which can't be sent in a new session. When none arrive it is down
// as soon as ever.
func TestPacketsThatArriveCount(t *testing.T) {
	const old = time.Minute
	for _, c := range []struct {
		name                   string
		session                time.Duration // age of the session
		cut, deaf, busy, heard bool
		responder, passive     bool
		down                   time.Duration // at most; 0: never
		sign                   Sign
	}{
		{name: "only probes are dropped", session: old, deaf: true, busy: true, sign: SignReceived},
		{name: "only probes are dropped, seen by the responder", session: old, deaf: true, busy: true, responder: true, sign: SignReceived},
		{name: "only probes are dropped, in a new session", deaf: true, busy: true, sign: SignReceived},
		{name: "only probes are dropped, in a new session, seen by the responder", deaf: true, busy: true, responder: true, sign: SignReceived},
		{name: "no packets pass", session: old, cut: true, down: 3 * time.Second, sign: SignNoAnswer},
		{name: "no packets pass, in a new session", cut: true, down: 3 * time.Second, sign: SignNoAnswer},
		{name: "ours don't", session: old, cut: true, heard: true, down: 10 * time.Second, sign: SignOneWay},
		{name: "ours don't, seen by the responder", session: old, cut: true, heard: true, responder: true, down: 12 * time.Second, sign: SignOneWay},
		{name: "ours don't, to a peer without an endpoint", session: old, cut: true, heard: true, passive: true, down: 3 * time.Second, sign: SignNoAnswer},
		{name: "ours don't, in a new session", cut: true, heard: true, down: 15 * time.Second, sign: SignOneWay},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := newMesh(t, 2)
			m.until("all up", time.Minute, Up, 0, 1)
			m.meet()
			for m.now.Sub(m.table.of[keyOf(1)].handshake) < c.session {
				m.step()
			}
			p := m.table.of[keyOf(1)]
			p.initiator, p.passive = !c.responder, c.passive
			m.cut[keyOf(1)], m.deaf[keyOf(1)], m.busy, m.heard = c.cut, c.deaf, c.busy, c.heard
			if c.down > 0 {
				m.until("down", c.down, Down, 0)
			}
			for range 300 {
				if c.down > 0 {
					break
				}
				if m.step(); p.state != Up {
					t.Fatalf("%s (%s) %v after the last answer", p.state, p.sign, m.now.Sub(p.answered))
				}
			}
			if c.down == 0 && p.sign == SignHandshake {
				p.sign = SignReceived // read after the last packet
			}
			if p.sign != c.sign || c.down == 0 && (p.answers || m.begun > 1) {
				t.Errorf("%s (%s), answers %v, %d handshakes", p.state, p.sign, p.answers, m.begun)
			}
		})
	}
}

// A path with packets in one direction only is detected, and so is one that loses packets
// of full size.
func TestPartialPaths(t *testing.T) {
	m := newMesh(t, 2)
	m.until("all up", time.Minute, Up, 0, 1)
	p := m.table.of[keyOf(1)]
	m.cut[keyOf(1)], m.heard = true, true
	m.until("down", 10*time.Second, Down, 0)
	if p.sign != SignOneWay {
		t.Errorf("heard, and %s (%s)", p.state, p.sign)
	}
	delete(m.cut, keyOf(1))
	m.until("up", 5*time.Second, Up, 0)

	m.large = true
	for range 900 {
		m.step()
	}
	if !p.smallOnly || p.state != Up {
		t.Errorf("%s, small packets only: %v", p.state, p.smallOnly)
	}
	m.large = false
	for range 900 {
		m.step()
	}
	if p.smallOnly {
		t.Error("large packets pass again, and that isn't seen")
	}
}

// A peer that answers late, as on a node short of processor time, keeps its session, and is
// up as soon as its round trip time is measured, within bounds. Once it is fast again, it
// is soon detected as down again.
func TestPathsOfSlowPeers(t *testing.T) {
	for _, c := range []struct {
		late  time.Duration
		downs int
	}{{500 * time.Millisecond, 0}, {1500 * time.Millisecond, 0}, {2500 * time.Millisecond, 1}, {5 * time.Second, 1}} {
		t.Run(c.late.String(), func(t *testing.T) {
			m := newMesh(t, 2)
			m.meet()
			m.until("both up", time.Minute, Up, 0, 1)
			m.late = c.late
			p, downs, before := m.table.of[keyOf(1)], 0, Up
			for range 1000 {
				m.step()
				if m.now.Sub(p.nudgedAt) >= m.late {
					m.read()
				}
				if p.state == Down && before != Down {
					downs++
				}
				before = p.state
			}
			if m.resets > 0 || downs > c.downs {
				t.Errorf("sessions were ended %d times, and it was down %d times", m.resets, downs)
			}
			m.late = 0
			m.until("up", 10*time.Second, Up, 0)
			for range 600 {
				m.step()
			}
			m.cut[keyOf(1)] = true
			m.until("down", 3*time.Second, Down, 0)
		})
	}
}

// A new session with a peer that is down and answers no probes isn't ended before it was
// evaluated. One with a peer that did answer is given up after a while.
func TestSessionsOfPeersThatAreDown(t *testing.T) {
	m := newMesh(t, 2)
	m.cut[keyOf(1)], m.deaf[keyOf(1)] = true, true
	m.meet()
	m.until("one that never answered down", 5*time.Minute, Down, 0)
	m.now = m.now.Add(nudgeResponder)
	if how := m.table.of[keyOf(1)].nudge(m.now); how != tunnel.NudgeReset {
		t.Errorf("without a session: %v", how)
	}
	session := tunnel.PeerStatus{Peer: onDevice(m.peers[0]), LastHandshake: m.now}
	m.table.updateStatus(m.now, &session, time.Time{})
	if how := m.table.nudge(m.now, keyOf(1)); how != tunnel.NudgeNone {
		t.Errorf("in a session that has just come about: %v", how)
	}

	m.meet()
	m.until("the other one up", time.Minute, Up, 1)
	m.cut[keyOf(2)] = true
	m.until("down", 5*time.Second, Down, 1)
	for m.resets = 0; m.resets == 0; {
		m.step()
	}
	if p := m.table.of[keyOf(2)]; m.now.Sub(p.since) < giveUpAfter || m.now.Sub(p.since) > giveUpAfter+2*nudgeResponder {
		t.Errorf("the session is given up after %v", m.now.Sub(p.since))
	}
}

// Time in which this process didn't run doesn't count as silence.
func TestPathsAfterAStall(t *testing.T) {
	m := newMesh(t, 3)
	m.until("all up", time.Minute, Up, 0, 1, 2)
	for range 20 {
		for i := range 3 {
			m.deaf[keyOf(i+1)] = true
		}
		m.step()
		m.deaf = map[tunnel.Key]bool{}
		m.now = m.now.Add(10 * time.Second)
		for i := range 40 {
			m.step()
			for _, p := range m.table.of {
				if p.state != Up {
					t.Fatalf("%s is %s %d ticks after a stall", p.node, p.state, i)
				}
			}
		}
	}
}

// Peers without a session are probed seldom, because WireGuard queues packets to them, and
// as often as others once they have one.
func TestPathsWithoutSession(t *testing.T) {
	const size, steps = 1000, 300
	m := newMesh(t, size)
	for i := range size {
		m.cut[keyOf(i+1)] = true
	}
	for range steps {
		m.step()
	}
	most := sessionlessBurst + sessionlessRate*steps*pathTick.Seconds()
	if m.sent == 0 || float64(m.sent) > most {
		t.Errorf("%d probes in %v, expected some, and at most %v", m.sent, steps*pathTick, most)
	}
	m.cut = map[tunnel.Key]bool{}
	m.meet()
	for range steps {
		m.step()
	}
	for _, p := range m.table.of {
		if !p.answers {
			t.Fatalf("%s isn't known to answer %v after its handshake", p.node, steps*pathTick)
		}
	}
}

// An address is probed for one peer, the first, and this device's own for none: a peer with
// a key chosen for a collision doesn't affect another one's path.
func TestPathsOfEqualAddresses(t *testing.T) {
	m := newMesh(t, 4)
	own, same, of := tunnel.Key{}, tunnel.LinkLocal(keyOf(1)), map[tunnel.Key]netip.Addr{}
	derive := func(k tunnel.Key) netip.Addr {
		switch {
		case of[k].IsValid():
			return of[k]
		case k == own || k == keyOf(4):
			return tunnel.LinkLocal(own)
		}
		return tunnel.LinkLocal(k)
	}
	of[keyOf(2)] = same
	set := func() {
		want := make([]tunnel.Peer, len(m.peers))
		for i, p := range m.peers {
			want[i] = tunnel.Peer{PublicKey: p.PublicKey}
		}
		addrs := allowProbes(own, want, derive)
		for i, addr := range addrs {
			m.peers[i].Addr = addr
		}
		m.table.set(m.now, own, m.peers)
		for i, p := range want {
			// The answer is of the peer that the probe was sent to.
			probed := m.table.at[addrs[i]]
			if len(p.AllowedIPs) == 0 && addrs[i].IsValid() || len(p.AllowedIPs) == 1 && (probed == nil || probed.key != m.peers[i].PublicKey) {
				t.Errorf("%s: %v, and the path of %v", m.peers[i].Node, p.AllowedIPs, probed)
			}
		}
	}
	set()
	m.until("those that are alone up", time.Minute, Up, 0, 2)
	for _, i := range []int{1, 3} {
		if p := m.table.of[keyOf(i+1)]; p.answers || p.probedInSession > 0 || p.state != Unknown {
			t.Errorf("%s is %s, and was asked %d times", p.node, p.state, p.probedInSession)
		}
	}
	// An answer from the former owner of the address doesn't count for the new one.
	m.peers[0], m.peers[1] = m.peers[1], m.peers[0]
	set()
	if p := m.table.of[keyOf(1)]; p.answers {
		t.Error("one that isn't probed any more is judged by probes")
	}
	m.until("the one that has the address now up", time.Minute, Up, 1)
}

// When probes can't be sent any more, WireGuard's status decides.
func TestPathsWithoutProbes(t *testing.T) {
	m := newMesh(t, 1)
	m.until("up", time.Minute, Up, 0)
	session := tunnel.PeerStatus{Peer: onDevice(m.peers[0]), LastHandshake: m.now}
	m.table.updateStatus(m.now, &session, time.Time{})
	m.table.fallBackAll(m.now)
	if p, _ := m.table.find(keyOf(1)); p.State != Up || p.Sign != SignHandshake || p.Answers {
		t.Errorf("%+v", p)
	}
	m.now = m.now.Add(sessionEnds)
	m.table.tick(m.now)
	if p, _ := m.table.find(keyOf(1)); p.State != Down || p.Sign != SignNoHandshake {
		t.Errorf("%+v", p)
	}
}

func BenchmarkPaths(b *testing.B) {
	for _, size := range []int{500, 5000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			t := &testing.T{}
			m := newMesh(t, size)
			for range 600 {
				m.step()
			}
			b.ResetTimer()
			for b.Loop() {
				m.step()
			}
			b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(pathTick)*100, "%core")
		})
	}
}

// The round trip time of a path is that of small packets, since it last came up: the median of
// the last seven, which an answer that waited for a processor doesn't change.
func TestTimesOfPaths(t *testing.T) {
	now := time.Unix(1000, 0)
	p := &path{state: Unknown}
	for i, step := range []struct {
		do   func()
		want time.Duration
	}{
		{func() { p.answer(now, false, 0) }, 0},
		{func() { p.answer(now, false, 8*time.Millisecond) }, 8 * time.Millisecond},
		{func() { p.answer(now, true, time.Second) }, 8 * time.Millisecond},
		{func() { p.answer(now, false, 16*time.Millisecond) }, 16 * time.Millisecond},
		{func() { p.answer(now, false, time.Millisecond) }, 8 * time.Millisecond},
		{func() { p.answer(now, false, 277*time.Millisecond) }, 16 * time.Millisecond},
		{func() { p.answer(now, false, 2*time.Millisecond) }, 8 * time.Millisecond},
		{func() { p.answer(now, false, 2*time.Millisecond) }, 8 * time.Millisecond},
		{func() { p.answer(now, false, 277*time.Millisecond) }, 8 * time.Millisecond},
		{func() { p.answer(now, false, 2*time.Millisecond) }, 2 * time.Millisecond},
		{func() { p.setState(now, Down, SignNoAnswer) }, 0},
		{func() { p.answer(now, false, 40*time.Millisecond) }, 40 * time.Millisecond},
		{func() { p.fallBack(now) }, 0},
	} {
		now = now.Add(time.Second)
		if step.do(); p.export().RTT != step.want {
			t.Errorf("after step %d: %v, want %v", i+1, p.export().RTT, step.want)
		}
	}
}
