package tunnel

import (
	"net/netip"
	"slices"
)

// Op is the kind of a [PeerChange].
type Op int

// The kinds of change, in the order in which they are applied. Adding an allowed IP to a
// peer moves it atomically from the peer that has it, so additions come before removals.
const (
	OpUpdate Op = iota
	OpAdd
	// OpFree removes allowed IPs that no peer shall have.
	OpFree
	OpRemove
)

// PeerChange is a change of a device's peers.
type PeerChange struct {
	Op Op
	// Peer is the peer as wanted; as it was, for OpRemove. For OpFree it has only the
	// allowed IPs.
	Peer Peer

	// The attributes that OpUpdate writes.

	SetEndpoint       bool
	SetKeepalive      bool
	ClearPresharedKey bool
	// AddAllowedIPs are prefixes to add to those that the peer has.
	AddAllowedIPs []netip.Prefix
}

// Diff returns the smallest set of changes from the peers a device has to those wanted.
// Both lists are sorted by key, allowed IPs by prefix.
//
// An allowed IP that stays or moves is at some peer all the time:
//
//	had by    wanted for  change
//	-         A           added to A
//	A         A           none
//	A         B           added to B
//	A         -           freed, unless A is removed, which frees it
//
// The endpoint of a peer that roamed is retained: the wanted one is written only if it
// differs from that in published, the endpoints that were last applied. Changes are sorted
// by Op.
func Diff(have []PeerStatus, want []Peer, published map[Key]netip.AddrPort) []PeerChange {
	var updated, added, freed, removed []PeerChange
	var lost []netip.Prefix
	for len(have) > 0 || len(want) > 0 {
		switch order(have, want) {
		case -1:
			removed = append(removed, PeerChange{Op: OpRemove, Peer: have[0].Peer})
			have = have[1:]
		case +1:
			added = append(added, PeerChange{Op: OpAdd, Peer: want[0]})
			want = want[1:]
		default:
			change, differs, loses := update(have[0], want[0], published)
			if differs {
				updated = append(updated, change)
			}
			lost = append(lost, loses...)
			have, want = have[1:], want[1:]
		}
	}
	if lost = unclaimed(lost, updated, added); len(lost) > 0 {
		freed = []PeerChange{{Op: OpFree, Peer: Peer{AllowedIPs: lost}}}
	}
	return slices.Concat(updated, added, freed, removed)
}

// unclaimed returns the lost prefixes that no other peer gains, sorted.
func unclaimed(lost []netip.Prefix, updated, added []PeerChange) []netip.Prefix {
	if len(lost) == 0 {
		return nil
	}
	gained := make(map[netip.Prefix]struct{})
	for i := range updated {
		for _, p := range updated[i].AddAllowedIPs {
			gained[p] = struct{}{}
		}
	}
	for i := range added {
		for _, p := range added[i].Peer.AllowedIPs {
			gained[p] = struct{}{}
		}
	}
	lost = slices.DeleteFunc(lost, func(p netip.Prefix) bool {
		_, moves := gained[p]
		return moves
	})
	slices.SortFunc(lost, netip.Prefix.Compare)
	return lost
}

// order compares the first peers of two lists, of which one may be empty.
func order(have []PeerStatus, want []Peer) int {
	switch {
	case len(want) == 0:
		return -1
	case len(have) == 0:
		return +1
	}
	return have[0].PublicKey.Compare(want[0].PublicKey)
}

// update compares a peer with the wanted one. It returns the change, whether there is one,
// and the allowed IPs that the peer loses.
func update(have PeerStatus, want Peer, published map[Key]netip.AddrPort) (change PeerChange, differs bool, lost []netip.Prefix) {
	lost, gained := compare(have.AllowedIPs, want.AllowedIPs)
	change = PeerChange{
		Op:                OpUpdate,
		Peer:              want,
		SetEndpoint:       moved(have.Endpoint, want.Endpoint, published[want.PublicKey]),
		SetKeepalive:      have.Keepalive != want.Keepalive,
		ClearPresharedKey: have.PresharedKey,
		AddAllowedIPs:     gained,
	}
	differs = change.SetEndpoint || change.SetKeepalive || change.ClearPresharedKey || len(gained) > 0
	return change, differs, lost
}

// moved decides whether to write a peer's endpoint.
//
//	have        want        published
//	any         none        any         no
//	none        1.2.3.4     any         yes
//	1.2.3.4     1.2.3.4     any         no
//	9.9.9.9     1.2.3.4     1.2.3.4     no: the peer roamed
//	9.9.9.9     1.2.3.4     other       yes: the peer published a new endpoint
func moved(have, want, published netip.AddrPort) bool {
	return want.IsValid() && have != want && (!have.IsValid() || published != want)
}

// compare merges two sorted lists of prefixes. It returns those only in have, and those
// only in want.
func compare(have, want []netip.Prefix) (lost, gained []netip.Prefix) {
	for len(have) > 0 && len(want) > 0 {
		switch c := have[0].Compare(want[0]); {
		case c < 0:
			lost = append(lost, have[0])
			have = have[1:]
		case c > 0:
			gained = append(gained, want[0])
			want = want[1:]
		default:
			have, want = have[1:], want[1:]
		}
	}
	return append(lost, have...), append(gained, want...)
}
