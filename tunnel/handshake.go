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
type Contact int

const (
	// ContactNone leaves the peer alone.
	ContactNone Contact = iota
	// ContactAnew removes the peer and adds it again. It loses what session it
	// has and what waits to be sent to it, and is sent an initiation at once:
	// WireGuard's own limit of one in 5 s (REKEY_TIMEOUT, section 6.1 of the
	// whitepaper) counts from the last one that the removed peer was sent.
	ContactAnew
	// ContactConfirm sends the peer a keepalive, where it has persistent ones, or had to
	// speak first and has.
	// A side that answered a handshake can't send before it has received a
	// packet in the new session.
	ContactConfirm
	// ContactVerify begins a handshake beside the session that the peer has, which goes on,
	// unless the device has sent a message of one within REKEY_TIMEOUT, 5 s. Only the
	// userspace backend can: on the kernel's, which has no request for it, this is
	// ContactAnew.
	ContactVerify
)

// Contacts counts what [Device.Contact] did.
type Contacts struct{ Anew, Confirmed, Verified int }

// Contact reads the device and does with each of its peers what decide says, as
// far as Configure wanted the peer. When it returns an error some of it may have
// been done. Configure isn't held up for longer than one request takes: with many peers
// that don't answer there is a lot to read and to do.
func (d *Device) Contact(ctx context.Context, decide func(PeerStatus) Contact) (Contacts, error) {
	d.mu.Lock()
	exists, verify := d.serving(), d.verifier()
	d.mu.Unlock()
	if !exists {
		return Contacts{}, fmt.Errorf("contact peers of device %s: %w", d.cfg.Name, os.ErrNotExist)
	}
	done, err := d.peers.contact(ctx, &d.mu, verify, decide)
	if err != nil {
		return done, fmt.Errorf("contact peers of device %s: %w", d.cfg.Name, err)
	}
	return done, nil
}

// verifier returns what does ContactVerify; nil: nothing can. The caller holds d.mu.
func (d *Device) verifier() func(context.Context, []Key) error {
	engine := d.engine
	if engine == nil || !engine.client.Handshakes {
		return nil
	}
	return func(ctx context.Context, peers []Key) error { return engine.handshake(ctx, d.cfg.Name, peers) }
}

// contact takes the lock for what it does with s. verify may be nil.
func (s *peerState) contact(ctx context.Context, mu sync.Locker, verify func(context.Context, []Key) error, decide func(PeerStatus) Contact) (done Contacts, err error) {
	mu.Lock()
	applied := s.applied
	mu.Unlock()
	device, err := s.control.Device(s.name)
	if err != nil {
		return done, fmt.Errorf("read peers: %w", err)
	}
	var changes []contacted
	var verified []Key
	for _, peer := range peersOf(device) {
		at, wanted := find(applied, peer.PublicKey)
		if !wanted {
			continue
		}
		what := decide(peer)
		if what == ContactVerify && verify == nil {
			what = ContactAnew
		}
		switch what {
		case ContactAnew:
			changes = append(changes, contacted{peer.PublicKey, what})
			done.Anew++
		case ContactVerify:
			verified = append(verified, peer.PublicKey)
			done.Verified++
		case ContactConfirm:
			if spoke := !applied[at].Endpoint.IsValid() && peer.Endpoint.IsValid(); spoke || applied[at].Keepalive > 0 {
				changes = append(changes, contacted{peer.PublicKey, what})
				done.Confirmed++
			}
		case ContactNone:
		}
	}
	for batch := range slices.Chunk(changes, requestPeers/2) {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		mu.Lock()
		err := s.carryOut(batch)
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
type contacted struct {
	key  Key
	what Contact
}

// carryOut does it in one request, both steps of a peer included, with peers as they are
// wanted by now.
func (s *peerState) carryOut(batch []contacted) error {
	cfg := wgtypes.Config{}
	for _, c := range batch {
		at, wanted := find(s.applied, c.key)
		if !wanted {
			continue
		}
		steps := confirm(s.applied[at])
		if c.what == ContactAnew {
			steps = anew(s.applied[at])
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
func anew(p Peer) [2]wgtypes.PeerConfig {
	return [2]wgtypes.PeerConfig{PeerChange{Op: OpRemove, Peer: p}.config(), PeerChange{Op: OpAdd, Peer: p}.config()}
}

// confirm switches the persistent keepalives of a peer off and on, or the reverse where
// it has none: both implementations send one at once when they are switched on.
func confirm(p Peer) [2]wgtypes.PeerConfig {
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
