package policy

import (
	"context"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// strays are our network sets of a cluster that isn't configured, usually a remote that was
// removed from the configuration. They are removed after RemovalGrace, so that a mistake in
// the configuration can be fixed, or at once if the cluster left in order. Sets without a cluster label stay, as their owner is
// unknown.
type strays struct {
	since   time.Time // when the first one was observed
	objects map[string]Identity
}

// strayed processes a change of an object of a cluster that isn't configured. Callers hold
// mu.
func (c *Controller) strayed(ctx context.Context, change kube.Change[Observed], now time.Time) (touched []Identity) {
	of := func(o *Observed) (cluster string, stray bool) {
		if o == nil || !o.Owned || c.remotes[o.Identity.Cluster] != nil {
			return "", false
		}
		return o.Identity.Cluster, true
	}
	before, was := of(change.Before)
	cluster, is := of(change.After)
	if is {
		if c.strays[cluster] == nil {
			c.strays[cluster] = &strays{since: now, objects: map[string]Identity{}}
			c.Logger.WarnContext(ctx, "network sets of a cluster that is not configured", "remote", cluster, "removed", c.removes(cluster), "after", c.grace(cluster))
		}
		c.strays[cluster].objects[change.Key] = change.After.Identity
		if c.removes(cluster) {
			touched = append(touched, change.After.Identity)
		}
	}
	if was && c.strays[before] != nil && (!is || cluster != before) {
		delete(c.strays[before].objects, change.Key)
		if len(c.strays[before].objects) == 0 {
			delete(c.strays, before)
		}
	}
	return touched
}

// removes reports whether sets of a cluster that isn't configured are removed.
func (c *Controller) removes(cluster string) bool { return !c.KeepStrays && cluster != "" }

// grace returns the time until sets of a cluster that isn't configured are removed.
func (c *Controller) grace(cluster string) time.Duration {
	if slices.Contains(c.Departed, cluster) {
		return 0
	}
	return c.RemovalGrace
}

// removeStray removes the objects of a set of a cluster that isn't configured, after its
// grace.
func (c *Controller) removeStray(ctx context.Context, id Identity) error {
	c.mu.Lock()
	s := c.strays[id.Cluster]
	if s == nil || !c.removes(id.Cluster) {
		c.mu.Unlock()
		return nil
	}
	left := time.Until(s.since.Add(c.grace(id.Cluster)))
	var names []string
	for name, of := range s.objects {
		if of == id {
			names = append(names, name)
		}
	}
	c.mu.Unlock()
	if left > 0 {
		c.writeAfter(left, id)
		return nil
	}
	var changes []Change
	slices.Sort(names)
	for _, name := range names {
		if o := c.ledger.Get(name); o != nil && o.Owned && o.Identity == id && !o.Deleting {
			changes = append(changes, Change{Name: name, Have: o})
		}
	}
	_, err := c.changes(ctx, id, changes)
	return err
}
