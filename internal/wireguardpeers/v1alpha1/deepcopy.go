package v1alpha1

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
)

// DeepCopyObject implements runtime.Object.
func (o *WireguardPeers) DeepCopyObject() runtime.Object { return o.DeepCopy() }

// DeepCopy returns a copy that shares nothing with the object.
func (o *WireguardPeers) DeepCopy() *WireguardPeers {
	c := &WireguardPeers{TypeMeta: o.TypeMeta, Spec: o.Spec}
	o.DeepCopyInto(&c.ObjectMeta)
	c.Spec.PodCIDRs, c.Spec.Allocated = slices.Clone(o.Spec.PodCIDRs), slices.Clone(o.Spec.Allocated)
	c.Spec.Addresses = slices.Clone(o.Spec.Addresses)
	return c
}

// DeepCopyObject implements runtime.Object.
func (l *WireguardPeersList) DeepCopyObject() runtime.Object {
	c := &WireguardPeersList{TypeMeta: l.TypeMeta, Items: make([]WireguardPeers, len(l.Items))}
	l.DeepCopyInto(&c.ListMeta)
	for i := range l.Items {
		c.Items[i] = *l.Items[i].DeepCopy()
	}
	return c
}
