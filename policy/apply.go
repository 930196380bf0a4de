package policy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
)

// Intervals and bounds of writes.
const (
	// writeSpacing is the minimum interval between the starts of two writes of one set.
	// Changes meanwhile share a write.
	writeSpacing = 25 * time.Millisecond
	// writeTimeout bounds the writes of one set.
	writeTimeout = 15 * time.Second
	// Bounds of the back-off of one set.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
	// mostRounds is the maximum number of rounds of Ease: addresses leave an object only
	// when another one has them.
	mostRounds = 10
)

const (
	// fieldManager is ours in metadata.managedFields.
	fieldManager = "semaphore-policy"
	// fieldValidation saves the API server the search for unknown fields.
	fieldValidation = metav1.FieldValidationIgnore
)

// Verbs of writes, in metrics.
const (
	verbCreate = "create"
	verbPatch  = "patch"
	verbDelete = "delete"
)

// apply is the keep.Apply of a set.
func (c *Controller) apply(ctx context.Context, id Identity) error {
	if !c.known.Load() {
		return nil
	}
	r := c.remotes[id.Cluster]
	if r == nil {
		return c.removeStray(ctx, id)
	}
	for range mostRounds {
		have, want, err := r.state(id)
		now, eased := Ease(have, want)
		changes := Diff(have, now)
		if len(changes) == 0 {
			return err
		}
		errs := []error{err}
		for _, change := range changes {
			bytes, err := c.change(ctx, id.Cluster, change)
			r.pace.wrote(id, bytes)
			errs = append(errs, err)
		}
		if err := errors.Join(errs...); err != nil || !eased {
			return err
		}
	}
	return fmt.Errorf("network set %v: not converged after %d rounds", id, mostRounds)
}

// change makes one change, and returns the approximate number of bytes that it stored.
func (c *Controller) change(ctx context.Context, cluster string, change Change) (bytes int, err error) {
	client, err := c.Calico.Sets(ctx)
	if err != nil {
		return 0, err
	}
	var verb string
	switch {
	case change.Want == nil:
		verb, err = verbDelete, c.delete(ctx, client, change.Have)
	case change.Have == nil:
		verb, bytes = verbCreate, sizeOf(change.Want)
		err = c.create(ctx, client, change.Want)
	default:
		verb, bytes = verbPatch, sizeOf(change.Want)
		err = c.patch(ctx, client, change.Have, change.Want)
	}
	c.Metrics.wrote(cluster, verb, err)
	return bytes, err
}

func (c *Controller) create(ctx context.Context, client SetClient, want *Object) error {
	set, err := client.Create(ctx, c.Labels.manifest(want), metav1.CreateOptions{FieldManager: fieldManager, FieldValidation: fieldValidation})
	switch {
	case apierrors.IsAlreadyExists(err):
		return c.reread(ctx, client, &Observed{Object: *want}, err)
	case apierrors.IsNotFound(err):
		c.Calico.Forget()
		return fmt.Errorf("%w anymore: %w", ErrNoCalico, err)
	case err != nil:
		return fmt.Errorf("create network set %s: %w", want.Name, err)
	}
	c.wrote(set)
	return nil
}

func (c *Controller) patch(ctx context.Context, client SetClient, have *Observed, want *Object) error {
	patch, err := c.Labels.patch(have, want)
	if err != nil {
		return err
	}
	set, err := client.Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager, FieldValidation: fieldValidation})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return c.reread(ctx, client, have, err)
	case err != nil:
		return fmt.Errorf("patch network set %s: %w", want.Name, err)
	}
	o := c.Labels.observe(set)
	if r := c.remotes[want.Identity.Cluster]; r != nil && o.matches(want) {
		r.patched(&o)
	}
	c.ledger.Wrote(&o)
	return nil
}

func (c *Controller) delete(ctx context.Context, client SetClient, have *Observed) error {
	uid := types.UID(have.UID)
	err := client.Delete(ctx, have.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &have.ResourceVersion},
	})
	switch {
	case apierrors.IsConflict(err):
		return c.reread(ctx, client, have, err)
	case err != nil && !apierrors.IsNotFound(err):
		return fmt.Errorf("delete network set %s: %w", have.Name, err)
	}
	c.ledger.Deleted(have)
	return nil
}

// reread updates the ledger with the current state of an object, and returns ErrOutdated.
func (c *Controller) reread(ctx context.Context, client SetClient, was *Observed, why error) error {
	set, err := client.Get(ctx, was.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		c.ledger.Deleted(was)
	case err != nil:
		return fmt.Errorf("read network set %s: %w", was.Name, err)
	default:
		c.wrote(set)
	}
	return fmt.Errorf("%w: %w", keep.ErrOutdated, why)
}

// wrote records the response to a write.
func (c *Controller) wrote(set *calico.GlobalNetworkSet) {
	o := c.Labels.observe(set)
	c.ledger.Wrote(&o)
}

// sizeOf returns the approximate size of an object in bytes.
func sizeOf(o *Object) int {
	const rest, v4, v6 = 500, 18, 32
	bytes := rest
	for _, addr := range o.Addrs {
		if addr.Is4() {
			bytes += v4
		} else {
			bytes += v6
		}
	}
	return bytes
}

// Bounds of the writes for one remote in bytes per second, after the initial ones: etcd keeps
// all versions of an object for some minutes. Sets of more than largeSet bytes share a bound
// of their own, so that they don't delay others.
const (
	bytesPerSecond = 1 << 20
	largeSet       = 16 << 10
)

// pace limits the rate of writes of a remote's sets by size. Written bytes are paid off at
// bytesPerSecond, and a set is written again when all bytes up to its last write are paid. So
// small sets that change occasionally never wait, and those that change constantly are
// written, in total, at the bound.
type pace struct {
	mu      sync.Mutex
	written map[Identity]int // bytes, by running calls of Apply
	paid    [2]time.Time     // when all bytes are paid, of small and large sets
}

func (p *pace) wrote(id Identity, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.written == nil {
		p.written = map[Identity]int{}
	}
	p.written[id] += bytes
}

// next returns the wait until a set may be written again, after an Apply; 0 if that wrote
// nothing.
func (p *pace) next(id Identity, now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	bytes, wrote := p.written[id]
	if !wrote {
		return 0
	}
	delete(p.written, id)
	paid := &p.paid[b2i(bytes > largeSet)]
	if paid.Before(now) {
		*paid = now
	}
	*paid = paid.Add(time.Duration(bytes) * time.Second / bytesPerSecond)
	return max(writeSpacing, paid.Sub(now))
}

// any reports whether a running Apply has written anything.
func (p *pace) any(id Identity) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, wrote := p.written[id]
	return wrote
}
