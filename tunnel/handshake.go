package tunnel

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Contact is something that brings a new peer's session about.
type Nudge int

const (
	// ContactNone leaves the peer alone.
	NudgeNone Nudge = iota
	// ContactAnew removes the peer and adds it again. It loses what session it
	// has and what waits to be sent to it, and is sent an initiation at once:
	// WireGuard's own limit of one in 5 s (REKEY_TIMEOUT, section 6.1 of the
	// whitepaper) counts from the last one that the removed peer was sent.
	NudgeReset
	// ContactConfirm sends the peer a keepalive, where it has persistent ones, or had to
	// speak first and has.
	// A side that answered a handshake can't send before it has received a
	// packet in the new session.
	NudgeKeepalive
	// ContactVerify begins a handshake beside the session that the peer has, which goes on,
	// unless the device has sent a message of one within REKEY_TIMEOUT, 5 s. Only the
	// userspace backend can: on the kernel's, which has no request for it, this is
	// ContactAnew.
	NudgeHandshake
)

// Contacts counts what [Device.Contact] did.
type Nudges struct{ Resets, Keepalives, Handshakes int }

// Contact reads the device and does with each of its peers what decide says, as
// far as Configure wanted the peer. When it returns an error some of it may have
// been done. Configure isn't held up for longer than one request takes: with many peers
// that don't answer there is a lot to read and to do.
func (d *Device) Nudge(ctx context.Context, decide func(PeerStatus) Nudge) (Nudges, error) {
	d.mu.Lock()
	exists, verify := d.serving(), d.handshaker()
	d.mu.Unlock()
	if !exists {
		return Nudges{}, fmt.Errorf("contact peers of device %s: %w", d.cfg.Name, os.ErrNotExist)
	}
	done, err := d.peers.nudge(ctx, &d.mu, verify, decide)
	if err != nil {
		return done, fmt.Errorf("contact peers of device %s: %w", d.cfg.Name, err)
	}
	return done, nil
}

// verifier returns what does ContactVerify; nil: nothing can. The caller holds d.mu.
func (d *Device) handshaker() func(context.Context, []Key) error {
	engine := d.engine
	if engine == nil || !engine.client.Handshakes {
		return nil
	}
	return func(ctx context.Context, peers []Key) error { return engine.handshake(ctx, d.cfg.Name, peers) }
}

// contact takes the lock for what it does with s. verify may be nil.
func (s *peerState) nudge(ctx context.Context, mu sync.Locker, verify func(context.Context, []Key) error, decide func(PeerStatus) Nudge) (done Nudges, err error) {
	mu.Lock()
	applied := s.applied
	mu.Unlock()
	device, err := s.control.Device(s.name)
	if err != nil {
		return done, fmt.Errorf("read peers: %w", err)
	}
	var changes []nudge
	var verified []Key
	for _, peer := range peersOf(device) {
		at, wanted := find(applied, peer.PublicKey)
		if !wanted {
			continue
		}
		what := decide(peer)
		if what == NudgeHandshake && verify == nil {
			what = NudgeReset
		}
		switch what {
		case NudgeReset:
			changes = append(changes, nudge{peer.PublicKey, what})
			done.Resets++
		case NudgeHandshake:
			verified = append(verified, peer.PublicKey)
			done.Handshakes++
		case NudgeKeepalive:
			if spoke := !applied[at].Endpoint.IsValid() && peer.Endpoint.IsValid(); spoke || applied[at].Keepalive > 0 {
				changes = append(changes, nudge{peer.PublicKey, what})
				done.Keepalives++
			}
		case NudgeNone:
		}
	}
	for batch := range slices.Chunk(changes, requestPeers/2) {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		mu.Lock()
		err := s.apply(batch)
		mu.Unlock()
		if err != nil {
			return done, fmt.Errorf("write %d peers: %w", len(batch), err)
		}
	}
	if len(verified) > 0 {
		if err := verify(ctx, verified); err != nil {
			return done, fmt.Errorf("begin handshakes: %w", err)
		}
	}
	return done, nil
}

// contacted is a peer and what is to be done with it.
type nudge struct {
	key Key
	how Nudge
}

// carryOut does it in one request, both steps of a peer included, with peers as they are
// wanted by now.
func (s *peerState) apply(batch []nudge) error {
	cfg := wgtypes.Config{}
	for _, c := range batch {
		at, wanted := find(s.applied, c.key)
		if !wanted {
			continue
		}
		steps := keepaliveConfigs(s.applied[at])
		if c.how == NudgeReset {
			steps = resetConfigs(s.applied[at])
		}
		cfg.Peers = append(cfg.Peers, steps[:]...)
	}
	if len(cfg.Peers) == 0 {
		return nil
	}
	err := s.control.ConfigureDevice(s.name, cfg)
	if err != nil {
		s.distrust()
	}
	return err
}

// find returns where a peer is among those sorted by key.
func find(peers []Peer, key Key) (at int, found bool) {
	return slices.BinarySearchFunc(peers, key, func(p Peer, key Key) int { return p.PublicKey.Compare(key) })
}

// anew removes a peer and adds it as it was.
func resetConfigs(p Peer) [2]wgtypes.PeerConfig {
	return [2]wgtypes.PeerConfig{PeerChange{Op: OpRemove, Peer: p}.config(), PeerChange{Op: OpAdd, Peer: p}.config()}
}

// confirm switches the persistent keepalives of a peer off and on, or the reverse where
// it has none: both implementations send one at once when they are switched on.
func keepaliveConfigs(p Peer) [2]wgtypes.PeerConfig {
	other := p
	other.Keepalive = 0
	if p.Keepalive == 0 {
		other.Keepalive = maxKeepalive
	}
	return [2]wgtypes.PeerConfig{
		PeerChange{Op: OpUpdate, Peer: other, SetKeepalive: true}.config(),
		PeerChange{Op: OpUpdate, Peer: p, SetKeepalive: true}.config(),
	}
}
