package inspect

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/ipam"
)

// ReadPodPrefixes finds from what agents must read the prefixes of their nodes' pods: what they would
// choose if they might read everything, or else "pods" if a pod of kube-system is outside of the
// podCIDRs of its node.
func (f *Facts) ReadPodPrefixes(ctx context.Context, c *cli.Cluster) {
	f.need("the prefixes of pods", f.readPodPrefixes(ctx, c))
}

func (f *Facts) readPodPrefixes(ctx context.Context, c *cli.Cluster) error {
	blocks, err := hasBlocks(ctx, c)
	if err != nil {
		return err
	}
	podCIDRs := map[string][]netip.Prefix{} // of nodes whose agents choose these
	sources := map[string]bool{}
	for _, n := range f.Nodes {
		if n.Agentless() != "" {
			continue
		}
		prefixes, known := f.cilium[n.Name]
		choice := ipam.Choose(ipam.Seen{PodCIDRs: n.Pods, OVN: n.ovn, Cilium: prefixes, CiliumIPAM: known, Calico: blocks, Pods: true})
		sources[choice.Source] = true
		if choice.Source == ipam.Node {
			podCIDRs[n.Name] = n.Pods
		}
	}
	for _, source := range []string{ipam.Cilium, ipam.Calico, ipam.Pods} {
		if sources[source] {
			f.PodPrefixes = source
			return nil
		}
	}
	return cli.List(ctx, c.Client.CoreV1().Pods(metav1.NamespaceSystem), metav1.ListOptions{}, func(p *corev1.Pod) error {
		prefixes, known := podCIDRs[p.Spec.NodeName]
		ip, err := netip.ParseAddr(p.Status.PodIP)
		if !known || err != nil || p.Spec.HostNetwork || slices.ContainsFunc(prefixes, func(of netip.Prefix) bool { return of.Contains(ip) }) {
			return nil
		}
		f.PodPrefixes = ipam.Pods
		return cli.ErrEnough
	})
}

// hasBlocks reports whether Calico's address management is in use: one of its APIs has a
// BlockAffinity.
func hasBlocks(ctx context.Context, c *cli.Cluster) (found bool, err error) {
	for _, blocks := range ipam.CalicoAffinities() {
		if _, err = c.Resource(ctx, blocks); meta.IsNoMatchError(err) {
			continue
		}
		if err == nil {
			err = cli.ListUntyped(ctx, c.Dynamic.Resource(blocks), metav1.ListOptions{Limit: 1}, func(*unstructured.Unstructured) error {
				found = true
				return cli.ErrEnough
			})
		}
		if err != nil || found {
			return found, err
		}
	}
	return false, nil
}
