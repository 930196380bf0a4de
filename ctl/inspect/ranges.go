package inspect

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/ipam"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// PoolsOf returns the resource of Calico's IP pools in a version of its API.
func PoolsOf(version schema.GroupVersion) schema.GroupVersionResource {
	return version.WithResource("ippools")
}

// readPlugin detects the network plugin, and whether it masquerades pods' packets to other
// clusters.
func (f *Facts) readPlugin(ctx context.Context, c *cli.Cluster) error {
	for _, api := range kube.CalicoAPIs("auto") {
		_, err := c.Resource(ctx, PoolsOf(api))
		if err == nil {
			f.Calico, f.Plugin = api, "Calico"
			break
		}
		if !meta.IsNoMatchError(err) {
			return err // As kube.DetectCalico: an API that is registered but unavailable is no reason to use the next one.
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
			f.Masquerade = append(f.Masquerade, "Cilium masquerades pods' packets to other clusters: set ipMasqAgent.enabled and add the clusters' pod subnets to nonMasqueradeCIDRs")
		}
	}
	if config("kube-flannel", "kube-flannel-cfg") != nil || config("kube-system", "kube-flannel-cfg") != nil {
		f.Plugin = "flannel"
		f.Masquerade = append(f.Masquerade, "flannel with --ip-masq masquerades pods' packets to other clusters: exclude the clusters' pod subnets, see docs/network-plugins.md")
	}
	if config("kube-system", "ip-masq-agent") != nil {
		f.Masquerade = append(f.Masquerade, "ip-masq-agent masquerades pods' packets: add the other clusters' pod subnets to nonMasqueradeCIDRs of kube-system/ip-masq-agent")
	}
	return nil
}

// clusterCIDR finds the range in the configuration of kubeadm and kube-proxy.
var clusterCIDR = regexp.MustCompile(`(?m)^\s*(?:podSubnet|clusterCIDR):\s*"?([0-9a-fA-F:./,]+)"?\s*$`)

// readPods finds the ranges of pods, from the first source that exists:
//
//	Calico's enabled IP pools              with Calico's IPAM
//	CiliumNodes                            with Cilium's IPAM; future nodes unknown
//	kubeadm's and kube-proxy's settings    the range of all nodes' podCIDRs
//	nodes' podCIDRs                        future nodes unknown
//
// An invalid source is an InvalidError; a source that can't be read is skipped.
func (f *Facts) readPods(ctx context.Context, c *cli.Cluster) error {
	var nodes []netip.Prefix
	for _, n := range f.Nodes {
		nodes = append(nodes, n.Pods...)
	}
	nodes = Compact(nodes)
	if f.Calico.Version != "" {
		pools, err := readPools(ctx, c, f.Calico)
		var found []netip.Prefix
		for _, p := range pools {
			if prefix, err := netip.ParsePrefix(p.CIDR); err == nil && !p.Disabled {
				found = append(found, prefix.Masked())
			}
			if len(found) > maxPrefixes {
				return tooMany(PoolsOf(f.Calico).GroupResource().String(), p.Name, "spec", maxPrefixes, "prefixes, with those of others")
			}
		}
		if err == nil && len(found) > 0 {
			f.Pods, f.PodsFrom, f.PodsSure = Compact(found), "Calico's IP pools", true
			return nil
		}
	}
	if f.Plugin == "Cilium" {
		var found []netip.Prefix
		f.cilium = map[string][]netip.Prefix{}
		err := cli.ListUntyped(ctx, c.Dynamic.Resource(ipam.CiliumNodes()), metav1.ListOptions{}, func(o *unstructured.Unstructured) error {
			prefixes := ipam.CiliumPrefixes(o)
			if len(prefixes) > maxOfNode {
				return tooMany(ipam.CiliumNodes().GroupResource().String(), o.GetName(), "spec", maxOfNode, "prefixes")
			}
			f.cilium[o.GetName()] = prefixes
			found = append(found, prefixes...)
			return nil
		})
		if IsInvalid(err) {
			return err
		}
		if err == nil && len(found) > 0 {
			f.Pods, f.PodsFrom = Compact(found), "CiliumNodes"
			return nil
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
		prefixes = Compact(prefixes)
		if err == nil && len(prefixes) > 0 && Cover(prefixes, nodes) {
			f.Pods, f.PodsFrom, f.PodsSure = prefixes, "ConfigMap kube-system/"+name, true
			return nil
		}
	}
	f.Pods, f.PodsFrom = nodes, "podCIDRs of the nodes"
	return nil
}

// Cover reports whether the union of the outer prefixes contains all inner ones.
func Cover(outer, inner []netip.Prefix) bool {
	outer = Compact(outer)
	for _, i := range inner {
		// The outer ones are disjoint, so only the last one that begins before it can contain it.
		at, _ := slices.BinarySearchFunc(outer, i.Addr(), func(o netip.Prefix, first netip.Addr) int {
			if o.Addr().Compare(first) <= 0 {
				return -1
			}
			return 1
		})
		if at == 0 || outer[at-1].Bits() > i.Bits() || !outer[at-1].Contains(i.Addr()) {
			return false
		}
	}
	return true
}

// Compact returns the fewest prefixes with the same addresses, sorted: without those that
// are inside others, and with adjacent halves merged.
func Compact(all []netip.Prefix) []netip.Prefix {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
	})
	var kept []netip.Prefix
	for _, p := range all {
		if n := len(kept); n > 0 && kept[n-1].Overlaps(p) {
			continue // It is inside that one, as it begins after it.
		}
		kept = append(kept, p)
		for n := len(kept); n > 1 && halves(kept[n-2], kept[n-1]); n = len(kept) {
			kept = append(kept[:n-2], netip.PrefixFrom(kept[n-2].Addr(), kept[n-2].Bits()-1))
		}
	}
	return kept
}

// halves reports whether a and b, in this order, are the halves of a prefix.
func halves(a, b netip.Prefix) bool {
	whole := netip.PrefixFrom(a.Addr(), a.Bits()-1)
	return a.Bits() == b.Bits() && whole == whole.Masked() && whole.Contains(b.Addr())
}

const (
	// maxPrefixes bounds the prefixes of a list.
	maxPrefixes = 1000
	// maxOfNode bounds the addresses, and the pod prefixes, of a node: two are common, one
	// of each family.
	maxOfNode = 16
)

// tooMany is the error for an object with too many values.
func tooMany(kind, name, key string, most int, what string) error {
	return &InvalidError{kind + " " + printable.Text(name, printable.Short), key, fmt.Errorf("more than %d %s", most, what)}
}

// readPools reads Calico's IP pools from a version of its API, which may not be served.
func readPools(ctx context.Context, c *cli.Cluster, version schema.GroupVersion) ([]Pool, error) {
	pools := []Pool{}
	err := cli.ListUntyped(ctx, c.Dynamic.Resource(PoolsOf(version)), metav1.ListOptions{}, func(o *unstructured.Unstructured) error {
		cidr, _, _ := unstructured.NestedString(o.Object, "spec", "cidr")
		disabled, _, _ := unstructured.NestedBool(o.Object, "spec", "disabled")
		noExport, _, _ := unstructured.NestedBool(o.Object, "spec", "disableBGPExport")
		pools = append(pools, Pool{o.GetName(), cidr, disabled, noExport})
		return nil
	})
	return pools, err
}

// Prefixes parses a list of prefixes, separated by commas or spaces, and masks them.
func Prefixes(text string) ([]netip.Prefix, error) {
	var all []netip.Prefix
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return strings.ContainsRune(", \t\n", r) }) {
		prefix, err := netip.ParsePrefix(word)
		if err != nil {
			return nil, fmt.Errorf("%.80q is not a subnet such as 10.4.0.0/16", word)
		}
		if all = append(all, prefix.Masked()); len(all) > maxPrefixes {
			return nil, fmt.Errorf("more than %d subnets", maxPrefixes)
		}
	}
	return all, nil
}
