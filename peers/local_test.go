package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/google/go-cmp/cmp"
)

// localNode is a node of this cluster as a kubelet reports it.
func localNode(i int) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("own-%d", i), Annotations: map[string]string{"a": strings.Repeat("b", 200)}},
		Spec:       corev1.NodeSpec{PodCIDRs: []string{fmt.Sprintf("10.%d.%d.0/24", 64+i>>8, i&0xff), fmt.Sprintf("fd00:64:0:%x::/64", i)}},
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeHostName, Address: fmt.Sprintf("own-%d", i)},
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.32.%d.%d", i>>8, i&0xff)},
				{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("fd32::%x", i+1)},
				{Type: corev1.NodeExternalIP, Address: fmt.Sprintf("::ffff:192.0.%d.%d", i>>8, i&0xff)},
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady}},
		},
	}
	for j := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example/image-%d@sha256:%064x", j, j)}})
	}
	return n
}

func prefixes(texts ...string) (all []netip.Prefix) {
	for _, text := range texts {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func TestLocalCheck(t *testing.T) {
	nodes := []LocalNode{
		TrimLocalNode(localNode(1)),
		TrimLocalNode(&corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "odd"},
			Spec:       corev1.NodeSpec{PodCIDR: "10.65.7.1/24", PodCIDRs: nil},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeHostName, Address: "10.99.0.1"}, {Type: corev1.NodeInternalIP, Address: "none"},
				{Type: corev1.NodeInternalIP, Address: "fe80::1%eth0"}, {Type: corev1.NodeExternalIP, Address: "10.120.0.1"},
			}},
		}),
		TrimLocalNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"x", "10.0.0.0/33", "0.0.0.0/0", "10.112.0.0/12", "::/0"}}}),
	}
	tests := map[string]string{
		"10.32.0.1":      `an address of this cluster's node "own-1"`,
		"fd32::2":        `an address of this cluster's node "own-1"`,
		"192.0.0.1":      `an address of this cluster's node "own-1"`,
		"10.99.0.1":      "10.96.0.0/12 is for services of this cluster",
		"10.98.0.1":      "10.96.0.0/12 is for services of this cluster",
		"10.120.0.1":     `an address of this cluster's node "odd"`,
		"10.64.1.255":    `10.64.1.0/24 is for pods of this cluster's node "own-1"`,
		"fd00:64:0:1::7": `fd00:64:0:1::/64 is for pods of this cluster's node "own-1"`,
		"10.65.7.200":    `10.65.7.0/24 is for pods of this cluster's node "odd"`,
		"10.111.0.1":     "10.96.0.0/12 is for services of this cluster",
		"fd96::ffff":     "fd96::/112 is for services of this cluster",
		"172.31.0.1":     "172.16.0.0/12 is for this cluster itself, by SEMAPHORE_LOCAL_SUBNETS",
		"10.32.0.2":      "",
		"10.64.2.1":      "",
		"fd00:64:0:2::7": "",
		"10.112.0.1":     "",
		"172.32.0.1":     "",
	}
	for range 3 {
		rand.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
		l := NewLocal(nodes, prefixes("10.96.0.0/12", "fd96::/112"), prefixes("172.16.0.0/12"))
		for addr, want := range tests {
			got := ""
			certain, err := l.check(netip.MustParseAddr(addr))
			if want := strings.Contains(want, "services") || strings.Contains(want, "SUBNETS"); certain != want {
				t.Errorf("%s: certain %v", addr, certain)
			}
			if err != nil {
				got = err.Error()
			}
			if got != want {
				t.Errorf("%s: %q, want %q", addr, got, want)
			}
		}
	}
	if _, err := (*Local)(nil).check(netip.MustParseAddr("10.32.0.1")); err != nil {
		t.Errorf("nothing known: %v", err)
	}
}

func TestLocalNodeIsEqualAfterHeartbeats(t *testing.T) {
	before := TrimLocalNode(localNode(1))
	n := localNode(1)
	n.ResourceVersion = "2"
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(time.Now())
	n.Status.Images = nil
	slices.Reverse(n.Status.Addresses)
	if after := TrimLocalNode(n); !before.Equal(after) {
		t.Errorf("%+v became %+v", before, after)
	}
	for name, change := range map[string]func(*corev1.Node){
		"another address": func(n *corev1.Node) { n.Status.Addresses[1].Address = "10.0.0.1" },
		"one less":        func(n *corev1.Node) { n.Status.Addresses = n.Status.Addresses[:2] },
		"another podCIDR": func(n *corev1.Node) { n.Spec.PodCIDRs[0] = "10.0.0.0/24" },
		"another name":    func(n *corev1.Node) { n.Name = "other" },
	} {
		n := localNode(1)
		change(n)
		if before.Equal(TrimLocalNode(n)) {
			t.Errorf("%s counts as none", name)
		}
	}
}

// bounded are rules with all bounds of endpoints.
func bounded() Rules {
	r := rules
	r.NodeSubnets = prefixes("10.22.0.0/24", "10.32.0.0/16", "10.64.0.0/16", "10.96.0.0/16", "fd22::/64")
	r.Local = NewLocal([]LocalNode{TrimLocalNode(localNode(1)), {Name: "shared", Addrs: []netip.Addr{netip.MustParseAddr("10.22.0.5")}}}, prefixes("10.96.0.0/12"), nil)
	return r
}

// hostileLocals are states of a node of this cluster in which it claims the remote's
// endpoints, by the fields that it or its kubelet may write.
func hostileLocals() map[string]*corev1.Node {
	all := map[string]*corev1.Node{"published": {}, "its specification": {Spec: corev1.NodeSpec{PodCIDRs: []string{"10.22.0.0/16"}}}, "its addresses": {}, "all at once": {}}
	published := map[string]string{PodCIDRsAnnotation: "10.22.0.0/16,10.22.0.0/24,10.22.0.1/32"}
	all["published"].Annotations, all["all at once"].Annotations = published, published
	for i := range 200 {
		all["its addresses"].Status.Addresses = append(all["its addresses"].Status.Addresses,
			corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("10.22.0.%d", i)})
	}
	all["all at once"].Spec, all["all at once"].Status = all["its specification"].Spec, all["its addresses"].Status
	for _, n := range all {
		n.Name = "hostile"
	}
	return all
}

// TestLocalClaimRemovesNoPeer makes a node of this cluster claim the addresses of a remote's
// nodes for itself or its pods.
func TestLocalClaimRemovesNoPeer(t *testing.T) {
	nodes := []*Node{node(1), node(2), node(3)}
	rules := rules
	_, _, accepted := DesiredAfter(Accepted{}, nodes, rules)
	_, fromDisk := recall(accepted.remember(nodes, accepted.peers))
	for name, hostile := range hostileLocals() {
		t.Run(name, func(t *testing.T) {
			rules := rules
			rules.Local = NewLocal([]LocalNode{TrimLocalNode(localNode(1)), TrimLocalNode(hostile)}, nil, nil)
			for title, before := range map[string]Accepted{"accepted before": accepted, "read from disk": fromDisk} {
				for range 3 {
					var peers []Peer
					var rejected []Rejection
					peers, rejected, before = DesiredAfter(before, nodes, rules)
					if len(peers) != len(nodes) || len(rejected) > 0 {
						t.Fatalf("%s: %d peers, rejected %+v", title, len(peers), rejected)
					}
					for _, p := range peers {
						if claim := before.disputed[p.Node]; (name != "published") != strings.Contains(claim, `"hostile"`) {
							t.Errorf("%s: disputed %q", title, claim)
						}
					}
				}
			}
			// Another endpoint, or the same one of another node.
			moved := []*Node{node(1, func(n *Node) { n.Endpoint = "10.22.0.9:51820" }), node(2), node(4, func(n *Node) { n.Endpoint = nodes[2].Endpoint })}
			peers, rejected, _ := DesiredAfter(accepted, moved, rules)
			want := []rejection{{"node-1", ReasonEndpoint, false}, {"node-4", ReasonEndpoint, false}}
			if name == "published" {
				want = nil
			}
			if diff := cmp.Diff(want, brief(rejected)); diff != "" || len(peers) != len(moved)-len(want) {
				t.Errorf("%d peers, rejected (-want +got):\n%s", len(peers), diff)
			}
			// Addresses that don't come from Nodes reject accepted endpoints.
			rules.Local = NewLocal([]LocalNode{TrimLocalNode(hostile)}, nil, prefixes("10.22.0.0/16"))
			if peers, _, _ := DesiredAfter(accepted, nodes, rules); len(peers) > 0 {
				t.Errorf("in a subnet of ours: %+v", peers)
			}
		})
	}
	if n := TrimLocalNode(hostileLocals()["its addresses"]); len(n.Addrs) != maxAddrs {
		t.Errorf("%d addresses of one node count", len(n.Addrs))
	}
}

func TestDesiredWhileTheLocalClusterIsUnknown(t *testing.T) {
	unknown := rules
	unknown.LocalUnknown, unknown.known = true, map[netip.Addr]struct{}{netip.MustParseAddr("10.22.0.1"): {}}
	peers, rejected := Desired([]*Node{node(1), node(2), node(3, func(n *Node) { n.Endpoint = "127.0.0.1:1" })}, unknown)
	silent := peer(2)
	silent.Endpoint, silent.Keepalive = netip.AddrPort{}, 0
	if diff := cmp.Diff([]Peer{peer(1), silent}, peers, comparers); diff != "" {
		t.Errorf("peers (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]rejection{{"node-3", ReasonEndpoint, false}}, brief(rejected)); diff != "" {
		t.Errorf("rejected (-want +got):\n%s", diff)
	}
}

func FuzzEndpoint(f *testing.F) {
	f.Add("")
	f.Add("10.22.0.1:51820")
	f.Add("[::ffff:10.32.0.1]:1")
	f.Add("10.64.1.1:65535")
	f.Add("[fd22::1%eth0]:51820")
	f.Add("10.96.0.1:0")
	limits := bounded()
	f.Fuzz(func(t *testing.T, endpoint string) {
		peers, rejected := Desired([]*Node{node(1), node(2, func(n *Node) { n.Endpoint = shorten(endpoint) })}, limits)
		checkPeers(t, peers, limits)
		if len(peers)+len(rejected) != 2 || peers[0].Node != "node-1" {
			t.Fatalf("%q: peers %+v, rejected %+v", endpoint, peers, rejected)
		}
		for i := range peers {
			addr := peers[i].Endpoint.Addr()
			if !addr.IsValid() && endpoint == "" && peers[i].Node == "node-2" {
				continue // It publishes none: it sends first.
			}
			if _, held := limits.Local.check(addr); held != nil || !within(netip.PrefixFrom(addr, addr.BitLen()), limits.NodeSubnets) {
				t.Fatalf("%q became the endpoint %s", endpoint, peers[i].Endpoint)
			}
		}
	})
}

// BenchmarkLocal measures the work for a changed node of the local cluster: trimming for
// each event, the rest at most once a second, and only after addresses have changed.
func BenchmarkLocal(b *testing.B) {
	b.Run("event", func(b *testing.B) {
		n, before := localNode(1), TrimLocalNode(localNode(1))
		b.ReportAllocs()
		for b.Loop() {
			if !before.Equal(TrimLocalNode(n)) {
				b.Fatal("a heartbeat is a change")
			}
		}
	})
	for _, count := range []int{100, 5000} {
		nodes := make([]LocalNode, count)
		for i := range nodes {
			nodes[i] = TrimLocalNode(localNode(i))
		}
		b.Run(fmt.Sprintf("build %d", count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				NewLocal(nodes, nil, nil)
			}
		})
		l := NewLocal(nodes, prefixes("10.96.0.0/12"), nil)
		b.Run(fmt.Sprintf("look-up %d", count), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.check(netip.MustParseAddr("10.22.0.1")); err != nil {
					b.Fatal("held")
				}
			}
		})
	}
}
