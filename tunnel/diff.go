package tunnel

import (
	"net/netip"
	"slices"
)

// Op is the kind of a [PeerChange].
type Op int

// The kinds of change, in the order in which they are applied: what a leaving
// peer has held is free before somebody else gets it.
const (
	OpRemove Op = iota
	OpUpdate
	OpAdd
)

// PeerChange is one step from the peers a device has to those it should have.
type PeerChange struct {
	// Op says what happens to the peer.
	Op Op
	// Peer is the peer as wanted; of a removed one, as it was.
	Peer Peer

	// The rest says which attributes an update writes. Attributes that aren't
	// named here are not sent to the device.

	SetEndpoint       bool
	SetKeepalive      bool
	ClearPresharedKey bool
	// AddAllowedIPs are prefixes to add to those that the peer has.
	AddAllowedIPs []netip.Prefix
	// ReplaceAllowedIPs writes all of Peer.AllowedIPs anew, because the peer
	// has some that it should not.
	ReplaceAllowedIPs bool
}

// Diff returns the smallest set of changes that turns the peers a device has
// into those wanted. Both lists are sorted by key, allowed IPs by prefix.
//
// The endpoint of a peer that roamed is left alone: it is written only when
// the wanted one isn't the one in published, which holds the endpoints that
// were applied last. Changes of one kind stay together, removals first.
func Diff(have []PeerStatus, want []Peer, published map[Key]netip.AddrPort) []PeerChange {
	var removed, updated, added []PeerChange
	for len(have) > 0 || len(want) > 0 {
		switch order(have, want) {
		case -1:
			removed = append(removed, PeerChange{Op: OpRemove, Peer: have[0].Peer})
			have = have[1:]
		case +1:
			added = append(added, PeerChange{Op: OpAdd, Peer: want[0]})
			want = want[1:]
		default:
			if change, differs := update(have[0], want[0], published); differs {
				updated = append(updated, change)
			}
			have, want = have[1:], want[1:]
		}
	}
	return slices.Concat(removed, updated, added)
}

// order compares the heads of two lists, of which one may be empty.
func order(have []PeerStatus, want []Peer) int {
	switch {
	case len(want) == 0:
		return -1
	case len(have) == 0:
		return +1
	}
	return have[0].PublicKey.Compare(want[0].PublicKey)
}

func update(have PeerStatus, want Peer, published map[Key]netip.AddrPort) (PeerChange, bool) {
	lost, gained := compare(have.AllowedIPs, want.AllowedIPs)
	change := PeerChange{
		Op:                OpUpdate,
		Peer:              want,
		SetEndpoint:       moved(have.Endpoint, want.Endpoint, published[want.PublicKey]),
		SetKeepalive:      have.Keepalive != want.Keepalive,
		ClearPresharedKey: have.PresharedKey,
		ReplaceAllowedIPs: lost,
	}
	if !lost {
		change.AddAllowedIPs = gained
	}
	differs := change.SetEndpoint || change.SetKeepalive || change.ClearPresharedKey || lost || len(gained) > 0
	return change, differs
}

// moved decides whether to write a peer's endpoint.
//
//	have        want        published
//	any         none        any         no: there is nothing to write
//	none        1.2.3.4     any         yes
//	1.2.3.4     1.2.3.4     any         no
//	9.9.9.9     1.2.3.4     1.2.3.4     no: the peer roamed, and knows better
//	9.9.9.9     1.2.3.4     other       yes: the peer says that it moved
func moved(have, want, published netip.AddrPort) bool {
	return want.IsValid() && have != want && (!have.IsValid() || published != want)
}

// compare merges two sorted lists of prefixes. It tells whether have holds
// some that want doesn't, and which ones want holds in addition.
func compare(have, want []netip.Prefix) (lost bool, gained []netip.Prefix) {
	for len(have) > 0 && len(want) > 0 {
		switch c := have[0].Compare(want[0]); {
		case c < 0:
			lost = true
			have = have[1:]
		case c > 0:
			gained = append(gained, want[0])
			want = want[1:]
		default:
			have, want = have[1:], want[1:]
		}
	}
	return lost || len(have) > 0, append(gained, want...)
}
