package peers

import (
	"context"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// ListenSpacing is how often Listen is meant to be called.
const ListenSpacing = 10 * time.Second

// Listen notes which peers were heard since the last call, and sends a keepalive to
// those with a session that were sent nothing meanwhile. WireGuard's persistent
// keepalives don't do for that: one that arrives puts off the receiver's own, so that
// on an idle tunnel only one side speaks until the session is renewed after two
// minutes. With agents like this one on both sides each hears the other every
// 20 s at least. It reads the whole device, and may run beside Reconcile, but not
// beside itself.
func (c *Controller) Listen(ctx context.Context) error {
	if _, exists := c.cfg.Device.Index(); !exists {
		return nil
	}
	now := time.Now()
	seen := make(map[tunnel.Key]bool)
	_, err := c.cfg.Device.Contact(ctx, func(p tunnel.PeerStatus) tunnel.Contact {
		seen[p.PublicKey] = true
		idle := c.signs.note(now, &p)
		c.readPath(now, &p)
		c.paths.look(&p)
		if idle && inSession(now, p.LastHandshake) {
			return tunnel.ContactConfirm
		}
		return tunnel.ContactNone
	})
	if err == nil {
		c.signs.keep(seen)
	}
	return err
}

// readPath has the path to a peer judged by what was read of the device.
func (c *Controller) readPath(now time.Time, p *tunnel.PeerStatus) {
	c.paths.read(now, p, c.signs.heard(now, p))
}

// Heard returns when a peer, as its device has it at the time now, last gave a sign
// of life: a handshake, or bytes that were received since an earlier look. It is
// zero when there was none.
func (c *Controller) Heard(now time.Time, p *tunnel.PeerStatus) time.Time {
	return latest(c.signs.heard(now, p), p.LastHandshake)
}

// signs are what peers let hear of themselves.
type signs struct {
	mu    sync.Mutex
	peers map[tunnel.Key]sign
}

type sign struct {
	rx, tx int64
	at     time.Time // rx has grown; zero: not while we looked
}

// heard notes what was received from a peer, and returns when that last grew.
func (s *signs) heard(now time.Time, p *tunnel.PeerStatus) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.look(now, p, false).at
}

// note is heard, and tells whether the peer was sent nothing since the last note.
func (s *signs) note(now time.Time, p *tunnel.PeerStatus) (idle bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before, known := s.peers[p.PublicKey]
	after := s.look(now, p, true)
	after.tx = p.TxBytes
	s.peers[p.PublicKey] = after
	return known && before.tx == p.TxBytes
}

// look updates what was received. Readings that aren't the latest, as others than the
// one that notes may have, set nothing back. The caller holds s.mu.
func (s *signs) look(now time.Time, p *tunnel.PeerStatus, latest bool) sign {
	if s.peers == nil {
		s.peers = map[tunnel.Key]sign{}
	}
	is, known := s.peers[p.PublicKey]
	if known && p.RxBytes > is.rx {
		is.at = now
	}
	if latest || p.RxBytes > is.rx {
		is.rx = p.RxBytes // It begins anew with a peer that is added again.
	}
	if !known {
		is.tx = p.TxBytes
	}
	s.peers[p.PublicKey] = is
	return is
}

// keep forgets all but the given peers.
func (s *signs) keep(seen map[tunnel.Key]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key := range s.peers {
		if !seen[key] {
			delete(s.peers, key)
		}
	}
}
