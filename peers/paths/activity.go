package paths

import (
	"context"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// listenSpacing is the interval at which Tend listens.
const listenSpacing = 10 * time.Second

// listen records which peers were heard since the last call, and sends a keepalive to
// those with a session that were sent nothing meanwhile. WireGuard's persistent keepalives
// aren't enough: one that arrives defers the receiver's own, so that on an idle tunnel
// only one side sends until the session is renewed after two minutes. With agents like
// this one on both sides each hears the other at least every 20 s. listen reads the whole
// device.
func (m *Monitor) listen(ctx context.Context) error {
	now := time.Now()
	seen := make(map[tunnel.Key]bool)
	_, err := m.cfg.Device.Nudge(ctx, func(p tunnel.PeerStatus) tunnel.Nudge {
		seen[p.PublicKey] = true
		idle := m.activity.update(now, &p)
		m.readPath(now, &p)
		m.table.updateTraffic(&p)
		if idle && inSession(now, p.LastHandshake) {
			return tunnel.NudgeKeepalive
		}
		return tunnel.NudgeNone
	})
	if err == nil {
		m.activity.prune(seen)
	}
	return err
}

// readPath passes a peer's status to its path.
func (m *Monitor) readPath(now time.Time, p *tunnel.PeerStatus) {
	m.table.updateStatus(now, p, m.activity.heard(now, p))
}

// Heard returns when a peer was last heard, given its status at the time now: a
// handshake, or a growth of the received bytes; zero: never.
func (m *Monitor) Heard(now time.Time, p *tunnel.PeerStatus) time.Time {
	return latest(m.activity.heard(now, p), p.LastHandshake)
}

// activity tracks the traffic counters of peers.
type activity struct {
	mu    sync.Mutex
	peers map[tunnel.Key]counters
}

type counters struct {
	rx, tx int64
	at     time.Time // rx last grew; zero: not seen to grow
}

// heard records the bytes received from a peer, and returns when they last grew.
func (s *activity) heard(now time.Time, p *tunnel.PeerStatus) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record(now, p, false).at
}

// update is heard, and reports whether the peer was sent nothing since the last update.
func (s *activity) update(now time.Time, p *tunnel.PeerStatus) (idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.peers[p.PublicKey]
	after := s.record(now, p, true)
	after.tx = p.TxBytes
	s.peers[p.PublicKey] = after
	return known && before.tx == p.TxBytes
}

// record updates the received bytes. Only with latest may they decrease: concurrent
// readers may have older values. The caller holds s.mu.
func (s *activity) record(now time.Time, p *tunnel.PeerStatus, latest bool) counters {
	if s.peers == nil {
		s.peers = map[tunnel.Key]counters{}
	}
	is, known := s.peers[p.PublicKey]
	if known && p.RxBytes > is.rx {
		is.at = now
	}
	if latest || p.RxBytes > is.rx {
		is.rx = p.RxBytes // Counters restart when a peer is removed and added.
	}
	if !known {
		is.tx = p.TxBytes
	}
	s.peers[p.PublicKey] = is
	return is
}

// prune removes all but the given peers.
func (s *activity) prune(seen map[tunnel.Key]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.peers {
		if !seen[key] {
			delete(s.peers, key)
		}
	}
}
