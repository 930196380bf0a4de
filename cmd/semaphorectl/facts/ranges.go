package facts

import (
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// ciliumNodes tell where pods are.
var ciliumNodes = schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}

// PoolsOf is the resource of Calico's IP pools in a version of its API.
func PoolsOf(version schema.GroupVersion) schema.GroupVersionResource {
	return version.WithResource("ippools")
}

// readPlugin finds the network plugin, and what it needs.
func (f *Facts) readPlugin(ctx context.Context, c *cli.Cluster) {
	for _, api := range kube.CalicoAPIs("auto") {
		if _, err := c.Resource(ctx, PoolsOf(api)); err == nil {
			f.Calico, f.Plugin = api, "Calico"
			break
		}
	}
	config := func(namespace, name string) map[string]string {
		found, err := c.Client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil
		}
		return found.Data
	}
	if data := config("kube-system", "cilium-config"); data != nil {
		f.Plugin = "Cilium"
		if data["enable-ipv4-masquerade"] != "false" && data["enable-ip-masq-agent"] != "true" {
			f.Masquerade = append(f.Masquerade, "Cilium masquerades what pods send to other clusters: set ipMasqAgent.enabled and put their pod subnets into nonMasqueradeCIDRs")
		}
	}
	if config("kube-flannel", "kube-flannel-cfg") != nil || config("kube-system", "kube-flannel-cfg") != nil {
		f.Plugin = "flannel"
		f.Masquerade = append(f.Masquerade, "flannel masquerades what pods send to other clusters, when it runs with --ip-masq: give their pod subnets an exception, as docs/operations.md says")
	}
	if config("kube-system", "ip-masq-agent") != nil {
		f.Masquerade = append(f.Masquerade, "ip-masq-agent masquerades: put the other clusters' pod subnets into nonMasqueradeCIDRs of kube-system/ip-masq-agent")
	}
}

// clusterCIDR finds the range in the configuration of kubeadm and kube-proxy.
var clusterCIDR = regexp.MustCompile(`(?m)^\s*(?:podSubnet|clusterCIDR):\s*"?([0-9a-fA-F:./,]+)"?\s*$`)

// readPods finds where pods are: the first sign that there is of
//
//	Calico's pools, that aren't disabled   where Calico gives addresses
//	CiliumNodes                            where Cilium does
//	kubeadm's and kube-proxy's settings    the whole range that nodes get theirs of
//	nodes' podCIDRs                        nothing is known of nodes to come
func (f *Facts) readPods(ctx context.Context, c *cli.Cluster) {
	var nodes []netip.Prefix
	for _, n := range f.Nodes {
		nodes = append(nodes, n.Pods...)
	}
	nodes = compact(nodes)
	if f.Calico.Version != "" {
		if pools, err := prefixesOf(ctx, c, PoolsOf(f.Calico), enabled); err == nil && len(pools) > 0 {
			f.Pods, f.PodsFrom, f.PodsSure = pools, "Calico's IP pools", true
			return
		}
	}
	if f.Plugin == "Cilium" {
		found, err := prefixesOf(ctx, c, ciliumNodes, func(o *unstructured.Unstructured) []string {
			cidrs, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "ipam", "podCIDRs")
			return cidrs
		})
		if err == nil && len(found) > 0 {
			f.Pods, f.PodsFrom = found, "CiliumNodes"
			return
		}
	}
	for _, name := range []string{"kubeadm-config", "kube-proxy"} {
		found, err := c.Client.CoreV1().ConfigMaps("kube-system").Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			continue
		}
		var all []string
		for _, text := range found.Data {
			for _, m := range clusterCIDR.FindAllStringSubmatch(text, -1) {
				all = append(all, m[1])
			}
		}
		prefixes, err := Prefixes(strings.Join(all, ","))
		prefixes = compact(prefixes)
		if err == nil && len(prefixes) > 0 && Cover(prefixes, nodes) {
			f.Pods, f.PodsFrom, f.PodsSure = prefixes, "ConfigMap kube-system/"+name, true
			return
		}
	}
	f.Pods, f.PodsFrom = nodes, "podCIDRs of the nodes"
}

// enabled is the range of a pool that pods get addresses from.
func enabled(pool *unstructured.Unstructured) []string {
	disabled, _, _ := unstructured.NestedBool(pool.Object, "spec", "disabled")
	cidr, _, _ := unstructured.NestedString(pool.Object, "spec", "cidr")
	if disabled {
		return nil
	}
	return []string{cidr}
}

// Cover says whether all of the inner prefixes are inside outer ones.
func Cover(outer, inner []netip.Prefix) bool {
	for _, i := range inner {
		inside := false
		for _, o := range outer {
			inside = inside || o.Bits() <= i.Bits() && o.Contains(i.Addr())
		}
		if !inside {
			return false
		}
	}
	return true
}

// compact leaves out prefixes that are inside others, and doubles.
func compact(all []netip.Prefix) []netip.Prefix {
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		if a.Bits() != b.Bits() {
			return a.Bits() - b.Bits()
		}
		return a.Addr().Compare(b.Addr())
	})
	var kept []netip.Prefix
	for _, p := range all {
		if !slices.ContainsFunc(kept, func(k netip.Prefix) bool { return k.Overlaps(p) }) {
			kept = append(kept, p)
		}
	}
	slices.SortFunc(kept, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return kept
}

// mostPrefixes is how many prefixes a list can have.
const mostPrefixes = 1000

// Prefixes reads a list of prefixes, separated by commas or spaces, and returns them
// masked.
func Prefixes(text string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(", \t\n", r) }) {
		prefix, err := netip.ParsePrefix(word)
		if err != nil {
			return nil, fmt.Errorf("%.80q is no subnet such as 10.4.0.0/16", word)
		}
		if all = append(all, prefix.Masked()); len(all) > mostPrefixes {
			return nil, fmt.Errorf("more than %d subnets", mostPrefixes)
		}
	}
	return all, nil
}
