package policy

import "cmp"

// quota counts the sets and addresses that a remote has in the local cluster, or that are being
// written. The bounds of its rules are never exceeded: a set takes what it needs before it is
// written, and gives back what it has lost after that is written. It isn't safe for concurrent use.
type quota struct {
	maxSets, maxAddresses int

	granted   map[Identity]int // numbers of addresses
	addresses int              // granted to all sets
	// short are sets that have fewer addresses than they need, by the bound.
	short map[Reason]map[Identity]struct{}
}

func newQuota(r *Rules) quota {
	return quota{
		maxSets: cmp.Or(r.MaxSets, DefaultMaxSets), maxAddresses: cmp.Or(r.MaxAddresses, DefaultMaxAddresses),
		granted: map[Identity]int{}, short: map[Reason]map[Identity]struct{}{},
	}
}

// take returns how many of the addresses that a set needs it may have.
func (q *quota) take(id Identity, needed int) int {
	drop(q.short, ReasonTooManySets, id)
	drop(q.short, ReasonTooManyAddresses, id)
	has, known := q.granted[id]
	if needed > 0 && !known && len(q.granted) >= q.maxSets {
		put(q.short, ReasonTooManySets, id)
		return 0
	}
	if more := min(needed-has, q.maxAddresses-q.addresses); more > 0 {
		has += more
		q.addresses += more
		q.granted[id] = has
	}
	if has < needed {
		put(q.short, ReasonTooManyAddresses, id)
	}
	return min(has, needed)
}

// give reduces what a set has to a number of addresses that has been written, and returns other
// sets for which there may be room now.
func (q *quota) give(id Identity, written int) (next []Identity) {
	if has := q.granted[id]; written < has {
		q.addresses -= has - written
		q.granted[id] = written
	}
	if written == 0 {
		delete(q.granted, id)
	}
	sets, addresses := q.maxSets-len(q.granted), q.maxAddresses-q.addresses
	for _, w := range []struct {
		reason Reason
		room   int
	}{{ReasonTooManyAddresses, addresses}, {ReasonTooManySets, min(sets, addresses)}} {
		for other := range q.short[w.reason] {
			if w.room--; w.room < 0 {
				break
			}
			drop(q.short, w.reason, other)
			next = append(next, other)
		}
	}
	return next
}

// waits reports whether a set has no room.
func (q *quota) waits(id Identity) bool {
	_, sets := q.short[ReasonTooManySets][id]
	return sets
}
