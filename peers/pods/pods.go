// Package pods finds out which prefixes the pods of this node have, from wherever the
// cluster's network plugin keeps that.
//
//	source        where it is                                     right
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
)

// Names of sources. Any other setting is a list of prefixes.
const (
	Auto   = "auto"
	Node   = "node"
	Calico = "calico"
	Cilium = "cilium"
	OVN    = "ovn"
	Pods   = "pods"
)

// Aggregate returns the fewest prefixes that hold the addresses and no others, sorted.
func Aggregate(addrs []netip.Addr) []netip.Prefix {
	sorted := slices.Clone(addrs)
	slices.SortFunc(sorted, netip.Addr.Compare)
	var all []netip.Prefix
	for _, a := range slices.Compact(sorted) {
		all = append(all, netip.PrefixFrom(a, a.BitLen()))
		// Two halves are the whole, which may be one half of a larger one.
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

// Beside returns the prefixes, and those of the addresses that lie in none of them as
// prefixes of their own, sorted.
func Beside(prefixes []netip.Prefix, addrs []netip.Addr) []netip.Prefix {
	all := slices.Clone(prefixes)
	for _, a := range addrs {
		if !slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) }) {
			all = append(all, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return sorted(all)
}

// sorted returns prefixes sorted, and none twice.
func sorted(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}

// Pod is what counts of a pod.
type Pod struct{ Addrs []netip.Addr }

// Trim trims a pod. Those on the host's network have its addresses, and those that
// have finished none any more.
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

// Equal tells whether two states of a pod are the same to us.
func (p Pod) Equal(o Pod) bool { return slices.Equal(p.Addrs, o.Addrs) }

// addresses are those of all pods.
func addresses(pods []Pod) (all []netip.Addr) {
	for _, p := range pods {
		all = append(all, p.Addrs...)
	}
	return all
}

// parse reads a prefix, masked.
func parse(text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, false
	}
	return p.Masked(), true
}
