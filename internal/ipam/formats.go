package ipam

import (
	"crypto/sha3"
	"encoding/base32"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// CalicoAffinities are the resources in which Calico may store the blocks of nodes, the
// preferred one first: v3 beside v1 is either an aggregated API over v1, or what Calico
// has used since it was migrated from v1.
func CalicoAffinities() []schema.GroupVersionResource {
	return []schema.GroupVersionResource{
		{Group: "projectcalico.org", Version: "v3", Resource: "blockaffinities"},
		{Group: "crd.projectcalico.org", Version: "v1", Resource: "blockaffinities"},
	}
}

// CiliumNodes is the resource in which Cilium stores the prefixes of nodes.
func CiliumNodes() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "cilium.io", Version: "v2", Resource: "ciliumnodes"}
}

// HostnameHash is the label of BlockAffinities with the node, from Calico 3.31 on.
const HostnameHash = "projectcalico.org/hostname-hash"

// HashOf returns the value of HostnameHash; node names may be longer than labels.
func HashOf(node string) string {
	sum := sha3.Sum256([]byte(node))
	return base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(sum[:])
}

// Block returns the prefix of a BlockAffinity, if it is confirmed and of the node. Its
// field deleted is a string in one group and a boolean in the other.
func Block(object *unstructured.Unstructured, node string) (netip.Prefix, bool) {
	spec, _, _ := unstructured.NestedMap(object.Object, "spec")
	if spec["node"] != node || spec["state"] != "confirmed" || spec["deleted"] == true || spec["deleted"] == "true" {
		return netip.Prefix{}, false
	}
	// Another kind of owner may have the name of a node.
	if kind, given := spec["type"].(string); given && kind != "" && kind != "host" {
		return netip.Prefix{}, false
	}
	text, _ := spec["cidr"].(string)
	return Parse(text)
}

// CiliumPrefixes returns the prefixes of a CiliumNode; none where addresses come from a
// cloud provider.
func CiliumPrefixes(object *unstructured.Unstructured) []netip.Prefix {
	texts, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "ipam", "podCIDRs")
	pools, _, _ := unstructured.NestedSlice(object.Object, "spec", "ipam", "pools", "allocated")
	for _, pool := range pools {
		fields, _ := pool.(map[string]any)
		cidrs, _, _ := unstructured.NestedSlice(fields, "cidrs")
		for _, cidr := range cidrs {
			if text, is := cidr.(string); is {
				texts = append(texts, text)
			}
		}
	}
	var all []netip.Prefix
	for _, text := range texts {
		if p, ok := Parse(text); ok {
			all = append(all, p)
		}
	}
	return Sorted(all)
}

// OVNSubnets is the annotation in which OVN-Kubernetes stores the prefixes of a node.
const OVNSubnets = "k8s.ovn.org/node-subnets"

// OVNPrefixes parses the annotation: an object of networks, each with a prefix or a list
// of prefixes, of which "default" counts; or, in old releases, a single prefix.
func OVNPrefixes(text string) ([]netip.Prefix, error) {
	if p, ok := Parse(text); ok {
		return []netip.Prefix{p}, nil
	}
	var networks struct {
		Default json.RawMessage `json:"default"`
	}
	var list []string
	err := json.Unmarshal([]byte(text), &networks)
	if err == nil {
		if err = json.Unmarshal(networks.Default, &list); err != nil {
			list = make([]string, 1)
			err = json.Unmarshal(networks.Default, &list[0])
		}
	}
	if err != nil {
		return nil, fmt.Errorf("annotation %s: expected the prefixes of the network \"default\": %w", OVNSubnets, err)
	}
	var all []netip.Prefix
	for _, item := range list {
		p, ok := Parse(item)
		if !ok {
			return nil, fmt.Errorf("annotation %s: %q is not a prefix", OVNSubnets, item)
		}
		all = append(all, p)
	}
	return Sorted(all), nil
}

// calicoTunnels are the annotations in which Calico stores the addresses of a node's
// tunnels, which are from its pools.
func calicoTunnels() []string {
	return []string{
		"projectcalico.org/IPv4IPIPTunnelAddr",
		"projectcalico.org/IPv4VXLANTunnelAddr", "projectcalico.org/IPv6VXLANTunnelAddr",
		"projectcalico.org/IPv4WireguardInterfaceAddr", "projectcalico.org/IPv6WireguardInterfaceAddr",
	}
}

// Noted holds the annotations of network plugins on a node.
type Noted struct {
	OVN     string       // OVNSubnets
	Tunnels []netip.Addr // of Calico's tunnels
}

// Note reads the annotations of network plugins.
func Note(n *corev1.Node) Noted {
	noted := Noted{OVN: n.Annotations[OVNSubnets]}
	for _, name := range calicoTunnels() {
		if a, err := netip.ParseAddr(n.Annotations[name]); err == nil {
			noted.Tunnels = append(noted.Tunnels, a.Unmap().WithZone(""))
		}
	}
	return noted
}

// Equal reports whether the annotations are equal.
func (n Noted) Equal(o Noted) bool { return n.OVN == o.OVN && slices.Equal(n.Tunnels, o.Tunnels) }

// Sorted sorts prefixes, and returns them without duplicates.
func Sorted(prefixes []netip.Prefix) []netip.Prefix {
	slices.SortFunc(prefixes, netip.Prefix.Compare)
	return slices.Compact(prefixes)
}

// Parse parses and masks a prefix.
func Parse(text string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return netip.Prefix{}, false
	}
	return p.Masked(), true
}
