package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// fieldManager is ours in metadata.managedFields.
const fieldManager = "semaphore-relay"

// Verbs of writes, in metrics.
const (
	verbCreate = "create"
	verbUpdate = "update"
	verbDelete = "delete"
)

// apply is the keep.Apply of an object. One that isn't due is added again by the write of the count
// after which it is.
func (c *Controller) apply(ctx context.Context, key Key) error {
	if !c.known.Load() {
		return nil
	}
	set, have := c.set(key.Cluster), c.get(key)
	want, due := set.next(key.Cluster, key.Object, c.counted(key.Cluster))
	isCount := key == countOf(key.Cluster)
	if isCount && due && want == nil && have != nil {
		if err := c.forget(ctx, key.Cluster); err != nil {
			return err
		}
	}
	if !due || matches(have, want) {
		c.pace.Take(key)
	} else if waits, err := c.change(ctx, key, have, want); err != nil || waits {
		return err
	}
	if isCount {
		c.write(0, keysOf(key.Cluster, set.ready(c.counted(key.Cluster)))...)
	}
	return nil
}

// matches reports whether an object is as desired.
func matches(have *v1alpha1.WireguardPeers, want *v1alpha1.Spec) bool {
	if have == nil || want == nil {
		return have == nil && want == nil
	}
	return have.Labels[v1alpha1.ClusterLabel] == want.Cluster && have.Spec.Equal(want)
}

// change writes an object, unless others override its writes and the next one must wait.
func (c *Controller) change(ctx context.Context, key Key, have *v1alpha1.WireguardPeers, want *v1alpha1.Spec) (waits bool, err error) {
	_, past := c.term()
	var wanted uint64
	size := 0
	if want != nil {
		o := c.object(key, want)
		wanted, size = keep.Fingerprint([]any{o.Labels[v1alpha1.ClusterLabel], o.Spec}), sizeOf(o)
	}
	if wait := past.Wait(time.Now(), key, key.Object, wanted); wait > 0 {
		c.pace.Take(key)
		c.write(wait, key)
		return true, nil
	}
	if !c.pace.Take(key, pace.Write{Cluster: key.Cluster, Object: key.Object, Bytes: size})[0] {
		return false, fmt.Errorf("%s: %w", key.Object, keep.ErrWaits)
	}
	verb, err := c.put(ctx, key, have, want)
	c.Metrics.wrote(key.Cluster, verb, err)
	if err != nil {
		return false, err
	}
	stored := matches(c.get(key), want)
	past.Wrote(ctx, time.Now(), key, key.Object, wanted, stored)
	if !stored { // No event says that it is to be written again.
		c.write(keep.LongestWait, key)
	}
	return false, nil
}

// put creates, updates or deletes an object.
func (c *Controller) put(ctx context.Context, key Key, have *v1alpha1.WireguardPeers, want *v1alpha1.Spec) (verb string, err error) {
	client := c.Client.WireguardPeers(c.Namespace)
	var stored *v1alpha1.WireguardPeers
	switch {
	case want == nil:
		uid := have.UID
		verb = verbDelete
		err = client.Delete(ctx, key.Object, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &have.ResourceVersion}})
		if err == nil || apierrors.IsNotFound(err) {
			c.ledger.Deleted(have)
			return verb, nil
		}
	case have == nil:
		verb = verbCreate
		stored, err = client.Create(ctx, c.object(key, want), metav1.CreateOptions{FieldManager: fieldManager})
	default:
		verb = verbUpdate
		o := c.object(key, want)
		o.UID, o.ResourceVersion, o.ManagedFields = have.UID, have.ResourceVersion, kube.Untracked()
		stored, err = client.Update(ctx, o, metav1.UpdateOptions{FieldManager: fieldManager})
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && have != nil:
		return verb, c.reread(ctx, key, have, err)
	case err != nil:
		return verb, fmt.Errorf("%s %s: %w", verb, key.Object, err)
	}
	stored, _ = keepObject(stored)
	c.ledger.Wrote(stored)
	return verb, nil
}

// object returns the desired object.
func (c *Controller) object(key Key, want *v1alpha1.Spec) *v1alpha1.WireguardPeers {
	return &v1alpha1.WireguardPeers{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: v1alpha1.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: key.Object, Labels: map[string]string{v1alpha1.ClusterLabel: key.Cluster},
		},
		Spec: *want,
	}
}

// reread updates the ledger with the current state of an object, and returns ErrOutdated.
func (c *Controller) reread(ctx context.Context, key Key, was *v1alpha1.WireguardPeers, why error) error {
	o, err := c.Client.WireguardPeers(c.Namespace).Get(ctx, key.Object, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		if was != nil {
			c.ledger.Deleted(was)
		}
	case err != nil:
		return fmt.Errorf("read %s: %w", key.Object, err)
	default:
		o, _ = keepObject(o)
		c.ledger.Wrote(o)
	}
	return fmt.Errorf("%w: %w", keep.ErrOutdated, why)
}

// sizeOf returns the size of an object in bytes, as etcd has it.
func sizeOf(o *v1alpha1.WireguardPeers) int {
	const rest = 150           // UID, time of creation, generation
	text, _ := json.Marshal(o) // it can't be invalid JSON, either
	return rest + len(text)
}
