package policy

import (
	"context"
	"errors"
	"fmt"
	"time"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pace"
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

// write makes the changes of a set in their order, except for those that must wait because the
// last ones were undone: then it enqueues the set again. Those that wait for their turn make the
// error keep.ErrWaits, unless another change fails. A change that fails doesn't stop the others.
func (c *Controller) write(ctx context.Context, id Identity, have map[string]*Observed, changes []Change) (waits bool, err error) {
	changed := map[string]bool{}
	var due []Change
	var sizes []pace.Write
	for _, change := range changes {
		changed[change.Name] = true
		if wait := c.past.Wait(time.Now(), id, objectOf(change.Name), keep.Fingerprint(change.Want)); wait > 0 {
			waits = true
			c.enqueueAfter(wait, id)
			continue
		}
		due = append(due, change)
		sizes = append(sizes, pace.Write{Cluster: id.Cluster, Namespace: id.Namespace, Object: change.Name, Bytes: sizeOf(change.Want), Urgent: change.removes()})
	}
	for name := range have {
		if !changed[name] {
			c.removals.over(name)
		}
	}
	var errs []error
	later := false
	for i, granted := range c.pacer.Take(id, sizes...) {
		if !granted {
			later = true
			continue
		}
		client, err := c.Calico.Sets(ctx)
		if err != nil {
			return waits, err
		}
		w := writer{c: c, id: id, client: client}
		errs = append(errs, w.change(ctx, due[i]))
	}
	if err = errors.Join(errs...); err == nil && later { // A failure is tried again before that.
		err = keep.ErrWaits
	}
	return waits, err
}

// sizeOf returns the approximate size of an object in bytes; 0: it is to be deleted.
func sizeOf(o *Object) int {
	const rest, v4, v6 = 500, 18, 32
	if o == nil {
		return 0
	}
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

// writer makes the changes of a set.
type writer struct {
	c      *Controller
	id     Identity
	client SetClient
}

// change makes one change. An address that must be removed is removed even if no patch is
// admitted, because another pod may have it. Patches that remove have removalPatience, and so has a
// deletion: one that isn't answered leaves time for what is tried next.
//
//	| the patch                                   | then                           |
//	| ------------------------------------------- | ------------------------------ |
//	| is refused                                  | patch with managed fields      |
//	| is refused, adds and removes                | patch that only removes        |
//	| is refused, removes                         | delete and create the object   |
//	| fails otherwise, removes                    | the same after removalPatience |
//	| isn't one, as the object is to be deleted,  |                                |
//	| and the deletion fails                      | patch that removes all         |
//	| succeeds, and what it removes is stored     | it is reported                 |
func (w *writer) change(ctx context.Context, c Change) error {
	switch {
	case c.Want == nil:
		err := w.delete(ctx, c)
		if err == nil || errors.Is(err, keep.ErrOutdated) || len(c.Have.Addrs) == 0 && !c.Have.Ranges {
			return err
		}
		return errors.Join(err, w.patch(ctx, Change{c.Name, c.Have, &Object{Name: c.Name, Identity: c.Have.Identity}}))
	case c.Have == nil:
		return w.create(ctx, c)
	}
	if !c.removes() {
		return w.patch(ctx, c)
	}
	began := time.Now()
	patching, cancel := context.WithTimeout(ctx, removalPatience)
	defer cancel()
	err := w.patch(patching, c)
	if err == nil || errors.Is(err, keep.ErrOutdated) {
		return err
	}
	if !kube.Refused(err) {
		if !w.c.removals.failed(c.Name, began) {
			return err
		}
	} else if less := c.less(); len(less.Addrs) > 0 && len(less.Addrs) < len(c.Want.Addrs) && w.patch(patching, Change{c.Name, c.Have, less}) == nil {
		return err
	}
	if deleteErr := w.delete(ctx, Change{Name: c.Name, Have: c.Have}); deleteErr != nil {
		return errors.Join(err, deleteErr)
	}
	w.c.Logger.WarnContext(ctx, "network set deleted, because it can't be patched and has addresses that must be removed", "set", c.Name, "err", err)
	return w.create(ctx, Change{Name: c.Name, Want: c.Want})
}

// patch patches an object, once more with managed fields if that is refused, see Labels.patch.
func (w *writer) patch(ctx context.Context, c Change) error {
	err := w.patchOnce(ctx, c, false)
	if kube.Refused(err) {
		err = w.patchOnce(ctx, c, true)
	}
	return err
}

func (w *writer) patchOnce(ctx context.Context, c Change, tracked bool) error {
	patch, err := w.c.Labels.patch(c.Have, c.Want, tracked, w.c.Calico.API())
	if err != nil {
		return err
	}
	set, err := w.client.Patch(ctx, c.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager, FieldValidation: fieldValidation})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		err = w.reread(ctx, c.Have, err)
	case err != nil:
		err = fmt.Errorf("patch network set %s: %w", c.Name, err)
	}
	return w.wrote(ctx, verbPatch, c, set, err)
}

func (w *writer) create(ctx context.Context, c Change) error {
	w.c.owned.give(c.Name, w.id) // Another client may change its labels before the answer.
	set, err := w.client.Create(ctx, w.c.Labels.manifest(c.Want), metav1.CreateOptions{FieldManager: fieldManager, FieldValidation: fieldValidation})
	switch {
	case apierrors.IsAlreadyExists(err):
		err = w.reread(ctx, &Observed{Object: *c.Want}, err)
	case apierrors.IsNotFound(err):
		w.c.Calico.Forget()
		err = fmt.Errorf("%w anymore: %w", ErrNoCalico, err)
	case err != nil:
		err = fmt.Errorf("create network set %s: %w", c.Name, err)
	}
	if err != nil {
		w.c.owned.withdraw(c.Name, w.c.ledger.Get(c.Name))
	}
	return w.wrote(ctx, verbCreate, c, set, err)
}

func (w *writer) delete(ctx context.Context, c Change) error {
	ctx, cancel := context.WithTimeout(ctx, removalPatience)
	defer cancel()
	uid := types.UID(c.Have.UID)
	err := w.client.Delete(ctx, c.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &c.Have.ResourceVersion},
	})
	switch {
	case apierrors.IsConflict(err):
		err = w.reread(ctx, c.Have, err)
	case apierrors.IsNotFound(err):
		err = nil
	case err != nil:
		err = fmt.Errorf("delete network set %s: %w", c.Name, err)
	}
	return w.wrote(ctx, verbDelete, c, nil, err)
}

// wrote records the outcome of a write. set is the response; nil: the object is deleted.
func (w *writer) wrote(ctx context.Context, verb string, c Change, set *calico.GlobalNetworkSet, err error) error {
	w.c.Metrics.wrote(w.id.Cluster, verb, err)
	w.c.wrote.Store(w.id, nil)
	if err != nil {
		return err
	}
	stored := true
	if set == nil {
		w.c.ledger.Deleted(c.Have)
	} else {
		o := w.c.Labels.observe(set)
		stored = o.matches(c.Want)
		w.c.ledger.Wrote(&o)
		w.c.owned.give(c.Name, w.id)
	}
	w.c.past.Wrote(ctx, time.Now(), w.id, objectOf(c.Name), keep.Fingerprint(c.Want), stored)
	w.c.removals.over(c.Name)
	if !stored { // No event says that it is to be written again.
		w.c.enqueueAfter(keep.LongestWait, w.id)
	}
	return nil
}

// reread updates the ledger with the current state of an object, and returns ErrOutdated.
func (w *writer) reread(ctx context.Context, was *Observed, why error) error {
	set, err := w.client.Get(ctx, was.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		w.c.ledger.Deleted(was)
	case err != nil:
		return fmt.Errorf("read network set %s: %w", was.Name, err)
	default:
		o := w.c.Labels.observe(set)
		w.c.ledger.Wrote(&o)
	}
	return fmt.Errorf("%w: %w", keep.ErrOutdated, why)
}
