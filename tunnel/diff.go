package tunnel

import (
	"net/netip"
	"slices"
)

// Op is the kind of a [PeerChange].
type Op int

// The kinds of change, in the order in which they are applied. Who gets an allowed IP
// takes it from who has it, in one step that no packet falls into; so what moves is given
// before anything is taken away.
const (
	OpUpdate Op = iota
	OpAdd
	// OpFree takes allowed IPs that nobody gets from whoever has them.
	OpFree
	OpRemove
)

// PeerChange is one step from the peers a device has to those it should have.
type PeerChange struct {
	// Op says what happens to the peer.
	Op Op
	// Peer is the peer as wanted; of a removed one, as it was. Of OpFree it is
	// nobody, with the allowed IPs.
	Peer Peer

	// The rest says which attributes an update writes. Attributes that aren't
	// named here are not sent to the device.

	SetEndpoint       bool
	SetKeepalive      bool
	ClearPresharedKey bool
	// AddAllowedIPs are prefixes to add to those that the peer has.
	AddAllowedIPs []netip.Prefix
}

// Diff returns the smallest set of changes that turns the peers a device has
// into those wanted. Both lists are sorted by key, allowed IPs by prefix.
//
// An allowed IP that stays, and one that moves, is at a peer all the time:
//
//	had by    wanted for  what is sent
//	nobody    A           added to A
//	A         A           nothing
//	A         B           added to B
//	A         nobody      freed, unless A is removed, which frees it
//
// The endpoint of a peer that roamed is left alone: it is written only when
// the wanted one isn't the one in published, which holds the endpoints that
// were applied last. Changes of one kind stay together, in the order of Op.
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

// unclaimed returns those of the lost prefixes that no peer gets, sorted.
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

// update compares a peer with the wanted one. It returns what to write, whether that is
// anything, and the allowed IPs that aren't the peer's any more.
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
//	any         none        any         no: there is nothing to write
//	none        1.2.3.4     any         yes
//	1.2.3.4     1.2.3.4     any         no
//	9.9.9.9     1.2.3.4     1.2.3.4     no: the peer roamed, and knows better
//	9.9.9.9     1.2.3.4     other       yes: the peer says that it moved
func moved(have, want, published netip.AddrPort) bool {
	return want.IsValid() && have != want && (!have.IsValid() || published != want)
}

// compare merges two sorted lists of prefixes. It returns those that only have
// holds, and those that only want does.
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
