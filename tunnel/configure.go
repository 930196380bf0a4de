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

// recheck is how long a device may go without being compared in full with
// what it should be. In between, we trust that it holds what we gave it.
const recheck = 30 * time.Second

// A request carries at most this many peers and allowed IPs. Larger ones would
// be split by wgctrl, one peer a message; these also fit one netlink message,
// and a reader waits for one request at most.
const (
	requestPeers      = 32
	requestAllowedIPs = 256
)

// peerState brings a device's peers to the wanted ones and remembers what it
// has written, so that a small change costs little on a large device: at 5,000
// peers a full reading is 2 MB of text.
//
// It isn't safe for concurrent use.
type peerState struct {
	name    string
	control controller
	now     func() time.Time

	// applied is what the device holds, sorted, as far as we wrote it.
	applied []Peer
	// published are the endpoints that were wanted when the peers were last
	// written, possibly by an earlier process.
	published map[Key]netip.AddrPort
	// verified is when the device was last read in full; zero when it has to
	// be read next time.
	verified time.Time
}

// distrust makes the next call compare the device in full.
func (s *peerState) distrust() { s.verified = time.Time{} }

// configure applies normalized peers. After an error the device is somewhere
// between the old and the new peers; the next call finds out where.
func (s *peerState) configure(ctx context.Context, want []Peer) (Changes, error) {
	verified := s.verified
	have, full, err := s.have()
	if err != nil {
		return Changes{}, err
	}
	if full {
		verified = s.now()
	}
	s.distrust()

	var done Changes
	changes := Diff(have, want, s.published)
	taking := slices.IndexFunc(changes, func(c PeerChange) bool { return c.Op >= OpFree })
	if taking < 0 {
		taking = len(changes)
	}
	// What can't be given doesn't hold up what is to be taken away.
	given := s.write(ctx, changes[:taking], &done)
	if err := errors.Join(given, s.write(ctx, changes[taking:], &done)); err != nil {
		return done, err
	}
	s.applied = want
	s.settle(want)
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
			s.note(change, done)
		}
	}
	return nil
}

// have returns the peers the device has, from memory where that can be trusted.
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

// note records one change that the device has taken.
func (s *peerState) note(change PeerChange, done *Changes) {
	key := change.Peer.PublicKey
	switch change.Op {
	case OpRemove:
		done.Removed++
		delete(s.published, key)
		return
	case OpFree:
		return
	case OpUpdate:
		done.Updated++
	case OpAdd:
		done.Added++
	}
	if change.SetEndpoint || change.Op == OpAdd {
		s.published[key] = change.Peer.Endpoint
	}
}

// settle makes published hold exactly the wanted peers' endpoints.
func (s *peerState) settle(want []Peer) {
	for _, p := range want {
		// One that has to speak first has none for a while.
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

// size returns how many peers and allowed IPs the change takes in a request.
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

// batches cuts the changes into requests, in order.
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
