package facts

import (
	"cmp"
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
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
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
		f.Masquerade = append(f.Masquerade, "flannel masquerades what pods send to other clusters, when it runs with --ip-masq: give their pod subnets an exception, as docs/network-plugins.md says")
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
//
// One that can't be is an InvalidError; one that can't be read is no sign.
func (f *Facts) readPods(ctx context.Context, c *cli.Cluster) error {
	var nodes []netip.Prefix
	for _, n := range f.Nodes {
		nodes = append(nodes, n.Pods...)
	}
	nodes = Compact(nodes)
	if f.Calico.Version != "" {
		pools, err := prefixesOf(ctx, c, PoolsOf(f.Calico), mostPrefixes, enabled)
		if IsInvalid(err) {
			return err
		}
		if err == nil && len(pools) > 0 {
			f.Pods, f.PodsFrom, f.PodsSure = pools, "Calico's IP pools", true
			return nil
		}
	}
	if f.Plugin == "Cilium" {
		found, err := prefixesOf(ctx, c, ciliumNodes, noLimit, func(o *unstructured.Unstructured) []string {
			cidrs, _, _ := unstructured.NestedStringSlice(o.Object, "spec", "ipam", "podCIDRs")
			return cidrs
		})
		if IsInvalid(err) {
			return err
		}
		if err == nil && len(found) > 0 {
			f.Pods, f.PodsFrom = found, "CiliumNodes"
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

// enabled is the range of a pool that pods get addresses from.
func enabled(pool *unstructured.Unstructured) []string {
	disabled, _, _ := unstructured.NestedBool(pool.Object, "spec", "disabled")
	cidr, _, _ := unstructured.NestedString(pool.Object, "spec", "cidr")
	if disabled {
		return nil
	}
	return []string{cidr}
}

// Cover says whether all of the inner prefixes are inside outer ones, which several may be
// together.
func Cover(outer, inner []netip.Prefix) bool {
	outer = Compact(outer)
	for _, i := range inner {
		// The outer ones have no address in common: the last one that begins before it.
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

// Compact returns the prefixes that hold the same addresses, by address: without those
// that are inside others, and with one for its two halves, as the podCIDRs of nodes are.
func Compact(all []netip.Prefix) []netip.Prefix {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), a.Bits()-b.Bits())
	})
	var kept []netip.Prefix
	for _, p := range all {
		if n := len(kept); n > 0 && kept[n-1].Overlaps(p) {
			continue // It begins after that one, and so it is inside.
		}
		kept = append(kept, p)
		for n := len(kept); n > 1 && halves(kept[n-2], kept[n-1]); n = len(kept) {
			kept = append(kept[:n-2], netip.PrefixFrom(kept[n-2].Addr(), kept[n-2].Bits()-1))
		}
	}
	return kept
}

// halves says whether two prefixes, of which the first one has the lower addresses, are
// those of a prefix.
func halves(a, b netip.Prefix) bool {
	whole := netip.PrefixFrom(a.Addr(), a.Bits()-1)
	return a.Bits() == b.Bits() && whole == whole.Masked() && whole.Contains(b.Addr())
}

const (
	// mostPrefixes is how many prefixes a list can have.
	mostPrefixes = 1000
	// mostOfNode is how many addresses, or prefixes of pods, a node can have: two are
	// common, one of each family.
	mostOfNode = 16
	// noLimit is that of prefixes of which each node has some: those of a list of objects.
	noLimit = 0
)

// tooMany is the error for a value that there are too many of in an object.
func tooMany(kind, name, key string, most int, what string) error {
	return &InvalidError{kind + " " + printable.Text(name, printable.Short), key, fmt.Errorf("more than %d %s", most, what)}
}

// prefixesOf reads, of the objects of a kind that may not be there, the prefixes that get
// finds in them: so many in all, and of one object as many as a node can have.
func prefixesOf(ctx context.Context, c *cli.Cluster, resource schema.GroupVersionResource, most int, get func(*unstructured.Unstructured) []string) ([]netip.Prefix, error) {
	var found []netip.Prefix
	err := cli.ListUntyped(ctx, c.Dynamic.Resource(resource), metav1.ListOptions{}, func(o *unstructured.Unstructured) error {
		texts := get(o)
		if len(texts) > mostOfNode {
			return tooMany(resource.GroupResource().String(), o.GetName(), "spec", mostOfNode, "prefixes")
		}
		for _, text := range texts {
			if p, err := netip.ParsePrefix(text); err == nil {
				found = append(found, p.Masked())
			}
		}
		if most != noLimit && len(found) > most {
			return tooMany(resource.GroupResource().String(), o.GetName(), "spec", most, "prefixes, with those of others")
		}
		return nil
	})
	return Compact(found), err
}

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
