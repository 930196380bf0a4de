package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestBareNodes trims metadata, and compares with whole nodes.
func TestBareNodes(t *testing.T) {
	suffices := Suffices("aws")
	for name, c := range map[string]struct {
		annotations map[string]string
		suffices    bool
		prefixes    string // of the peer
	}{
		"published":             {map[string]string{PodCIDRsAnnotation: "10.4.1.0/24"}, true, "[10.4.1.0/24]"},
		"none yet":              {map[string]string{PodCIDRsAnnotation: ""}, true, "[]"},
		"of the original":       {nil, false, "[]"},
		"nothing for this one":  {map[string]string{PublicKeyAnnotation("aws"): "", EndpointAnnotation("aws"): ""}, true, ""},
		"only an endpoint here": {map[string]string{PublicKeyAnnotation("aws"): ""}, false, "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			meta := metav1.ObjectMeta{Name: "gcp-1", Annotations: map[string]string{PublicKeyAnnotation("aws"): key(1).String(), EndpointAnnotation("aws"): "10.22.0.1:51820"}}
			for k, v := range c.annotations {
				meta.Annotations[k] = v
			}
			bare := &metav1.PartialObjectMetadata{ObjectMeta: meta}
			if got := suffices(bare); got != c.suffices {
				t.Errorf("suffices: %v", got)
			}
			n, kept := BareNodeFor("aws", 4)(bare)
			if kept != (c.prefixes != "") || kept && (!n.Bare || fmt.Sprint(n.PodCIDRs) != c.prefixes) {
				t.Errorf("%v, %+v", kept, n)
			}
			whole, _ := NodeFor("aws", 4, nil)(&corev1.Node{ObjectMeta: meta, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.4.1.0/24"}}})
			if kept && n.Equal(whole) {
				t.Error("it equals the whole node, and would replace it")
			}
		})
	}
}

// TestMetadataGivesNothingElse decides about random nodes, some of which overlap, on their
// metadata and on whole nodes. Only what was accepted before is assigned on metadata alone,
// and where nothing overlaps both are the same.
func TestMetadataGivesNothingElse(t *testing.T) {
	random := rand.New(rand.NewPCG(21, 22))
	undecided := 0
	for range 2000 {
		rules := borrowing()
		rules.Borrowed = random.IntN(2) == 0
		rules.MaxAllowedIPs = []int{0, 6}[random.IntN(2)]
		nodes := make([]*Node, 2+random.IntN(4))
		for i := range nodes {
			own := fmt.Sprintf("10.4.%d.0/24", i+1)
			published := []string{own}
			if random.IntN(4) == 0 {
				published = append(published, fmt.Sprintf("10.4.%d.%d/%d", 1+random.IntN(6), 64*random.IntN(4), []int{22, 24, 26, 32}[random.IntN(4)]))
			}
			nodes[i] = node(i+1, with(published...), given(own), aged(random.IntN(50)))
		}
		_, _, before := DesiredAfter(Accepted{}, nodes[:random.IntN(len(nodes)+1)], rules)
		bare := make([]*Node, len(nodes))
		for i, n := range nodes {
			b := *n
			b.Bare, b.Allocated, b.parsed, b.allocated = true, nil, false, nil
			bare[i] = &b
		}
		whole, _, decided := DesiredAfter(before, nodes, rules)
		got, rejected, accepted := DesiredAfter(before, bare, rules)
		if decided.undecided {
			t.Fatal("undecided about whole nodes")
		}
		if !accepted.undecided {
			if diff := differ(whole, got); diff != "" {
				t.Fatalf("nothing overlaps, and the peers differ:\n%s", diff)
			}
			continue
		}
		undecided++
		for _, p := range got {
			for _, a := range p.AllowedIPs {
				alone := !slices.ContainsFunc(bare, func(n *Node) bool {
					return n.Name != p.Node && slices.ContainsFunc(prefixes(n.PodCIDRs...), a.Overlaps)
				})
				if !alone && !before.hasPrefix(p.Node, a) && (!rules.Borrowed || !borrowedOnly(bare, p.Node, a)) {
					t.Fatalf("%s got %s on metadata alone: %+v", p.Node, a, rejected)
				}
			}
		}
	}
	if undecided < 100 {
		t.Errorf("only %d decisions needed allocations", undecided)
	}
}

// TestDuplicateAddressIsDecidedOnMetadata has two nodes publish one single address, as one that is lost and
// its successor do.
func TestDuplicateAddressIsDecidedOnMetadata(t *testing.T) {
	rules := borrowing()
	nodes := []*Node{node(1, with("10.4.1.0/24", "10.4.9.9/32"), aged(2)), node(2, with("10.4.2.0/24", "10.4.9.9/32"), aged(1))}
	for _, n := range nodes {
		n.Bare = true
	}
	if _, _, accepted := DesiredAfter(Accepted{}, nodes, rules); accepted.undecided {
		t.Error("all nodes are to be read whole")
	}
}

// borrowedOnly reports whether others overlap a prefix only by single addresses inside it, or
// by prefixes around it if it is one itself: the longest prefix decides then.
func borrowedOnly(nodes []*Node, owner string, p netip.Prefix) bool {
	return !slices.ContainsFunc(nodes, func(n *Node) bool {
		return n.Name != owner && slices.ContainsFunc(prefixes(n.PodCIDRs...), func(o netip.Prefix) bool {
			return o.Overlaps(p) && (o == p || !o.IsSingleIP() && !p.IsSingleIP())
		})
	})
}
