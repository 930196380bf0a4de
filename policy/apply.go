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
	"k8s.io/apimachinery/pkg/util/validation"

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
		waits, writeErr := c.changes(ctx, id, Diff(have, now))
		if err = errors.Join(err, writeErr); err != nil || waits || !eased {
			return err
		}
	}
	return fmt.Errorf("network set %v: not converged after %d rounds", id, mostRounds)
}

// changes makes the changes of a set, except for those that others override and that must
// wait. Then it schedules the set again.
func (c *Controller) changes(ctx context.Context, id Identity, changes []Change) (waits bool, err error) {
	past := c.overrides()
	writes := make([]keep.Write, len(changes))
	for i := range changes {
		writes[i] = c.asWrite(&changes[i])
	}
	var client SetClient
	var errs []error
	again := time.Duration(0)
	for i, wait := range past.Review(ctx, id, time.Now(), writes) {
		if wait > 0 {
			if again == 0 || wait < again {
				again = wait
			}
			continue
		}
		if client == nil {
			if client, err = c.Calico.Sets(ctx); err != nil {
				return false, err
			}
		}
		w := &writer{c: c, id: id, client: client, past: past, write: writes[i]}
		errs = append(errs, w.change(ctx, changes[i]))
		if r := c.remotes[id.Cluster]; r != nil {
			r.pace.wrote(id, w.bytes)
		}
	}
	if again > 0 {
		c.writeAfter(again, id)
	}
	return again > 0, errors.Join(errs...)
}

// asWrite returns a change as Overrides identifies it.
func (c *Controller) asWrite(change *Change) keep.Write {
	w := keep.Write{Object: "network set " + change.Name, Urgent: change.Want == nil}
	if change.Have != nil {
		w.Have, w.By = change.Have.Sum, change.Have.By
	}
	if change.Want != nil {
		w.Want = c.Labels.sumOf(change.Want)
		w.Urgent = change.Have != nil && change.Have.removes(change.Want)
	}
	return w
}

func (c *Controller) create(ctx context.Context, client SetClient, want *Object) (*Observed, error) {
	set, err := client.Create(ctx, c.Labels.manifest(want), metav1.CreateOptions{FieldManager: fieldManager, FieldValidation: fieldValidation})
	switch {
	case apierrors.IsAlreadyExists(err):
		return nil, c.reread(ctx, client, &Observed{Object: *want}, err)
	case apierrors.IsNotFound(err):
		c.Calico.Forget()
		return nil, fmt.Errorf("%w anymore: %w", ErrNoCalico, err)
	case err != nil:
		return nil, fmt.Errorf("create network set %s: %w", want.Name, err)
	}
	return c.wrote(set), nil
}

// trial ends the name of an object of a dry run.
const trial = "-dry-run"

// try returns what admission would make of a new object with the labels and nets of want.
func (c *Controller) try(ctx context.Context, client SetClient, want *Object) (*Observed, error) {
	const longest = validation.DNS1123SubdomainMaxLength - len(trial)
	set := c.Labels.manifest(want)
	set.Name = set.Name[:min(len(set.Name), longest)] + trial // there is one with its name
	set, err := client.Create(ctx, set, metav1.CreateOptions{
		FieldManager: fieldManager, FieldValidation: fieldValidation, DryRun: []string{metav1.DryRunAll},
	})
	if err != nil {
		return nil, fmt.Errorf("create network set %s in a dry run: %w", want.Name, err)
	}
	o := c.Labels.observe(set)
	return &o, nil
}

// patch patches an object; see Labels.patch for tracked.
func (c *Controller) patch(ctx context.Context, client SetClient, have *Observed, want *Object, tracked bool) (*Observed, error) {
	patch, err := c.Labels.patch(have, want, tracked, c.Calico.API())
	if err != nil {
		return nil, err
	}
	set, err := client.Patch(ctx, want.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager, FieldValidation: fieldValidation})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, c.reread(ctx, client, have, err)
	case err != nil:
		return nil, fmt.Errorf("patch network set %s: %w", want.Name, err)
	}
	o := c.Labels.observe(set)
	if r := c.remotes[want.Identity.Cluster]; r != nil && o.matches(want) {
		r.patched(&o)
	}
	c.ledger.Wrote(&o)
	return &o, nil
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
func (c *Controller) wrote(set *calico.GlobalNetworkSet) *Observed {
	o := c.Labels.observe(set)
	c.ledger.Wrote(&o)
	return &o
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
