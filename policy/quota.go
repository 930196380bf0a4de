package policy

import "cmp"

// quota counts the sets and addresses that a remote has in the local cluster, or that are being
// written. The bounds of its rules are never exceeded: a set takes what it needs before it is
// written, and gives back what it has lost after that is written. A namespace has half of each at
// most, so that a tenant doesn't take all of them. It isn't safe for concurrent use.
type quota struct {
	maxSets, maxAddresses int

	granted    map[Identity]int // numbers of addresses
	addresses  int              // granted to all sets
	namespaces map[string]usage
	// short are sets that have fewer addresses than they need, by the bound and their namespace.
	short map[Reason]map[string]map[Identity]struct{}
}

// usage is what the sets of a namespace have.
type usage struct{ sets, addresses int }

func newQuota(r *Rules) quota {
	return quota{
		maxSets: cmp.Or(r.MaxSets, DefaultMaxSets), maxAddresses: cmp.Or(r.MaxAddresses, DefaultMaxAddresses),
		granted: map[Identity]int{}, namespaces: map[string]usage{}, short: map[Reason]map[string]map[Identity]struct{}{},
	}
}

// free returns what is free for a namespace.
func (q *quota) free(namespace string) usage {
	has := q.namespaces[namespace]
	return usage{
		sets:      min(q.maxSets-len(q.granted), (q.maxSets+1)/2-has.sets),
		addresses: min(q.maxAddresses-q.addresses, (q.maxAddresses+1)/2-has.addresses),
	}
}

// grant replaces the number of addresses that a set has; 0: it isn't one any more.
func (q *quota) grant(id Identity, addresses int) {
	had, known := q.granted[id]
	of := q.namespaces[id.Namespace]
	of.sets += b2i(addresses > 0) - b2i(known)
	of.addresses += addresses - had
	q.addresses += addresses - had
	if q.granted[id] = addresses; addresses == 0 {
		delete(q.granted, id)
	}
	if q.namespaces[id.Namespace] = of; of == (usage{}) {
		delete(q.namespaces, id.Namespace)
	}
}

// take returns how many of the addresses that a set needs it may have.
func (q *quota) take(id Identity, needed int) int {
	q.served(ReasonTooManySets, id)
	q.served(ReasonTooManyAddresses, id)
	has, known := q.granted[id]
	free := q.free(id.Namespace)
	if needed > 0 && !known && free.sets <= 0 {
		q.lacks(ReasonTooManySets, id)
		return 0
	}
	if more := min(needed-has, free.addresses); more > 0 {
		has += more
		q.grant(id, has)
	}
	if has < needed {
		q.lacks(ReasonTooManyAddresses, id)
	}
	return min(has, needed)
}

func (q *quota) lacks(reason Reason, id Identity) {
	if q.short[reason] == nil {
		q.short[reason] = map[string]map[Identity]struct{}{}
	}
	put(q.short[reason], id.Namespace, id)
}

func (q *quota) served(reason Reason, id Identity) {
	if drop(q.short[reason], id.Namespace, id); len(q.short[reason]) == 0 {
		delete(q.short, reason)
	}
}

// give reduces what a set has to a number of addresses that has been written, and returns other
// sets for which there may be room now.
func (q *quota) give(id Identity, written int) (next []Identity) {
	if has, known := q.granted[id]; known && written < has {
		q.grant(id, written)
	}
	for reason, namespaces := range q.short {
		for namespace, waiting := range namespaces {
			free := q.free(namespace)
			most := free.addresses
			if reason == ReasonTooManySets {
				most = min(most, free.sets)
			}
			for other := range waiting {
				if most--; most < 0 {
					break
				}
				q.served(reason, other)
				next = append(next, other)
			}
		}
	}
	return next
}

// waits reports whether a set has no room.
func (q *quota) waits(id Identity) bool {
	_, sets := q.short[ReasonTooManySets][id.Namespace][id]
	return sets
}
