package tunnel

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// recheck is the interval of comparing a device in full with its desired state. In between
// it is assumed to hold what was written.
const recheck = 30 * time.Second

// Bounds of a request. wgctrl would split larger ones, one peer per message; these also fit
// one netlink message, and a reader waits for one request at most.
const (
	requestPeers      = 32
	requestAllowedIPs = 256
)

// peerState reconciles a device's peers and caches what it has written, so that a small
// change is cheap on a large device: with 5,000 peers a full read is 2 MB of text.
//
// It isn't safe for concurrent use.
type peerState struct {
	name    string
	control controller
	now     func() time.Time

	// applied are the peers that were written, sorted.
	applied []Peer
	// published are the endpoints that were wanted when the peers were last written,
	// possibly by an earlier process.
	published map[Key]netip.AddrPort
	// verified is when the device was last read in full; zero: read it next time.
	verified time.Time
}

// invalidate makes the next call compare the device in full.
func (s *peerState) invalidate() { s.verified = time.Time{} }

// configure applies normalized peers. After an error the device may have any mix of the old
// and the new peers; the next call reads it.
func (s *peerState) configure(ctx context.Context, want []Peer) (Changes, error) {
	verified := s.verified
	have, full, err := s.have()
	if err != nil {
		return Changes{}, err
	}
	changes := Diff(have, want, s.published)
	done := Changes{Repaired: !verified.IsZero() && len(changes) > 0 && slices.EqualFunc(s.applied, want, Peer.equal)}
	if full {
		verified = s.now()
	}
	s.invalidate()
	taking := slices.IndexFunc(changes, func(c PeerChange) bool { return c.Op >= OpFree })
	if taking < 0 {
		taking = len(changes)
	}
	// A failed addition doesn't hold up removals.
	given := s.write(ctx, changes[:taking], &done)
	if err := errors.Join(given, s.write(ctx, changes[taking:], &done)); err != nil {
		return done, err
	}
	s.applied = want
	s.updatePublished(want)
	s.verified = verified
	return done, nil
}

// write sends changes to the device, up to the first request that fails.
func (s *peerState) write(ctx context.Context, changes []PeerChange, done *Changes) error {
	for batch := range batches(changes) {
		if err := ctx.Err(); err != nil {
			return err
		}
		cfg := wgtypes.Config{Peers: make([]wgtypes.PeerConfig, 0, len(batch))}
		for _, change := range batch {
			cfg.Peers = append(cfg.Peers, change.configs()...)
		}
		if err := s.control.ConfigureDevice(s.name, cfg); err != nil {
			return fmt.Errorf("write %d peers: %w", len(batch), err)
		}
		for _, change := range batch {
			s.record(change, done)
		}
	}
	return nil
}

// have returns the device's peers, from the cache while that is valid.
func (s *peerState) have() (peers []PeerStatus, full bool, err error) {
	if !s.verified.IsZero() && s.now().Sub(s.verified) < recheck {
		peers = make([]PeerStatus, len(s.applied))
		for i, p := range s.applied {
			peers[i].Peer = p
		}
		return peers, false, nil
	}
	device, err := s.control.Device(s.name)
	if err != nil {
		return nil, false, fmt.Errorf("read peers: %w", err)
	}
	return peersOf(device), true, nil
}

// record records a change that was written.
func (s *peerState) record(change PeerChange, done *Changes) {
	key := change.Peer.PublicKey
	switch change.Op {
	case OpRemove:
		done.Removed++
		delete(s.published, key)
		return
	case OpUpdate, OpFree:
		done.Updated++
	case OpAdd:
		done.Added++
	}
	if change.SetEndpoint || change.Op == OpAdd {
		s.published[key] = change.Peer.Endpoint
	}
}

// updatePublished makes published hold exactly the wanted peers' endpoints.
func (s *peerState) updatePublished(want []Peer) {
	for _, p := range want {
		// A peer that has to send first has no endpoint for a while.
		if p.Endpoint.IsValid() && s.published[p.PublicKey] != p.Endpoint {
			s.published[p.PublicKey] = p.Endpoint
		}
	}
	if len(s.published) == len(want) {
		return
	}
	kept := make(map[Key]bool, len(want))
	for _, p := range want {
		kept[p.PublicKey] = true
	}
	maps.DeleteFunc(s.published, func(key Key, _ netip.AddrPort) bool { return !kept[key] })
}

// size returns the number of peers and allowed IPs of the change in a request.
func (c PeerChange) size() (peers, ips int) {
	switch c.Op {
	case OpRemove:
		return 1, 0
	case OpUpdate:
		return 1, len(c.AddAllowedIPs)
	case OpFree:
		return 2, len(c.Peer.AllowedIPs)
	}
	return 1, len(c.Peer.AllowedIPs)
}

// batches splits the changes into requests, in order.
func batches(changes []PeerChange) iter.Seq[[]PeerChange] {
	return func(yield func([]PeerChange) bool) {
		for len(changes) > 0 {
			n, peers, ips := 0, 0, 0
			for n < len(changes) {
				morePeers, moreIPs := changes[n].size()
				peers, ips = peers+morePeers, ips+moreIPs
				if n > 0 && (peers > requestPeers || ips > requestAllowedIPs) {
					break
				}
				n++
			}
			if !yield(changes[:n]) {
				return
			}
			changes = changes[n:]
		}
	}
}
