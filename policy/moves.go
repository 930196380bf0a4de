package policy

import (
	"net/netip"
	"slices"
	"time"
)

// holdLimit is the maximum time that an address is held while its new set can't be written.
const holdLimit = 5 * time.Second

// move is an address that moves from one set to another.
type move struct {
	addr     netip.Addr
	from, to Identity
	until    time.Time
}

// Held returns the addresses, sorted, that may stay in a set because they are moving to
// another one that doesn't have them yet, and when the first of these ends.
func (m *Members) Held(id Identity, now time.Time, holds func(Identity, netip.Addr) bool) (addrs []netip.Addr, until time.Time) {
	for v := range m.leaving[id] {
		if !now.Before(v.until) || holds(v.to, v.addr) {
			continue
		}
		addrs = append(addrs, v.addr)
		if until.IsZero() || v.until.Before(until) {
			until = v.until
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), until
}

// Arrived ends the moves of addresses that have arrived in a set.
func (m *Members) Arrived(id Identity, holds func(netip.Addr) bool) {
	for v := range m.coming[id] {
		if holds(v.addr) {
			m.end(v)
		}
	}
}

// move begins, continues and ends the moves of a pod's addresses.
func (m *Members) move(before, after *Pod, had, has []netip.Addr, now time.Time) {
	if before == nil {
		return
	}
	moves := m.moves[before]
	delete(m.moves, before)
	same := after != nil && before.UID == after.UID && before.UID != 0
	to := Identity{}
	if same {
		to = m.identity(after)
		if from := m.identity(before); from != to {
			for _, addr := range had {
				moves = append(moves, &move{addr: addr, from: from, until: now.Add(holdLimit)})
			}
		}
	}
	var on []*move
	for _, v := range moves {
		m.end(v)
		if !same || v.from == to || !slices.Contains(has, v.addr) || !now.Before(v.until) {
			continue
		}
		v.to = to
		put(m.leaving, v.from, v)
		put(m.coming, v.to, v)
		on = append(on, v)
	}
	if len(on) > 0 {
		m.moves[after] = on
	}
}

func put(index map[Identity]map[*move]struct{}, id Identity, v *move) {
	if index[id] == nil {
		index[id] = map[*move]struct{}{}
	}
	index[id][v] = struct{}{}
}

func take(index map[Identity]map[*move]struct{}, id Identity, v *move) {
	delete(index[id], v)
	if len(index[id]) == 0 {
		delete(index, id)
	}
}

// end ends a move.
func (m *Members) end(v *move) {
	take(m.leaving, v.from, v)
	take(m.coming, v.to, v)
	m.touch(v.from)
}
