package peers

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func named(peers []Peer) (names []string) {
	for i := range peers {
		names = append(names, peers[i].Node)
	}
	slices.Sort(names)
	return names
}

// TestNumberOfPeersIsBounded adds nodes that claim to be older than the peers: accepted
// nodes stay peers, and the oldest of the others become peers up to the bound.
func TestNumberOfPeersIsBounded(t *testing.T) {
	bounded := rules
	bounded.MaxPeers = 3
	want := func(step string, peers []Peer, rejected []Rejection, names ...string) {
		t.Helper()
		if got := named(peers); !slices.Equal(got, names) {
			t.Errorf("%s: peers are %v, want %v", step, got, names)
		}
		for _, r := range rejected {
			if r.Reason != ReasonTooManyPeers || slices.Contains(names, r.Node) {
				t.Errorf("%s: rejected %+v", step, r)
			}
		}
	}
	crowd := []*Node{node(5), node(6)}
	peers, rejected, accepted := DesiredAfter(Accepted{}, crowd, bounded)
	want("room for all", peers, rejected, "node-5", "node-6")
	for n := 10; n < 30; n++ {
		crowd = append(crowd, node(n, func(n *Node) { n.Created = n.Created.Add(-24 * time.Hour) }))
	}
	peers, rejected, accepted = DesiredAfter(accepted, crowd, bounded)
	want("older ones come", peers, rejected, "node-10", "node-5", "node-6")
	if len(rejected) != 19 {
		t.Errorf("%d are rejected, want 19", len(rejected))
	}
	peers, rejected, accepted = DesiredAfter(accepted, crowd[1:], bounded)
	want("one goes", peers, rejected, "node-10", "node-11", "node-6")
	bounded.MaxPeers = 1
	peers, rejected, _ = DesiredAfter(accepted, crowd[1:], bounded)
	want("a smaller bound", peers, rejected, "node-10")
	// Nodes from disk are bounded, too.
	stored := accepted.remember(crowd[1:], peers)
	nodes, recalled := recall(stored)
	peers, rejected, _ = DesiredAfter(recalled, nodes, bounded)
	want("after a restart", peers, rejected, "node-10")
}

func TestPrefixesOfANodeAreBounded(t *testing.T) {
	many := func(format string, count int) (prefixes []string) {
		for i := range count {
			prefixes = append(prefixes, fmt.Sprintf(format, i/256, i%256))
		}
		return prefixes
	}
	const maxPrefixes = 32
	rules := rules
	rules.MaxPrefixes = maxPrefixes
	trim := NodeFor("aws", maxPrefixes)
	object := func(prefixes []string) *corev1.Node {
		n := node(1)
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, Annotations: map[string]string{
				PublicKeyAnnotation("aws"): n.PublicKey, EndpointAnnotation("aws"): n.Endpoint,
			}},
			Spec: corev1.NodeSpec{PodCIDRs: prefixes},
		}
	}
	n, _ := trim(object(many("10.4.%d.%d/32", 50_000)))
	if len(n.PodCIDRs) != maxPrefixes+1 {
		t.Errorf("%d prefixes are kept", len(n.PodCIDRs))
	}
	peers, rejected := Desired([]*Node{n}, rules)
	if len(peers) != 1 || len(peers[0].AllowedIPs) != maxPrefixes {
		t.Errorf("peers are %+v", peers)
	}
	if len(rejected) != 1 || rejected[0].Reason != ReasonManyPrefixes || !rejected[0].Partial {
		t.Errorf("rejected is %+v", rejected)
	}
	if n, _ := trim(object(many("10.4.%d.%d/32", maxPrefixes))); len(n.PodCIDRs) != maxPrefixes {
		t.Errorf("%d prefixes are kept", len(n.PodCIDRs))
	} else if _, rejected := Desired([]*Node{n}, rules); len(rejected) != 0 {
		t.Errorf("rejected is %+v", rejected)
	}

	n, _ = trim(object(many("10.99.%d.%d/32", 50_000)))
	_, rejected = Desired([]*Node{n}, rules)
	if len(rejected) != maxRefused || !strings.Contains(rejected[maxRefused-1].Detail, fmt.Sprintf("; and %d more", maxPrefixes+1-maxRefused)) {
		t.Errorf("%d are rejected: %+v", len(rejected), rejected)
	}
	n, _ = trim(object([]string{strings.Repeat("1", 1<<20)}))
	if len(n.PodCIDRs[0]) > 2*maxPrefix {
		t.Errorf("a prefix of %d bytes is kept", len(n.PodCIDRs[0]))
	}
}
