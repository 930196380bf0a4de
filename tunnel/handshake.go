package tunnel

import (
	"context"
	"fmt"
	"os"
	"slices"

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
)

// Contacts counts what [Device.Contact] did.
type Contacts struct{ Anew, Confirmed int }

// Contact reads the device and does with each of its peers what decide says, as
// far as Configure wanted the peer. When it returns an error some of it may have
// been done.
func (d *Device) Contact(ctx context.Context, decide func(PeerStatus) Contact) (Contacts, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.serving() {
		return Contacts{}, fmt.Errorf("contact peers of device %s: %w", d.cfg.Name, os.ErrNotExist)
	}
	done, err := d.peers.contact(ctx, decide)
	if err != nil {
		return done, fmt.Errorf("contact peers of device %s: %w", d.cfg.Name, err)
	}
	return done, nil
}

func (s *peerState) contact(ctx context.Context, decide func(PeerStatus) Contact) (done Contacts, err error) {
	device, err := s.control.Device(s.name)
	if err != nil {
		return done, fmt.Errorf("read peers: %w", err)
	}
	var changes [][2]wgtypes.PeerConfig
	for _, peer := range peersOf(device) {
		at, wanted := slices.BinarySearchFunc(s.applied, peer.PublicKey, func(p Peer, key Key) int { return p.PublicKey.Compare(key) })
		if !wanted {
			continue
		}
		switch decide(peer) {
		case ContactAnew:
			changes = append(changes, anew(s.applied[at]))
			done.Anew++
		case ContactConfirm:
			if spoke := !s.applied[at].Endpoint.IsValid() && peer.Endpoint.IsValid(); spoke || s.applied[at].Keepalive > 0 {
				changes = append(changes, confirm(s.applied[at]))
				done.Confirmed++
			}
		case ContactNone:
		}
	}
	// Both steps of a peer go into one request.
	for batch := range slices.Chunk(changes, requestPeers/2) {
		if err := ctx.Err(); err != nil {
			return done, err
		}
		cfg := wgtypes.Config{}
		for _, steps := range batch {
			cfg.Peers = append(cfg.Peers, steps[:]...)
		}
		if err := s.control.ConfigureDevice(s.name, cfg); err != nil {
			s.distrust()
			return done, fmt.Errorf("write %d peers: %w", len(batch), err)
		}
	}
	return done, nil
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
