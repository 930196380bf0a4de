package mirror

import (
	"fmt"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// quota counts what the local services have of one remote, within its bounds.
//
// A service takes what it needs while it is computed, if there is room, and gives back what it no
// longer needs. Services that exist are computed first after a start, so that they keep what they
// have. A ResourceQuota of the namespace would count the objects of all remotes together, so that
// one could take what another needs, and no addresses.
type quota struct {
	bounds, used Bounds
	granted      map[string]share  // by local service
	namespaces   map[string]Bounds // used, by namespace of the remote
	short        map[string]share  // what services lack, by local service
	// The same services by what they wait for, and by namespace.
	services, slices, addresses map[string]map[string]struct{}
}

// share is what one local service has of a remote, or lacks.
type share struct {
	Bounds
	namespace string
	of        origin.Key // its service there
	beyond    int        // slices beyond maxSlices, which don't wait for room
}

// maxSlices is the maximum number of slices of a service from one remote: 50,000 endpoints, as API
// servers make them. Those of other clusters are written in the same turn, and must not wait for
// thousands.
const maxSlices = 500

// mostNext is the maximum number of services that are computed again when there is room.
const mostNext = 64

func newQuota(bounds Bounds) quota {
	return quota{
		bounds: bounds, granted: map[string]share{}, namespaces: map[string]Bounds{}, short: map[string]share{},
		services: map[string]map[string]struct{}{}, slices: map[string]map[string]struct{}{}, addresses: map[string]map[string]struct{}{},
	}
}

// unlimited is the room where there is no bound.
const unlimited = 1 << 30

func room(bound, used int) int {
	if bound <= 0 {
		return unlimited
	}
	return max(0, bound-used)
}

// free returns what is free for a namespace. It has half of its remote's bounds at most, so that a
// tenant doesn't take all of them, and all cluster IPs that may be theirs.
func (q *quota) free(namespace string) Bounds {
	has := q.namespaces[namespace]
	of := func(bound, used, has int) int { return min(room(bound, used), room((bound+1)/2, has)) }
	return Bounds{
		Services:  of(q.bounds.Services, q.used.Services, has.Services),
		Slices:    of(q.bounds.Slices, q.used.Slices, has.Slices),
		Addresses: of(q.bounds.Addresses, q.used.Addresses, has.Addresses),
	}
}

// room returns how much a service for one of a namespace may have: what it has, and what is free.
func (q *quota) room(name, namespace string) Bounds {
	more := q.free(namespace)
	more.add(q.granted[name].Bounds, 1)
	return more
}

// full returns why there is no room for another Service of a namespace; empty: there is.
func (q *quota) full(namespace string) string {
	switch {
	case room(q.bounds.Services, q.used.Services) <= 0:
		return fmt.Sprintf("the maximum of %d services", q.bounds.Services)
	case q.free(namespace).Services <= 0:
		return fmt.Sprintf("the maximum of %d services of one namespace, half of all,", (q.bounds.Services+1)/2)
	}
	return ""
}

// grant replaces what a service has and lacks. It returns services for which there may be room now.
func (q *quota) grant(name string, has, lacks share) (next []string) {
	before := q.granted[name]
	lacked, lacking := q.short[name]
	q.count(before, -1)
	q.count(has, 1)
	if delete(q.granted, name); has.Bounds != (Bounds{}) {
		q.granted[name] = has
	}
	for _, waiting := range []map[string]map[string]struct{}{q.services, q.slices, q.addresses} {
		leave(waiting, lacked.namespace, name)
	}
	delete(q.short, name)
	if lacks.Services > 0 {
		join(q.services, lacks.namespace, name)
	} else {
		if lacks.Slices > 0 {
			join(q.slices, lacks.namespace, name)
		}
		if lacks.Addresses > 0 {
			join(q.addresses, lacks.namespace, name)
		}
	}
	if lacks.Services+lacks.Slices+lacks.Addresses+lacks.beyond > 0 {
		q.short[name] = lacks
	}
	if lacking || has.Services < before.Services || has.Slices < before.Slices || has.Addresses < before.Addresses {
		return q.next()
	}
	return nil
}

// add adds n times as much.
func (b *Bounds) add(more Bounds, n int) {
	b.Services += n * more.Services
	b.Slices += n * more.Slices
	b.Addresses += n * more.Addresses
}

func (q *quota) count(of share, n int) {
	q.used.add(of.Bounds, n)
	has := q.namespaces[of.namespace]
	has.add(of.Bounds, n)
	if q.namespaces[of.namespace] = has; has == (Bounds{}) {
		delete(q.namespaces, of.namespace)
	}
}

// next returns services for which there may be room, in random order, so that a remote can't choose
// them.
func (q *quota) next() (names []string) {
	pick := func(from map[string]map[string]struct{}, of func(Bounds) int) {
		free := room(of(q.bounds), of(q.used))
		for namespace, waiting := range from {
			if free <= 0 {
				return
			}
			most := min(free, of(q.free(namespace)), mostNext-len(names))
			for name := range waiting {
				if most--; most < 0 {
					break
				}
				free--
				names = append(names, name)
			}
		}
	}
	pick(q.slices, func(b Bounds) int { return b.Slices })
	pick(q.addresses, func(b Bounds) int { return b.Addresses })
	pick(q.services, func(b Bounds) int { return b.Services })
	return names
}

// over returns what is omitted because of the bounds; empty: nothing is.
func (q *quota) over() string {
	if len(q.short) == 0 {
		return ""
	}
	return fmt.Sprintf("%d services or more are omitted or incomplete: %d services, %d slices and %d addresses of at most %d (its _MAX_SERVICES or its share of SEMAPHORE_MIRROR_MAX_SERVICES), %d and %d, half of these for one namespace, and %d slices of one service",
		len(q.short), q.used.Services, q.used.Slices, q.used.Addresses, q.bounds.Services, q.bounds.Slices, q.bounds.Addresses, maxSlices)
}
