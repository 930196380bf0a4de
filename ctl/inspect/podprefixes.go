package inspect

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// ovnSubnets is the annotation in which OVN-Kubernetes stores the prefixes of a node.
const ovnSubnets = "k8s.ovn.org/node-subnets"

// Values of Facts.PodPrefixes.
const (
	fromCalico = "calico"
	fromCilium = "cilium"
	fromPods   = "pods"
)

// readPodPrefixes finds from what agents must read the prefixes of pods, in the order in which they
// choose themselves (peers/pods.Choose):
//
//	OVN-Kubernetes' annotation                                      none
//	CiliumNodes with other prefixes than the nodes' podCIDRs        cilium
//	BlockAffinities of Calico's address management                  calico
//	CiliumNodes without prefixes, a node without podCIDRs, or
//	a pod of kube-system outside of the podCIDRs of its node        pods
func (f *Facts) readPodPrefixes(ctx context.Context, c *cli.Cluster) error {
	podCIDRs := map[string][]netip.Prefix{}
	lacking := false
	for _, n := range f.Nodes {
		if n.ovn {
			return nil
		}
		podCIDRs[n.Name] = n.Pods
		lacking = lacking || len(n.Pods) == 0 && n.Agentless() == ""
	}
	other, empty := false, false
	for name, prefixes := range f.cilium {
		if of, known := podCIDRs[name]; known {
			empty = empty || len(prefixes) == 0
			other = other || len(prefixes) > 0 && !slices.Equal(Compact(prefixes), Compact(of))
		}
	}
	if other {
		f.PodPrefixes = fromCilium
		return nil
	}
	for _, api := range kube.CalicoAPIs("auto") {
		blocks := api.WithResource("blockaffinities")
		if _, err := c.Resource(ctx, blocks); err != nil {
			continue // It isn't served.
		}
		err := cli.ListUntyped(ctx, c.Dynamic.Resource(blocks), metav1.ListOptions{Limit: 1}, func(*unstructured.Unstructured) error {
			f.PodPrefixes = fromCalico
			return cli.ErrEnough
		})
		if err != nil || f.PodPrefixes != "" {
			return err
		}
	}
	if empty || lacking {
		f.PodPrefixes = fromPods
		return nil
	}
	return cli.List(ctx, c.Client.CoreV1().Pods(metav1.NamespaceSystem), metav1.ListOptions{}, func(p *corev1.Pod) error {
		prefixes, known := podCIDRs[p.Spec.NodeName]
		ip, err := netip.ParseAddr(p.Status.PodIP)
		if !known || err != nil || p.Spec.HostNetwork || slices.ContainsFunc(prefixes, func(of netip.Prefix) bool { return of.Contains(ip) }) {
			return nil
		}
		f.PodPrefixes = fromPods
		return cli.ErrEnough
	})
}

// ciliumPrefixes returns the prefixes of a CiliumNode; none where addresses come from a cloud provider.
func ciliumPrefixes(o *unstructured.Unstructured) (all []netip.Prefix, err error) {
	cidrs, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "ipam", "podCIDRs")
	pools, _, _ := unstructured.NestedSlice(o.Object, "spec", "ipam", "pools", "allocated")
	for _, pool := range pools {
		fields, _ := pool.(map[string]any)
		of, _, _ := unstructured.NestedStringSlice(fields, "cidrs")
		cidrs = append(cidrs, of...)
	}
	if len(cidrs) > maxOfNode {
		return nil, tooMany(ciliumNodes.GroupResource().String(), o.GetName(), "spec", maxOfNode, "prefixes")
	}
	for _, text := range cidrs {
		if prefix, err := netip.ParsePrefix(text); err == nil {
			all = append(all, prefix.Masked())
		}
	}
	return all, nil
}
