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

// How sets are written.
const (
	// writeSpacing is the least time between the starts of two writes of one
	// set. What changes meanwhile is written at once.
	writeSpacing = 25 * time.Millisecond
	// writeTimeout bounds the writes of one set.
	writeTimeout = 15 * time.Second
	// Waits after failures of one set.
	firstRetry, lastRetry = 100 * time.Millisecond, 30 * time.Second
	// mostRounds is how often a set is compared again after writes, because addresses
	// leave one of its objects only when another one has them.
	mostRounds = 10
)

const (
	// fieldManager names us in the managed fields of objects.
	fieldManager = "semaphore-policy"
	// fieldValidation spares the API server looking for fields that it doesn't know.
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
		have, want, err := r.look(id)
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
	return fmt.Errorf("network set %v: still not right after %d rounds", id, mostRounds)
}

// change makes one change, and returns about how many bytes it made the API server
// store.
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
		return fmt.Errorf("%w any more: %w", ErrNoCalico, err)
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

// reread finds out what became of an object, so that the next look can decide anew.
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

// wrote notes the answer to a request.
func (c *Controller) wrote(set *calico.GlobalNetworkSet) {
	o := c.Labels.observe(set)
	c.ledger.Wrote(&o)
}

// sizeOf returns about how many bytes an object takes.
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

// Bounds of what one remote can have written, in bytes a second, once all of it has
// been: etcd keeps every version of an object for some minutes. Sets that take more
// than largeSet bytes at a time share a bound of their own, so that they don't hold up
// others.
const (
	bytesPerSecond = 1 << 20
	largeSet       = 16 << 10
)

// pace spaces the writes of a remote's sets by their size. What is written is paid off
// at bytesPerSecond. A set isn't written again before what was written until then has
// been paid; one that hasn't been written for that long is written at once. So small
// sets that change now and then never wait, and what changes all the time is written,
// all together, no faster than the bound.
type pace struct {
	mu      sync.Mutex
	written map[Identity]int // bytes, by an Apply that is running
	paid    [2]time.Time     // when all will be, of small and large sets
}

func (p *pace) wrote(id Identity, bytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.written == nil {
		p.written = map[Identity]int{}
	}
	p.written[id] += bytes
}

// next returns after how long a set may be written again, when an Apply of it has
// ended. One that wasn't written may be at once.
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

// any reports whether an Apply that is about to end wrote anything.
func (p *pace) any(id Identity) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, wrote := p.written[id]
	return wrote
}
