// Package pods determines the pod prefixes of this node from where the cluster's network
// plugin stores them.
//
//	source        stored in                                       permissions
//	node          podCIDRs of the node's specification            none
//	calico        BlockAffinities of the node, addresses of its   list, watch blockaffinities,
//	              pods and tunnels outside of them                pods
//	cilium        the node's CiliumNode                           list, watch ciliumnodes
//	ovn           the node's annotation k8s.ovn.org/node-subnets  none
//	pods          addresses of the node's pods                    list, watch pods
//	prefixes      the setting itself                              none
package pods

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/ipam"
)

// Aggregate returns the fewest prefixes that cover exactly the addresses, sorted.
func Aggregate(addrs []netip.Addr) []netip.Prefix {
	sorted := slices.Clone(addrs)
	slices.SortFunc(sorted, netip.Addr.Compare)
	var all []netip.Prefix
	for _, a := range slices.Compact(sorted) {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
		// Merge two halves; the result may be half of a larger prefix.
		for len(all) > 1 {
			low, high := all[len(all)-2], all[len(all)-1]
			whole := netip.PrefixFrom(low.Addr(), low.Bits()-1).Masked()
			if low.Bits() != high.Bits() || low.Bits() == 0 || !whole.Contains(high.Addr()) || whole.Addr() != low.Addr() {
				break
			}
			all = append(all[:len(all)-2], whole)
		}
	}
	return all
}

// Beside returns the prefixes, and the addresses outside of all of them as single-address
// prefixes, sorted.
func Beside(prefixes []netip.Prefix, addrs []netip.Addr) []netip.Prefix {
	all := slices.Clone(prefixes)
	for _, a := range addrs {
		if !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return ipam.Sorted(all)
}

// Pod is a pod trimmed to its addresses.
type Pod struct{ Addrs []netip.Addr }

// Trim trims a pod; false for pods on the host's network and finished ones, which have no
// addresses of their own.
func Trim(p *corev1.Pod) (Pod, bool) {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return Pod{}, false
	}
	var pod Pod
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			pod.Addrs = append(pod.Addrs, a.Unmap().WithZone(""))
		}
	}
	return pod, len(pod.Addrs) > 0
}

// Equal reports whether two states of a pod have the same addresses.
func (p Pod) Equal(o Pod) bool { return slices.Equal(p.Addrs, o.Addrs) }

// addresses returns the addresses of all pods.
func addresses(pods []Pod) (all []netip.Addr) {
	for _, p := range pods {
		all = append(all, p.Addrs...)
	}
	return all
}
