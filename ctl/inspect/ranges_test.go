package inspect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakedynamic "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/kube-semaphore/kube-semaphore/internal/ipam"
)

func prefixes(t *testing.T, text string) []netip.Prefix {
	t.Helper()
	all, err := Prefixes(text)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestCompact(t *testing.T) {
	for name, c := range map[string][2]string{
		"none":                     {"", ""},
		"doubles":                  {"10.4.0.0/24 10.4.0.0/24", "10.4.0.0/24"},
		"inside others":            {"10.4.1.0/24 10.4.0.0/16 10.4.255.0/25 10.5.0.0/24", "10.4.0.0/16 10.5.0.0/24"},
		"two halves":               {"10.4.1.0/24 10.4.0.0/24", "10.4.0.0/23"},
		"neighbours of two halves": {"10.4.1.0/24 10.4.2.0/24", "10.4.1.0/24 10.4.2.0/24"},
		"halves of halves":         {"10.4.0.0/24 10.4.1.0/24 10.4.2.0/24 10.4.3.0/25 10.4.3.128/25", "10.4.0.0/22"},
		"no more than there is":    {"10.4.0.0/24 10.4.1.0/24 10.4.2.0/24", "10.4.0.0/23 10.4.2.0/24"},
		"all of IPv6":              {"8000::/1 ::/1", "::/0"},
		"each family by itself":    {"::/0 0.0.0.0/0 10.0.0.0/8", "0.0.0.0/0 ::/0"},
		"a length of two families": {"10.4.0.0/24 fd00::/24", "10.4.0.0/24 fd00::/24"},
	} {
		all := prefixes(t, c[0])
		if got := list(Compact(all)); got != c[1] {
			t.Errorf("%s: %s, expected %s", name, got, c[1])
		}
		if got := list(all); got != c[0] {
			t.Errorf("%s: the list itself is %s now", name, got)
		}
	}
}

// TestCompactHoldsTheSame compares random prefixes of 256 addresses with the result, address
// by address.
func TestCompactHoldsTheSame(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var want [256]bool
		var all []netip.Prefix
		for range random.IntN(12) {
			p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 4, 0, byte(random.IntN(256))}), 24+random.IntN(9)).Masked()
			all = append(all, p)
		}
		hold := func(all []netip.Prefix) (held [256]bool) {
			for i := range held {
				for _, p := range all {
					held[i] = held[i] || p.Contains(netip.AddrFrom4([4]byte{10, 4, 0, byte(i)}))
				}
			}
			return held
		}
		want = hold(all)
		got := Compact(all)
		if hold(got) != want {
			t.Fatalf("%s became %s", list(all), list(got))
		}
		if again := list(Compact(got)); again != list(got) {
			t.Fatalf("%s became %s when compacted again", list(got), again)
		}
		inner := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 4, 0, byte(random.IntN(256))}), 24+random.IntN(9)).Masked()
		inside := true
		for i := range want {
			inside = inside && (want[i] || !inner.Contains(netip.AddrFrom4([4]byte{10, 4, 0, byte(i)})))
		}
		if Cover(all, []netip.Prefix{inner}) != inside {
			t.Fatalf("%s cover %s: %v", list(all), inner, !inside)
		}
	}
}

func TestCover(t *testing.T) {
	for name, c := range map[string]struct {
		outer, inner string
		want         bool
	}{
		"nothing":                 {"10.4.0.0/16", "", true},
		"by nothing":              {"", "10.4.0.0/16", false},
		"the same":                {"10.4.0.0/16", "10.4.0.0/16", true},
		"inside":                  {"fd00::/8 10.0.0.0/8", "10.4.0.0/16 fd00:4::/64", true},
		"one that isn't":          {"10.4.0.0/16", "10.4.1.0/24 10.5.0.0/24", false},
		"larger":                  {"10.4.0.0/16", "10.4.0.0/15", false},
		"by several together":     {"10.5.0.0/16 10.4.0.0/16", "10.4.0.0/15", true},
		"a list of before":        {"10.4.0.0/24 10.4.1.0/24", "10.4.0.0/23", true},
		"by another family":       {"0.0.0.0/0", "fd00::/8", false},
		"behind one that is less": {"10.0.0.0/8 10.4.0.0/24", "10.4.1.0/24", true},
	} {
		if got := Cover(prefixes(t, c.outer), prefixes(t, c.inner)); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestRangesOfManyNodes compacts the largest number of addresses and podCIDRs: of 20,000
// nodes with 16 of each, all in different networks.
func TestRangesOfManyNodes(t *testing.T) {
	nodes := make([]Node, 20_000)
	if testing.Short() {
		nodes = nodes[:2_000]
	}
	var pods []netip.Prefix
	for i := range nodes {
		for k := range maxOfNode {
			a := netip.AddrFrom16([16]byte{0xfd, 0, 0, byte(k), byte(i >> 8), byte(i), 0, 2})
			nodes[i].Addresses = append(nodes[i].Addresses, a)
			pods = append(pods, netip.PrefixFrom(a, 64))
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan [2]int, 1)
	go func() {
		all := machines(nodes)
		if !Cover(all, pods) {
			all = nil
		}
		done <- [2]int{len(all), len(Compact(pods))}
	}()
	select {
	case n := <-done:
		if n != [2]int{len(pods), len(pods)} {
			t.Errorf("%d prefixes of nodes and %d of pods, expected %d", n[0], n[1], len(pods))
		}
	case <-ctx.Done():
		t.Fatal("not done within a minute")
	}
}

// TestRangesAreBounded reads clusters that exceed the bounds.
func TestRangesAreBounded(t *testing.T) {
	numbered := func(n int) []string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
		}
		return all
	}
	addresses := node("a", "10.66.1.1")
	for range maxOfNode {
		addresses.Status.Addresses = append(addresses.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.66.1.2"})
	}
	services := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "one"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: numbered(maxPrefixes + 1)}}
	calico := PoolsOf(schema.GroupVersion{Group: "projectcalico.org", Version: "v3"})
	var pools []runtime.Object
	for i, cidr := range numbered(maxPrefixes + 1) {
		pools = append(pools, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "projectcalico.org/v3", "kind": "IPPool", "metadata": map[string]any{"name": fmt.Sprintf("p%d", i)}, "spec": map[string]any{"cidr": cidr},
		}})
	}
	var cidrs []any
	for _, cidr := range numbered(maxOfNode + 1) {
		cidrs = append(cidrs, cidr)
	}
	cilium := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cilium.io/v2", "kind": "CiliumNode", "metadata": map[string]any{"name": "a"},
		"spec": map[string]any{"ipam": map[string]any{"podCIDRs": cidrs}},
	}}
	for name, c := range map[string]struct {
		typed, untyped []runtime.Object
		want           string
	}{
		"InternalIPs of a node":    {[]runtime.Object{addresses}, nil, "read nodes: Node a: status.addresses: more than 16 InternalIPs"},
		"podCIDRs of a node":       {[]runtime.Object{node("a", "10.66.1.1", numbered(maxOfNode+1)...)}, nil, "read nodes: Node a: spec.podCIDRs: more than 16 prefixes"},
		"ServiceCIDRs":             {[]runtime.Object{services}, nil, "read the ranges of services: ServiceCIDR one: spec.cidrs: more than 1000 prefixes"},
		"pools":                    {nil, pools, "read the ranges of pods: ippools.projectcalico.org p"},
		"podCIDRs of a CiliumNode": {[]runtime.Object{configMap("kube-system", "cilium-config", "enable-ipv4-masquerade", "false")}, []runtime.Object{cilium}, "read the ranges of pods: ciliumnodes.cilium.io a: spec: more than 16 prefixes"},
	} {
		cluster := fakeCluster("https://api.example:6443", c.typed...)
		cluster.Dynamic = fakedynamic.NewSimpleDynamicClientWithCustomListKinds(scheme.Scheme, map[schema.GroupVersionResource]string{calico: "IPPoolList", ipam.CiliumNodes(): "CiliumNodeList"}, c.untyped...)
		if name == "pools" {
			cluster.Client.(*fake.Clientset).Resources = []*metav1.APIResourceList{{GroupVersion: "projectcalico.org/v3", APIResources: []metav1.APIResource{{Name: "ippools", Kind: "IPPool"}}}}
		}
		found := ""
		for _, err := range Read(t.Context(), cluster).Unread {
			if invalid, is := errors.AsType[*InvalidError](err); is {
				found += err.Error() + invalid.Key
			}
		}
		if !strings.Contains(found, c.want) {
			t.Errorf("%s: %q, expected %q", name, found, c.want)
		}
	}
}
