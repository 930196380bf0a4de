package peers

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// given sets the allocation of a node that publishes other prefixes.
func given(prefixes ...string) func(*Node) { return func(n *Node) { n.Allocated = prefixes } }

// calico is a node that publishes its pods' address blocks and doesn't use its allocation.
func calico(n int, blocks ...string) *Node {
	return node(n, with(blocks...), given(fmt.Sprintf("10.4.%d.0/24", n)))
}

// thief is the oldest node, which has a prefix of its own and publishes others.
func thief(prefixes ...string) *Node {
	return node(9, with(prefixes...), given("10.4.9.0/24"), aged(100))
}

func TestAllocations(t *testing.T) {
	duplicate := func(nodes ...string) (all []rejection) {
		for _, n := range nodes {
			all = append(all, rejection{n, ReasonDuplicatePrefix, false})
		}
		return all
	}
	some := rejection{"node-9", ReasonDuplicatePrefix, true}
	for _, c := range []struct {
		name string
		// what the remote says, one after the other; the last one counts.
		said     [][]*Node
		want     []Peer
		rejected []rejection
		borrowed bool
	}{
		{"all of the subnets are published by the oldest node", [][]*Node{{node(1), node(2), thief("10.4.0.0/16")}},
			[]Peer{peer(1), peer(2)}, duplicate("node-9"), true},
		{"what another node was given", [][]*Node{{node(1), thief("10.4.1.0/24", "10.4.9.0/24")}},
			[]Peer{peer(1), peer(9)}, []rejection{some}, true},
		{"a part of it", [][]*Node{{node(1), thief("10.4.1.128/25", "10.4.9.0/24")}},
			[]Peer{peer(1), peer(9)}, []rejection{some}, true},
		{"a single address of it, where none are borrowed", [][]*Node{{node(1), thief("10.4.1.7/32", "10.4.9.0/24")}},
			[]Peer{peer(1), peer(9)}, []rejection{some}, false},
		{"that of a node to come", [][]*Node{{thief("10.4.1.0/24")}, {node(1), thief("10.4.1.0/24")}},
			[]Peer{peer(1)}, duplicate("node-9"), true},
		{"that of a node to come, in a wider one", [][]*Node{{thief("10.4.0.0/21")}, {node(1), thief("10.4.0.0/21")}},
			[]Peer{peer(1)}, duplicate("node-9"), true},
		{"that of a node that is replaced", [][]*Node{
			{node(1), node(2), thief("10.4.1.0/24")}, {node(2), thief("10.4.1.0/24")},
			{node(2), node(3, func(n *Node) { n.PodCIDRs = []string{"10.4.1.0/24"} }), thief("10.4.1.0/24")},
		}, []Peer{peer(2), peer(3, "10.4.1.0/24")}, duplicate("node-9"), true},
		{"what was given to no node", [][]*Node{{node(1), thief("10.4.7.0/24")}}, []Peer{peer(1), peer(9, "10.4.7.0/24")}, nil, true},
		{"a node publishes what it was given", [][]*Node{{node(1, with("10.4.1.0/26", "10.4.1.64/26"), given("10.4.1.0/24")), thief("10.4.1.0/26")}},
			[]Peer{peer(1, "10.4.1.0/26", "10.4.1.64/26")}, duplicate("node-9"), true},
		{"it was given to two: age decides", [][]*Node{{node(1), node(2, func(n *Node) { n.PodCIDRs = []string{"10.4.1.0/24"} })}},
			[]Peer{peer(1)}, duplicate("node-2"), true},
		{"in what a node isn't using", [][]*Node{{calico(1, "10.4.2.0/26"), calico(2, "10.4.1.0/26")}},
			[]Peer{peer(1, "10.4.2.0/26"), peer(2, "10.4.1.0/26")}, nil, true},
		{"what most nodes don't use says nothing", [][]*Node{
			{calico(1, "10.4.9.0/26"), calico(2, "10.4.9.64/26"), thief("10.4.1.0/26")},
			{calico(1, "10.4.9.0/26"), calico(2, "10.4.9.64/26"), node(9, aged(100))},
		}, []Peer{peer(1, "10.4.9.0/26"), peer(2, "10.4.9.64/26")}, duplicate("node-9"), true},
		{"what few nodes have says nothing", [][]*Node{{
			node(1, with("10.4.9.0/26")), node(2, with("10.4.9.64/26")),
			node(9, aged(100), func(n *Node) { n.PodCIDRs = []string{"10.4.0.0/16"} }),
		}}, []Peer{peer(1, "10.4.9.0/26"), peer(2, "10.4.9.64/26")}, duplicate("node-9"), true},
		{"a node in conflict with several comes last", [][]*Node{{
			calico(1, "10.4.101.0/26"), calico(2, "10.4.102.0/26"), calico(3, "10.4.103.0/26"), thief("10.4.101.0/26", "10.4.102.0/28", "10.4.103.0/26"),
		}}, []Peer{peer(1, "10.4.101.0/26"), peer(2, "10.4.102.0/26"), peer(3, "10.4.103.0/26")}, duplicate("node-9"), true},
		{"also about all that there is", [][]*Node{{calico(1, "10.4.101.0/26"), calico(2, "10.4.102.0/26"), thief("10.4.0.0/16")}},
			[]Peer{peer(1, "10.4.101.0/26"), peer(2, "10.4.102.0/26")}, duplicate("node-9"), true},
		{"and about single addresses", [][]*Node{{
			node(1, with("10.4.200.1/32")), node(2, with("10.4.200.2/32")), node(9, with("10.4.200.1/32", "10.4.200.2/32"), aged(100)),
		}}, []Peer{peer(1, "10.4.200.1/32"), peer(2, "10.4.200.2/32")}, duplicate("node-9"), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			var accepted Accepted
			var peers []Peer
			var rejected []Rejection
			rules := rules
			rules.Borrowed = c.borrowed
			for _, nodes := range c.said {
				peers, rejected, accepted = DesiredAfter(accepted, nodes, rules)
			}
			if diff := cmp.Diff(c.want, peers, comparers); diff != "" {
				t.Errorf("peers (-want +got):\n%s", diff)
			}
			got := slices.Compact(brief(rejected))
			if diff := cmp.Diff(c.rejected, got, comparers); diff != "" {
				t.Errorf("rejected (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCopiedKeyRejectsOneNodeAtMost makes a node publish the key of another node. Without
// accepted state the older of the two nodes gets the key, and only the other one is
// rejected.
func TestCopiedKeyRejectsOneNodeAtMost(t *testing.T) {
	nodes := []*Node{node(1), node(2), node(3)}
	hostile := node(9, aged(100), func(n *Node) { n.PublicKey = node(1).PublicKey })
	taken := peer(9)
	taken.PublicKey = key(1)
	peers, rejected, _ := DesiredAfter(Accepted{}, append(nodes, hostile), borrowing())
	if diff := cmp.Diff([]Peer{taken, peer(2), peer(3)}, peers, comparers); diff != "" {
		t.Errorf("without memory (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]rejection{{"node-1", ReasonDuplicateKey, false}}, brief(rejected)); diff != "" {
		t.Errorf("without memory, rejected (-want +got):\n%s", diff)
	}
	_, _, accepted := DesiredAfter(Accepted{}, nodes, borrowing())
	peers, _, _ = DesiredAfter(accepted, append(nodes, hostile), borrowing())
	if diff := cmp.Diff([]Peer{peer(1), peer(2), peer(3)}, peers, comparers); diff != "" {
		t.Errorf("with memory (-want +got):\n%s", diff)
	}
}

// TestHostileNodeTakesNoAllocation makes a node publish arbitrary prefixes with any age.
// The other nodes keep their allocations, with and without accepted state, and also single
// addresses unless Rules.Borrowed is set.
func TestHostileNodeTakesNoAllocation(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 12))
	for range 2000 {
		rules := borrowing()
		rules.Borrowed = random.IntN(2) == 0
		rules.MaxAllowedIPs = []int{0, 16}[random.IntN(2)]
		victims := make([]*Node, 1+random.IntN(5))
		for i := range victims {
			victims[i] = node(i+1, aged(random.IntN(50)))
			if random.IntN(3) == 0 {
				victims[i].Published, victims[i].Allocated = true, victims[i].PodCIDRs
			}
		}
		var published []string
		for range random.IntN(20) {
			published = append(published, fmt.Sprintf("10.4.%d.%d/%d", random.IntN(8), 64*random.IntN(4), []int{16, 20, 23, 24, 25, 28, 31, 32}[random.IntN(8)]))
		}
		hostile := node(9, with(published...), aged(random.IntN(100)), given("10.4.9.0/24"))
		// Of two nodes, one without an allocation keeps its accepted prefixes.
		if len(victims) > 1 && random.IntN(4) == 0 {
			hostile.Allocated = nil
		}
		_, _, first := DesiredAfter(Accepted{}, []*Node{hostile}, rules)
		_, _, some := DesiredAfter(first, slices.Concat([]*Node{hostile}, victims[:len(victims)/2]), rules)
		all := slices.Concat(victims, []*Node{hostile})
		for name, before := range map[string]Accepted{"without memory": {}, "after the hostile one": first, "after some of them": some} {
			random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			peers, rejected, accepted := DesiredAfter(before, all, rules)
			checkPeers(t, slices.DeleteFunc(slices.Clone(peers), func(p Peer) bool { return len(p.AllowedIPs) == 0 }), rules)
			again, _, _ := DesiredAfter(accepted, all, rules)
			if diff := differ(peers, again); diff != "" {
				t.Fatalf("%s, once more, other peers:\n%s", name, diff)
			}
			for _, v := range victims {
				i := slices.IndexFunc(peers, func(p Peer) bool { return p.Node == v.Name })
				if i < 0 || !slices.Equal(peers[i].AllowedIPs, prefixes(v.PodCIDRs...)) {
					t.Fatalf("%s, %s has lost something to %v: %+v", name, v.Name, published, rejected)
				}
			}
		}
	}
}

// TestAllocationWrittenLater makes a node claim accepted prefixes of other nodes by a later
// spec.podCIDRs: its kubelet writes it in a cluster whose control plane allocates none, or
// as many nodes use their allocation as don't.
func TestAllocationWrittenLater(t *testing.T) {
	calicos := func(n, given int) []*Node {
		var nodes []*Node
		for i := range n {
			own := node(i+1, func(n *Node) { n.Published = true })
			if i < given {
				own.Allocated = own.PodCIDRs
			}
			nodes = append(nodes, own)
		}
		return nodes
	}
	nothing := calico(8)
	nothing.Published, nothing.PodCIDRs = true, nil
	for name, c := range map[string]struct {
		nodes  []*Node
		claims string
	}{
		"of two":                             {calicos(2, 0), "10.4.1.0/24"},
		"all around, of two":                 {calicos(2, 0), "10.4.0.0/16"},
		"wider than any is given":            {calicos(2, 0), "10.0.0.0/8"},
		"of two, and one with nothing":       {append(calicos(2, 0), nothing), "10.4.1.0/24"},
		"of ten, where four claim their own": {calicos(10, 4), "10.4.9.0/24"},
	} {
		for _, borrowed := range []bool{true, false} {
			rules := borrowing()
			rules.Borrowed = borrowed
			before, _, accepted := DesiredAfter(Accepted{}, c.nodes, rules)
			nodes := slices.Clone(c.nodes)
			thief := 1
			if len(nodes) == 10 {
				thief = 9
			}
			changed := *nodes[thief]
			changed.PodCIDRs, changed.Allocated = []string{c.claims}, []string{c.claims}
			nodes[thief] = &changed
			after, rejected, _ := DesiredAfter(accepted, nodes, rules)
			for _, p := range before {
				if p.Node != nodes[thief].Name && !slices.ContainsFunc(after, func(q Peer) bool { return q.Node == p.Node && slices.Equal(q.AllowedIPs, p.AllowedIPs) }) {
					t.Errorf("%s, borrowed %v: %s has lost something of %v: %+v", name, borrowed, p.Node, p.AllowedIPs, rejected)
				}
			}
		}
	}
}

// TestLaterAllocationWithAnEvenVote makes a node claim a free prefix before the node to
// which it is allocated joins, where as many nodes use their allocation as don't.
func TestLaterAllocationWithAnEvenVote(t *testing.T) {
	for _, borrowed := range []bool{true, false} {
		rules := borrowing()
		rules.Borrowed = borrowed
		thief := node(9, with("10.4.1.0/24"), given("10.4.9.0/24"))
		others := []*Node{node(2), node(3, with("10.4.3.0/24", "10.4.33.0/24"), given("10.4.3.0/24"))}
		_, _, accepted := DesiredAfter(Accepted{}, append(slices.Clone(others), thief), rules)
		peers, rejected, _ := DesiredAfter(accepted, append(slices.Clone(others), thief, node(1)), rules)
		if !slices.ContainsFunc(peers, func(p Peer) bool { return p.Node == "node-1" && slices.Equal(p.AllowedIPs, prefixes("10.4.1.0/24")) }) {
			t.Errorf("borrowed %v: node-1 hasn't got what it was given: %+v", borrowed, rejected)
		}
	}
}

// TestOneHostileNodeTakesFromOneAtMost makes one node publish anything in a cluster without
// allocations: it takes larger prefixes from at most one other node, also without accepted
// state.
func TestOneHostileNodeTakesFromOneAtMost(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	for range 2000 {
		rules := borrowing()
		rules.Borrowed = random.IntN(2) == 0
		victims := make([]*Node, 3+random.IntN(3))
		for i := range victims {
			victims[i] = calico(i+1, fmt.Sprintf("10.4.%d.0/26", 100+i), fmt.Sprintf("10.4.%d.64/26", 100+random.IntN(2)+i))
			victims[i].PodCIDRs[1] = fmt.Sprintf("10.4.%d.%d/26", 100+i, 64*(1+random.IntN(3)))
		}
		var published []string
		for range random.IntN(12) {
			published = append(published, fmt.Sprintf("10.4.%d.%d/%d", 100+random.IntN(6), 64*random.IntN(4), []int{16, 22, 24, 26, 26, 28, 31}[random.IntN(7)]))
		}
		hostile := node(9, with(published...), aged(random.IntN(100)), given("10.4.0.0/16"))
		if random.IntN(4) == 0 {
			hostile.Published, hostile.PodCIDRs = false, hostile.Allocated
		}
		peers, _, _ := DesiredAfter(Accepted{}, append(victims, hostile), rules)
		var lost []string
		for _, v := range victims {
			i := slices.IndexFunc(peers, func(p Peer) bool { return p.Node == v.Name })
			if i < 0 || len(peers[i].AllowedIPs) < len(v.PodCIDRs) {
				lost = append(lost, v.Name)
			}
		}
		if len(lost) > 1 {
			t.Fatalf("%v have lost something to %v", lost, published)
		}
	}
}
