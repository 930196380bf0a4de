package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

const (
	// writeSpacing is the minimum interval between the starts of two reconciliations of one set
	// that write. Changes meanwhile share a write.
	writeSpacing = 25 * time.Millisecond
	// writeTimeout bounds one reconciliation.
	writeTimeout = 15 * time.Second
	// Bounds of the back-off of one set.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
	// mostRounds is the maximum number of rounds of writes in one reconciliation. An address that
	// moves between objects of a set takes two.
	mostRounds = 4
)

// reconcile is the keep.Apply of a set: it makes the set's objects what they must be.
func (c *Controller) reconcile(ctx context.Context, id Identity) error {
	if !c.known.Load() {
		return nil
	}
	r := c.remotes[id.Cluster]
	if r == nil {
		return c.removeUnconfigured(ctx, id)
	}
	for range mostRounds {
		have, want, err := r.compare(id)
		changes, again := Diff(have, want)
		waits, writeErr := c.write(ctx, id, have, changes)
		switch err = errors.Join(err, writeErr); {
		case err != nil, waits:
			return err
		case !again:
			r.written(id, want)
			return nil
		}
	}
	return fmt.Errorf("network set %v: not converged after %d rounds", id, mostRounds)
}

// removeUnconfigured removes the objects of a set of a cluster that isn't configured, usually a
// remote that was removed from the configuration. It does so after RemovalGrace, so that a mistake
// in the configuration can be mended, or at once if the cluster left in order. Objects without a
// cluster label stay, as their owner is unknown.
func (c *Controller) removeUnconfigured(ctx context.Context, id Identity) error {
	at, goes := c.removedAt(id.Cluster)
	if !goes {
		return nil
	}
	if left := time.Until(at); left > 0 {
		c.enqueueAfter(left, id)
		return nil
	}
	have := c.objects(id)
	changes, _ := Diff(have, nil)
	_, err := c.write(ctx, id, have, changes)
	return err
}

// objects returns the objects of a set.
func (c *Controller) objects(id Identity) map[string]*Observed {
	have := map[string]*Observed{}
	for _, name := range c.owned.objects(id) {
		if o := c.ledger.Get(name); o != nil && o.Owned {
			have[name] = o
		}
	}
	return have
}

// compare returns the existing and the desired objects of a set. Until the pods are synced these are
// only objects with what the configuration doesn't allow, so that all others stay.
func (r *remote) compare(id Identity) (have map[string]*Observed, want []Object, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	have = r.c.objects(id)
	if !r.synced && !r.stale {
		for name, o := range have {
			addrs := slices.DeleteFunc(slices.Clone(o.Addrs), func(addr netip.Addr) bool { return !r.pods.rules.inside(addr) })
			if !o.Ranges && len(addrs) == len(o.Addrs) {
				delete(have, name)
				continue
			}
			want = append(want, Object{Name: name, Identity: id, Addrs: addrs})
		}
		return have, want, nil
	}
	v := View{ID: id, Stale: r.stale, Have: have, Taken: func(name string) bool { return r.taken(id, name) }, Size: r.c.ShardSize}
	if !r.stale {
		v.Addrs = r.pods.addresses(id)
		v.Addrs = within(v.Addrs, r.take(id, len(v.Addrs)), have)
	}
	want, err = Desired(&v)
	for i := range want {
		name := want[i].Name
		if o := r.c.ledger.Get(name); have[name] == nil && o != nil {
			have[name] = o // one that isn't taken
		}
	}
	return have, want, err
}

// take takes room for the addresses of a set, at first for those of all existing objects, so that
// these keep their places. Callers hold mu.
func (r *remote) take(id Identity, needed int) int {
	reasons := len(r.quota.short)
	if !r.counted {
		r.counted = true
		held := map[Identity]int{}
		for name, of := range r.c.owned.all(func(cluster string) bool { return cluster == r.Rules.Cluster }) {
			if o := r.c.ledger.Get(name); o != nil {
				held[of] += len(o.Addrs)
			}
		}
		for of, n := range held {
			r.quota.take(of, n)
		}
	}
	n := r.quota.take(id, needed)
	if len(r.quota.short) != reasons {
		r.trigger.Fire() // to report it
	}
	return n
}

// taken reports whether a name is unavailable for a set: a foreign object has it, or one of
// another set. An object of ours whose set has no pods is adopted: another client has changed its
// labels. Callers hold mu.
func (r *remote) taken(id Identity, name string) bool {
	o := r.c.ledger.Get(name)
	if o == nil {
		return false
	}
	of, known := r.c.owned.of(name)
	if !known {
		of = o.Identity
	}
	return !o.Owned || of.Cluster != id.Cluster || of != id && r.pods.sets[of] != nil
}

// within returns at most n of the addresses, those of existing objects first.
func within(addrs []netip.Addr, n int, have map[string]*Observed) []netip.Addr {
	if len(addrs) <= n {
		return addrs
	}
	addrs = slices.Clone(addrs)
	slices.SortStableFunc(addrs, func(a, b netip.Addr) int { return b2i(holds(have, b)) - b2i(holds(have, a)) })
	addrs = addrs[:n]
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

// holds reports whether one of the objects has an address.
func holds(have map[string]*Observed, addr netip.Addr) bool {
	for _, o := range have {
		if contains(o.Addrs, addr) {
			return true
		}
	}
	return false
}

// written gives back what a set has lost, to sets that wait for room.
func (r *remote) written(id Identity, want []Object) {
	n := 0
	for i := range want {
		n += len(want[i].Addrs)
	}
	r.mu.Lock()
	var next []Identity
	if r.synced && !r.stale {
		next = r.quota.give(id, n)
	}
	r.mu.Unlock()
	r.c.enqueue(next...)
}
