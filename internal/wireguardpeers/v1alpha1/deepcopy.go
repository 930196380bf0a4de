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
	c.Spec.Shards = slices.Clone(o.Spec.Shards)
	c.Spec.Peers, c.Spec.Nodes = slices.Clone(o.Spec.Peers), slices.Clone(o.Spec.Nodes)
	for i := range c.Spec.Peers {
		p := &c.Spec.Peers[i]
		p.PodCIDRs, p.Allocated = slices.Clone(p.PodCIDRs), slices.Clone(p.Allocated)
	}
	for i := range c.Spec.Nodes {
		n := &c.Spec.Nodes[i]
		n.Addresses, n.PodCIDRs = slices.Clone(n.Addresses), slices.Clone(n.PodCIDRs)
	}
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
