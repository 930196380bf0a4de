package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// removalPatience is the maximum time for which patches that remove addresses may fail for
// other reasons than a refusal, such as a webhook that doesn't answer.
const removalPatience = 5 * time.Second

// stuck is an object from which addresses must be removed.
type stuck struct {
	since, last time.Time // of the first and the last failed patch
	// added is what admission has added to the object when it was last created, or would have
	// been; nil: unknown.
	added *surplus
}

// surplus is what an object has beside what is desired.
type surplus struct {
	addrs     []netip.Addr // sorted
	ranges    []string     // sorted
	relabeled bool
}

// surplusOf returns what an object has beside want.
func surplusOf(o *Observed, want *Object) *surplus {
	return &surplus{missing(o.Addrs, want.Addrs), o.Ranges, o.Identity != want.Identity}
}

// and returns what two have in common.
func (r *surplus) and(o *surplus) *surplus {
	return &surplus{
		slices.DeleteFunc(slices.Clone(r.addrs), func(addr netip.Addr) bool { return !contains(o.addrs, addr) }),
		slices.DeleteFunc(slices.Clone(r.ranges), func(net string) bool { return !slices.Contains(o.ranges, net) }),
		r.relabeled && o.relabeled,
	}
}

func (r *surplus) equal(o *surplus) bool {
	return slices.Equal(r.addrs, o.addrs) && slices.Equal(r.ranges, o.ranges) && r.relabeled == o.relabeled
}

func (r *surplus) empty() bool { return r.equal(&surplus{}) }

// writer makes one change.
type writer struct {
	c      *Controller
	id     Identity
	client SetClient
	past   *keep.Overrides[Identity]
	write  keep.Write
	bytes  int // stored, approximately
}

func (w *writer) change(ctx context.Context, change Change) error {
	switch {
	case change.Want == nil:
		return w.delete(ctx, change.Have)
	case change.Have == nil:
		return w.create(ctx, change.Want)
	default:
		return w.put(ctx, change.Have, change.Want)
	}
}

// put patches an object. An address that must be removed is removed even if no patch is
// admitted, because another pod may have it.
//
//	| the patch                           | then                                        |
//	| ----------------------------------- | ------------------------------------------- |
//	| is refused                          | patch with managed fields, see Labels.patch |
//	| is refused, adds and removes        | patch that only removes                     |
//	| is refused, removes                 | delete and create the object                |
//	| fails for removalPatience, removes  | the same                                    |
//	| succeeds, what it removes stays     | the same, unless a new object has it, too   |
func (w *writer) put(ctx context.Context, have *Observed, want *Object) error {
	o, err := w.patch(ctx, have, want, false)
	if kube.Refused(err) {
		o, err = w.patch(ctx, have, want, true)
	}
	switch {
	case err == nil && stays(have, want, o).empty():
		w.c.unstick(want.Name)
		return nil
	case errors.Is(err, keep.ErrOutdated), !have.removes(want):
		return err
	case err == nil:
		left := stays(have, want, o)
		added, tryErr := w.additions(ctx, want)
		if added != nil && left.and(added).equal(left) {
			return nil
		}
		// The address is still admitted: unless it is deleted, the write has to be repeated.
		w.wrote(ctx, o.Sum, o)
		have, err = o, fmt.Errorf("patch network set %s: what it removes is in the response", want.Name)
		if tryErr != nil && !kube.Refused(tryErr) && !w.c.persists(want.Name, time.Now()) {
			return errors.Join(err, tryErr)
		}
	default:
		if less := keeps(have, want); kube.Refused(err) && len(less.Addrs) < len(want.Addrs) && len(less.Addrs) > 0 {
			if o, lessErr := w.patch(ctx, have, &less, true); lessErr == nil && stays(have, &less, o).empty() {
				w.c.unstick(want.Name)
				return err
			} else if lessErr == nil {
				have = o
			}
		}
		if !kube.Refused(err) && !w.c.persists(want.Name, time.Now()) {
			return err
		}
	}
	if deleteErr := w.delete(ctx, have); deleteErr != nil {
		return errors.Join(err, deleteErr)
	}
	w.c.Logger.WarnContext(ctx, "network set deleted, because it can't be patched and has addresses that must be removed", "set", want.Name, "err", err)
	return w.create(ctx, want)
}

// keeps returns the desired object without what would be added.
func keeps(have *Observed, want *Object) Object {
	less := *want
	less.Addrs = slices.DeleteFunc(slices.Clone(want.Addrs), func(addr netip.Addr) bool { return !contains(have.Addrs, addr) })
	return less
}

// stays returns what was to be removed and is in the response.
func stays(have *Observed, want *Object, response *Observed) *surplus {
	return surplusOf(have, want).and(surplusOf(response, want))
}

// additions returns what admission adds to a new object, as far as that is known: what it adds
// comes back when the object is deleted and created.
func (w *writer) additions(ctx context.Context, want *Object) (*surplus, error) {
	o, err := w.c.try(ctx, w.client, want)
	if err != nil {
		return w.c.added(want.Name), err
	}
	added := surplusOf(o, want)
	w.c.add(want.Name, added)
	return added, nil
}

func (w *writer) patch(ctx context.Context, have *Observed, want *Object, tracked bool) (*Observed, error) {
	o, err := w.c.patch(ctx, w.client, have, want, tracked)
	w.c.Metrics.wrote(w.id.Cluster, verbPatch, err)
	w.bytes += sizeOf(want)
	if err == nil {
		w.wrote(ctx, w.c.Labels.sumOf(want), o)
	}
	return o, err
}

func (w *writer) create(ctx context.Context, want *Object) error {
	o, err := w.c.create(ctx, w.client, want)
	w.c.Metrics.wrote(w.id.Cluster, verbCreate, err)
	w.bytes += sizeOf(want)
	if err != nil {
		return err
	}
	w.wrote(ctx, w.c.Labels.sumOf(want), o)
	if o.removes(want) {
		w.c.add(want.Name, surplusOf(o, want))
	}
	return nil
}

func (w *writer) delete(ctx context.Context, have *Observed) error {
	err := w.c.delete(ctx, w.client, have)
	w.c.Metrics.wrote(w.id.Cluster, verbDelete, err)
	if err != nil {
		return err
	}
	w.c.unstick(have.Name)
	w.wrote(ctx, 0, nil)
	return nil
}

// wrote records a response; nil: deleted.
func (w *writer) wrote(ctx context.Context, want uint64, o *Observed) {
	got := uint64(0)
	var fields []string
	if o != nil {
		got = o.Sum
	}
	if got != want {
		fields = []string{"metadata.labels or spec.nets"}
	}
	w.write.Want = want
	w.past.Wrote(ctx, w.id, time.Now(), &w.write, got, fields...)
	w.write.Have = got
}

// persists reports whether patches of an object have failed for removalPatience.
func (c *Controller) persists(name string, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stuck[name]
	if s == nil {
		s = &stuck{}
		c.stuck[name] = s
	}
	if now.Sub(s.last) > 2*lastRetry { // Of another removal.
		s.since = now
	}
	s.last = now
	return now.Sub(s.since) >= removalPatience
}

func (c *Controller) unstick(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.stuck, name)
}

// add records what admission adds to an object, and added returns it.
func (c *Controller) add(name string, added *surplus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stuck[name] = &stuck{added: added}
}

func (c *Controller) added(name string) *surplus {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.stuck[name]; s != nil {
		return s.added
	}
	return nil
}
