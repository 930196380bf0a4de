package relay

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

const (
	// leasePeriod is the interval at which the Lease of a cluster is renewed, and
	// leaseDuration the time without contact that it states as the maximum.
	leasePeriod, leaseDuration = 10 * time.Second, 30 * time.Second
	// leaseTimeout bounds the requests of one renewal.
	leaseTimeout = 10 * time.Second
)

// newLease returns the loop that keeps the Lease of a cluster. Its renewTime is up to when
// the nodes of the cluster are current; without contact, or while nothing has been read since
// start, it isn't renewed.
func (c *Controller) newLease(s *source) *reconcile.Loop {
	var renewed time.Time
	return reconcile.NewLoop(reconcile.Config{
		Name: "lease " + v1alpha1.LeaseName(s.cluster), Trigger: s.renewal, Resync: leasePeriod,
		Logger: c.Logger.With("cluster", s.cluster),
		Reconcile: func(ctx context.Context) error {
			contact := s.nodes.LastContact()
			if _, _, known := s.set.size(); !known || !contact.After(renewed) {
				return nil
			}
			if err := c.renew(ctx, s.cluster, contact); err != nil {
				return err
			}
			renewed = contact
			return nil
		},
	})
}

func (c *Controller) renew(ctx context.Context, cluster string, contact time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	holder, seconds, at := fieldManager, int32(leaseDuration/time.Second), metav1.NewMicroTime(contact)
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.Namespace, Name: v1alpha1.LeaseName(cluster), Labels: map[string]string{v1alpha1.ClusterLabel: cluster},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &at},
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": lease.Labels}, "spec": lease.Spec})
	if err != nil {
		return err
	}
	leases := c.Client.Leases(c.Namespace)
	_, err = leases.Patch(ctx, lease.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: fieldManager})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{FieldManager: fieldManager})
	}
	if err != nil {
		return fmt.Errorf("renew lease %s: %w", lease.Name, err)
	}
	return nil
}

// forget deletes the Lease of a cluster that is no longer configured.
func (c *Controller) forget(ctx context.Context, cluster string) error {
	err := c.Client.Leases(c.Namespace).Delete(ctx, v1alpha1.LeaseName(cluster), metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete lease of a cluster that is no longer configured: %w", err)
	}
	return nil
}
