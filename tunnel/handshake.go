package tunnel

import (
	"context"
	"fmt"
	"os"
	"slices"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
)

// Rehandshake begins anew with those of the given peers that have never shaken
// hands since they were added, and returns how many these were. Peers that
// have are not touched, nor are those that Configure didn't want.
//
// Two sides that send their first initiation at the same moment may both answer
// the other's and refuse the answer to their own; so may a side whose initiation
// came before the other one knew it. WireGuard tries again after 5 s
// (REKEY_TIMEOUT, section 6.1 of the whitepaper), or, where an answer of its own
// was sent last, only when it misses one after 15 s. A peer that is removed and
// added has no such past, and is sent an initiation at once.
//
// Of the two sides only that with the lesser public key does anything here, so
// that they don't meet again.
func (d *Device) Rehandshake(ctx context.Context, peers []Key) (int, error) {
	mine := slices.DeleteFunc(slices.Clone(peers), func(key Key) bool { return d.PublicKey().Compare(key) > 0 })
	if len(mine) == 0 {
		return 0, nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.serving() {
		return 0, fmt.Errorf("shake hands on device %s: %w", d.cfg.Name, os.ErrNotExist)
	}
	begun, err := d.peers.rehandshake(ctx, mine)
	if err != nil {
		return begun, fmt.Errorf("shake hands on device %s: %w", d.cfg.Name, err)
	}
	return begun, nil
}

// rehandshake removes and adds peers that never shook hands.
func (s *peerState) rehandshake(ctx context.Context, peers []Key) (begun int, err error) {
	device, err := s.control.Device(s.name)
	if err != nil {
		return 0, fmt.Errorf("read peers: %w", err)
	}
	silent := map[Key]bool{}
	for i := range device.Peers {
		if device.Peers[i].LastHandshakeTime.IsZero() {
			silent[Key(device.Peers[i].PublicKey)] = true
		}
	}
	var changes []PeerChange
	for _, key := range peers {
		at, wanted := slices.BinarySearchFunc(s.applied, key, func(p Peer, key Key) int { return p.PublicKey.Compare(key) })
		if wanted && silent[key] {
			changes = append(changes, PeerChange{Op: OpRemove, Peer: s.applied[at]}, PeerChange{Op: OpAdd, Peer: s.applied[at]})
		}
	}
	// A request has an even number of changes: both of a peer or none.
	for batch := range slices.Chunk(changes, requestPeers) {
		if err := ctx.Err(); err != nil {
			return begun, err
		}
		cfg := wgtypes.Config{}
		for _, change := range batch {
			cfg.Peers = append(cfg.Peers, change.config())
		}
		if err := s.control.ConfigureDevice(s.name, cfg); err != nil {
			s.distrust()
			return begun, fmt.Errorf("write %d peers: %w", len(batch)/2, err)
		}
		begun += len(batch) / 2
	}
	return begun, nil
}
