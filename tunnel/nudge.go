package tunnel

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Nudge is an action on a peer that establishes or checks a session.
type Nudge int

const (
	// NudgeNone does nothing.
	NudgeNone Nudge = iota
	// NudgeReset removes the peer and adds it again. It loses its session and queued
	// packets, and is sent an initiation at once: WireGuard's own limit of one in 5 s
	// (REKEY_TIMEOUT, section 6.1 of the whitepaper) ends with the removed peer.
	NudgeReset
	// NudgeKeepalive sends the peer a keepalive, if it has persistent ones, or had to send
	// first and has done so. The responder of a handshake can't send before it has received
	// a packet in the new session.
	NudgeKeepalive
	// NudgeHandshake sends a handshake while the peer's session goes on, unless the device
	// has sent a handshake message within REKEY_TIMEOUT, 5 s. Only the userspace backend
	// supports it; with the kernel backend it is NudgeReset.
	NudgeHandshake
)

// Nudges counts the actions of [Device.Nudge].
type Nudges struct{ Resets, Keepalives, Handshakes int }

// Nudge reads the device and applies decide to each of its peers that was wanted by
// Configure. After an error some of the actions may have been done. It delays Configure by
// at most one request, although with many silent peers there is a lot to do.
func (d *Device) Nudge(ctx context.Context, decide func(PeerStatus) Nudge) (Nudges, error) {
	d.mu.Lock()
	exists, verify := d.serving(), d.handshaker()
	d.mu.Unlock()
	if !exists {
		return Nudges{}, fmt.Errorf("nudge peers of device %s: %w", d.cfg.Name, os.ErrNotExist)
	}
	done, err := d.peers.nudge(ctx, &d.mu, verify, decide)
	if err != nil {
		return done, fmt.Errorf("nudge peers of device %s: %w", d.cfg.Name, err)
	}
	return done, nil
}

// handshaker returns the function for NudgeHandshake; nil: not supported. The caller holds
// d.mu.
func (d *Device) handshaker() func(context.Context, []Key) error {
	engine := d.engine
	if engine == nil || !engine.client.Handshakes {
		return nil
	}
	return func(ctx context.Context, peers []Key) error { return engine.handshake(ctx, d.cfg.Name, peers) }
}

// nudge implements [Device.Nudge]. It locks mu for each access to s. verify may be nil.
func (s *peerState) nudge(ctx context.Context, mu sync.Locker, verify func(context.Context, []Key) error, decide func(PeerStatus) Nudge) (done Nudges, err error) {
	mu.Lock()
	applied := s.applied
	mu.Unlock()
	device, err := s.control.Device(s.name)
	if err != nil {
		return done, fmt.Errorf("read peers: %w", err)
	}
	var changes []peerNudge
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
			changes = append(changes, peerNudge{peer.PublicKey, what})
			done.Resets++
		case NudgeHandshake:
			verified = append(verified, peer.PublicKey)
			done.Handshakes++
		case NudgeKeepalive:
			if spoke := !applied[at].Endpoint.IsValid() && peer.Endpoint.IsValid(); spoke || applied[at].Keepalive > 0 {
				changes = append(changes, peerNudge{peer.PublicKey, what})
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
			return done, fmt.Errorf("send handshakes: %w", err)
		}
	}
	return done, nil
}

// peerNudge is an action on a peer.
type peerNudge struct {
	key Key
	how Nudge
}

// apply applies a batch in one request, with both steps of each peer, as peers are wanted by
// now.
func (s *peerState) apply(batch []peerNudge) error {
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
		s.invalidate()
	}
	return err
}

// find returns the index of a peer in a list sorted by key.
func find(peers []Peer, key Key) (at int, found bool) {
	return slices.BinarySearchFunc(peers, key, func(p Peer, key Key) int { return p.PublicKey.Compare(key) })
}

// resetConfigs removes a peer and adds it again.
func resetConfigs(p Peer) [2]wgtypes.PeerConfig {
	return [2]wgtypes.PeerConfig{PeerChange{Op: OpRemove, Peer: p}.config(), PeerChange{Op: OpAdd, Peer: p}.config()}
}

// keepaliveConfigs switches the persistent keepalives of a peer off and on, or the reverse
// where it has none: both implementations send one at once when they are switched on.
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
