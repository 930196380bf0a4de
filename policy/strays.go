package policy

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
)

// strays are network sets with our mark of a cluster that isn't configured: as a rule
// a remote that has been taken out of the configuration. They go after a while, so
// that a slip of the configuration can be mended. Those whose labels name no cluster
// stay: whose they are isn't known.
type strays struct {
	since   time.Time // when the first one was seen
	objects map[string]Identity
}

// strayed takes in what became of an object of a cluster that isn't configured; the
// controller's lock is held.
func (c *Controller) strayed(ctx context.Context, change keep.Change[Observed], now time.Time) (touched []Identity) {
	of := func(o *Observed) (cluster string, stray bool) {
		if o == nil || !o.Owned || c.remotes[o.Identity.Cluster] != nil {
			return "", false
		}
		return o.Identity.Cluster, true
	}
	if cluster, stray := of(change.Before); stray && c.strays[cluster] != nil {
		delete(c.strays[cluster].objects, change.Name)
		if len(c.strays[cluster].objects) == 0 {
			delete(c.strays, cluster)
		}
	}
	if cluster, stray := of(change.After); stray {
		if c.strays[cluster] == nil {
			c.strays[cluster] = &strays{since: now, objects: map[string]Identity{}}
			c.Logger.WarnContext(ctx, "network sets of a cluster that is not configured", "remote", cluster, "removed", c.removes(cluster), "after", c.RemovalGrace)
		}
		c.strays[cluster].objects[change.Name] = change.After.Identity
		if c.removes(cluster) {
			touched = append(touched, change.After.Identity)
		}
	}
	return touched
}

// removes reports whether sets of a cluster that isn't configured are removed.
func (c *Controller) removes(cluster string) bool { return !c.KeepStrays && cluster != "" }

// removeStray removes what there is of a set of a cluster that isn't configured, when
// it is time.
func (c *Controller) removeStray(ctx context.Context, id Identity) error {
	c.mu.Lock()
	s := c.strays[id.Cluster]
	if s == nil || !c.removes(id.Cluster) {
		c.mu.Unlock()
		return nil
	}
	left := time.Until(s.since.Add(c.RemovalGrace))
	objects := maps.Clone(s.objects)
	c.mu.Unlock()
	if left > 0 {
		c.writeAfter(left, id)
		return nil
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		if o := c.ledger.Get(name); objects[name] == id && o != nil && o.Owned && o.Identity == id && !o.Deleting {
			_, err := c.change(ctx, id.Cluster, Change{Name: name, Have: o})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
