package peers

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// with makes a node publish prefixes.
func with(prefixes ...string) func(*Node) {
	return func(n *Node) { n.PodCIDRs, n.Published = prefixes, true }
}

// aged makes a node older than those of node, in hours.
func aged(hours int) func(*Node) {
	return func(n *Node) { n.Created = epoch.Add(-time.Duration(hours) * time.Hour) }
}

func borrowing() Rules {
	r := rules
	r.Borrowed, r.Now = true, epoch
	return r
}

func TestSingleAddresses(t *testing.T) {
	const address = "10.4.1.7/32"
	none := peer(1)
	none.AllowedIPs = nil
	for _, c := range []struct {
		name string
		// what the remote says, one after the other; the last one counts.
		said     [][]*Node
		want     []Peer
		rejected []rejection
	}{
		{"in another node's prefix: the node that publishes it",
			[][]*Node{{node(1), node(2, with("10.4.2.0/24", address))}}, []Peer{peer(1), peer(2, address, "10.4.2.0/24")}, nil},
		{"of IPv6, too",
			[][]*Node{{node(1, with("fd04::1:0/112")), node(2, with("fd04::1:9/128"))}}, []Peer{peer(1, "fd04::1:0/112"), peer(2, "fd04::1:9/128")}, nil},
		{"accepted before the prefix around it",
			[][]*Node{{node(2, with(address))}, {node(1), node(2, with(address))}}, []Peer{peer(1), peer(2, address)}, nil},
		{"outside of all prefixes", [][]*Node{{node(2, with(address))}}, []Peer{peer(2, address)}, nil},
		{"which ends", [][]*Node{{node(1), node(2, with("10.4.2.0/24", address))}, {node(1), node(2)}}, []Peer{peer(1), peer(2)}, nil},
		{"twice, outside of all prefixes, at first: the older",
			[][]*Node{{node(1, with(address)), node(2, with(address), aged(1))}}, []Peer{peer(2, address)}, []rejection{{"node-1", ReasonDuplicatePrefix, false}}},
		{"twice: the former owner",
			[][]*Node{{node(1, with(address))}, {node(1, with(address)), node(2, with(address), aged(1))}}, []Peer{peer(1, address)}, []rejection{{"node-2", ReasonDuplicatePrefix, false}}},
		{"twice: in whose prefix it lies, though the other had it",
			[][]*Node{{node(1), node(2, with(address))}, {node(1, with("10.4.1.0/24", address)), node(2, with(address), aged(1))}},
			[]Peer{peer(1, "10.4.1.0/24", address)}, []rejection{{"node-2", ReasonDuplicatePrefix, false}}},
		{"twice: in whose prefix it lies, at first",
			[][]*Node{{node(1, with("10.4.1.0/24", address)), node(2, with("10.4.2.0/24", address), aged(1))}},
			[]Peer{peer(1, "10.4.1.0/24", address), peer(2)}, []rejection{{"node-2", ReasonDuplicatePrefix, true}}},
		{"twice: a prefix that is another's doesn't count",
			[][]*Node{{node(1)}, {node(1), node(2, with(address))}, {node(1), node(2, with(address)), node(3, with("10.4.1.0/25", address, "10.4.3.0/24"), aged(1))}},
			[]Peer{peer(1), peer(2, address), peer(3)}, []rejection{{"node-3", ReasonDuplicatePrefix, true}, {"node-3", ReasonDuplicatePrefix, true}}},
		{"which moves", [][]*Node{{node(1, with(address)), node(2)}, {node(1, with()), node(2, with("10.4.2.0/24", address))}},
			[]Peer{none, peer(2, address, "10.4.2.0/24")}, nil},
		{"a larger prefix inside another's is rejected",
			[][]*Node{{node(1), node(2, with("10.4.2.0/24", "10.4.1.6/31"))}}, []Peer{peer(1), peer(2)}, []rejection{{"node-2", ReasonDuplicatePrefix, true}}},
		{"outside the remote's subnets", [][]*Node{{node(2, with("10.9.1.7/32"))}}, nil, []rejection{{"node-2", ReasonPodCIDR, false}}},
		{"of a node that has none at all", [][]*Node{{node(1, with())}}, []Peer{none}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			var accepted Accepted
			var peers []Peer
			var rejected []Rejection
			for _, nodes := range c.said {
				peers, rejected, accepted = DesiredAfter(accepted, nodes, borrowing())
			}
			if diff := cmp.Diff(c.want, peers, comparers); diff != "" {
				t.Errorf("peers (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(c.rejected, brief(rejected), comparers); diff != "" {
				t.Errorf("rejected (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFlappingClaimDoesntMoveAnAddress makes a node claim an address inside its prefix on
// and off, while another node claims that address all the time.
func TestFlappingClaimDoesntMoveAnAddress(t *testing.T) {
	rules := borrowing()
	on := []*Node{node(1, with("10.4.1.0/24", "10.4.1.7/32")), node(2, with("10.4.1.7/32"))}
	off := []*Node{node(1), node(2, with("10.4.1.7/32"))}
	var accepted Accepted
	var rejected []Rejection
	decide := func(nodes []*Node, after time.Duration) string {
		t.Helper()
		rules.Now = rules.Now.Add(after)
		var peers []Peer
		peers, rejected, accepted = DesiredAfter(accepted, nodes, rules)
		for _, p := range peers {
			if slices.Contains(p.AllowedIPs, netip.MustParsePrefix("10.4.1.7/32")) {
				return p.Node
			}
		}
		return "no node"
	}
	for i := range maxMoves {
		if got := decide(off, time.Second); got != "node-2" {
			t.Fatalf("%d: it is at %s", i, got)
		}
		if got := decide(on, time.Second); got != "node-1" {
			t.Fatalf("%d: it is at %s", i, got)
		}
	}
	decide(off, time.Second)
	if got := decide(on, time.Second); got != "node-2" {
		t.Errorf("after %d moves it is at %s", maxMoves, got)
	}
	if diff := cmp.Diff([]rejection{{"node-1", ReasonFlapping, true}}, brief(rejected)); diff != "" {
		t.Errorf("rejected (-want +got):\n%s", diff)
	}
	if got := decide(on, flapping); got != "node-1" {
		t.Errorf("after it was damped it is at %s", got)
	}
	decide(off, flapping)
	if len(accepted.moved) > 0 {
		t.Errorf("remembered for ever: %v", accepted.moved)
	}
}

func TestPrefixesOfAllNodesAreBounded(t *testing.T) {
	rules := borrowing()
	rules.MaxAllowedIPs = 4
	singles := func(n, count int) []string {
		var all []string
		for i := range count {
			all = append(all, fmt.Sprintf("10.4.%d.%d/32", n, i))
		}
		return all
	}
	first := []*Node{node(5, with(singles(5, 3)...))}
	peers, rejected, accepted := DesiredAfter(Accepted{}, first, rules)
	if len(peers) != 1 || len(rejected) != 0 {
		t.Fatalf("%+v %+v", peers, rejected)
	}
	// An older node joins: accepted prefixes stay, and it gets the rest.
	all := slices.Concat(first, []*Node{node(1, with(singles(1, 3)...))})
	peers, rejected, accepted = DesiredAfter(accepted, all, rules)
	if want := []Peer{peer(1, singles(1, 1)...), peer(5, singles(5, 3)...)}; !cmp.Equal(want, peers, comparers) {
		t.Errorf("peers (-want +got):\n%s", cmp.Diff(want, peers, comparers))
	}
	if want := []rejection{{"node-1", ReasonManyPrefixes, true}, {"node-1", ReasonManyPrefixes, true}}; !cmp.Equal(want, brief(rejected)) {
		t.Errorf("rejected: %+v", rejected)
	}
	rules.MaxAllowedIPs = 2
	peers, _, _ = DesiredAfter(accepted, all, rules)
	total := 0
	for _, p := range peers {
		total += len(p.AllowedIPs)
	}
	if total != 2 {
		t.Errorf("%d prefixes after a smaller bound", total)
	}
}

func TestNodeForReadsTheAnnotation(t *testing.T) {
	object := func(annotation *string) *corev1.Node {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "gcp-1", Annotations: map[string]string{PublicKeyAnnotation("aws"): key(1).String()}},
			Spec:       corev1.NodeSpec{PodCIDRs: []string{"10.4.1.0/24"}},
		}
		if annotation != nil {
			n.Annotations[PodCIDRsAnnotation] = *annotation
		}
		return n
	}
	for text, want := range map[string][]string{
		"":                                    nil,
		"  ":                                  nil,
		"10.4.7.0/26":                         {"10.4.7.0/26"},
		"10.4.7.0/26,10.4.9.1/32":             {"10.4.7.0/26", "10.4.9.1/32"},
		"10.4.7.0/26, fd04::/64 ":             {"10.4.7.0/26", "fd04::/64"},
		",":                                   {"", ""},
		"a,b,c,d,e,f":                         {"a", "b", "c", "d", "e"}, // one more than count
		strings.Repeat("1", 1<<18):            {strings.Repeat("1", 32) + "... (262144 bytes)"},
		strings.Repeat("10.4.0.1/32,", 1<<14): {"10.4.0.1/32", "10.4.0.1/32", "10.4.0.1/32", "10.4.0.1/32", "10.4.0.1/32"},
	} {
		n, kept := NodeFor("aws", 4)(object(&text))
		if !kept || !n.Published || !slices.Equal(n.PodCIDRs, want) {
			t.Errorf("of %.40q: %v, %v, %q", text, kept, n.Published, n.PodCIDRs)
		}
	}
	text := "10.4.7.0/26"
	much := object(&text)
	much.Spec.PodCIDRs = slices.Repeat(much.Spec.PodCIDRs, 1000)
	if n, _ := NodeFor("aws", 4)(much); !slices.Equal(n.Allocated, []string{"10.4.1.0/24", "10.4.1.0/24"}) || n.Equal(&Node{}) {
		t.Errorf("given: %q", n.Allocated)
	}
	if n, _ := NodeFor("aws", 4)(object(nil)); n.Allocated != nil || n.Published || !slices.Equal(n.PodCIDRs, []string{"10.4.1.0/24"}) {
		t.Errorf("without one: %v, %q", n.Published, n.PodCIDRs)
	}
}

// TestContested compares the sweep with a comparison of all pairs.
func TestContested(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for range 500 {
		var nodes []*Node
		for i := range 1 + random.IntN(5) {
			var texts []string
			for range random.IntN(6) {
				texts = append(texts, fmt.Sprintf("10.4.%d.%d/%d", random.IntN(2), 64*random.IntN(4), []int{32, 32, 26, 25, 24, 23}[random.IntN(6)]))
				texts = append(texts, fmt.Sprintf("fd04::%d:%d/%d", random.IntN(2), random.IntN(3), []int{128, 112, 64, 48}[random.IntN(4)]))
			}
			n := node(i+1, with(texts...))
			nodes = append(nodes, n.parse(0))
		}
		for _, alone := range []bool{false, true} {
			want := map[netip.Prefix]struct{}{}
			for i := range nodes {
				for k, p := range nodes[i].prefixes {
					for j := range nodes {
						for l, q := range nodes[j].prefixes {
							apart := !alone && (p.IsSingleIP() || q.IsSingleIP())
							if (i != j || k != l) && (p == q || !apart && p.Overlaps(q)) {
								want[p] = struct{}{}
							}
						}
					}
				}
			}
			s := newAssignment(Accepted{}, nodes, &Rules{Borrowed: !alone})
			got := map[netip.Prefix]struct{}{}
			for p := range s.contests {
				got[p] = struct{}{}
			}
			if diff := cmp.Diff(want, got, comparers); diff != "" {
				t.Fatalf("alone %v, of %v (-want +got):\n%s", alone, nodes, diff)
			}
		}
	}
}

// TestRandomHistoriesOfSingleAddresses checks for random histories that no address is at
// two peers, that every claimed one is at a peer, and that repeating a decision, in any
// order, doesn't change it.
func TestRandomHistoriesOfSingleAddresses(t *testing.T) {
	random := rand.New(rand.NewPCG(7, 8))
	for range 100 {
		rules := borrowing()
		var accepted Accepted
		all := map[int]*Node{}
		for range 30 {
			rules.Now = rules.Now.Add(time.Duration(random.IntN(40)) * time.Second)
			if n := 1 + random.IntN(5); random.IntN(6) == 0 {
				delete(all, n)
			} else {
				var prefixes []string
				if random.IntN(2) == 0 {
					prefixes = append(prefixes, fmt.Sprintf("10.4.%d.0/%d", n, 24+random.IntN(3)))
				}
				for range random.IntN(4) {
					prefixes = append(prefixes, fmt.Sprintf("10.4.%d.%d/32", 1+random.IntN(3), random.IntN(3)))
				}
				all[n] = node(n, with(prefixes...), aged(random.IntN(5)))
			}
			var nodes []*Node
			for _, n := range all {
				nodes = append(nodes, n)
			}
			peers, rejected, now := DesiredAfter(accepted, nodes, rules)
			holders := map[netip.Prefix]string{}
			for _, p := range peers {
				for _, a := range p.AllowedIPs {
					if other, twice := holders[a]; twice {
						t.Fatalf("%s is at %s and %s", a, other, p.Node)
					}
					holders[a] = p.Node
				}
			}
			for i := range nodes {
				for _, p := range nodes[i].parse(0).prefixes {
					if _, held := holders[p]; !held && p.IsSingleIP() {
						t.Fatalf("%s is at no peer: %+v", p, rejected)
					}
				}
			}
			random.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
			for title, before := range map[string]Accepted{"in another order": accepted, "once more": now} {
				again, _, then := DesiredAfter(before, nodes, rules)
				if diff := differ(peers, again); diff != "" {
					t.Fatalf("%s, other peers:\n%s", title, diff)
				}
				if diff := differ(now.prefixes, then.prefixes); diff != "" {
					t.Fatalf("%s, something else is accepted:\n%s", title, diff)
				}
			}
			accepted = now
		}
	}
}

// FuzzPodCIDRs makes a node publish anything: other nodes keep their accepted prefixes,
// except for single addresses, and their allocations, also without accepted state, and the
// prefixes that it gets are within bounds.
func FuzzPodCIDRs(f *testing.F) {
	for _, text := range []string{
		"", "10.4.7.0/26", "10.4.1.0/24", "10.4.1.7/32", "10.4.0.0/16", "0.0.0.0/0,::/0", ",,,", "::ffff:10.4.1.7/128", "fd04::/48",
		"10.4.1.7/32,10.4.1.7/32", "10.4.1.7/33", "fe80::1%eth0/64", " 10.4.9.0/24 , 10.4.10.0/24", "10.4.1.255/25",
	} {
		f.Add(text, true)
		f.Add(text, false)
	}
	f.Fuzz(func(t *testing.T, text string, borrowed bool) {
		const most = 8
		rules := borrowing()
		rules.Borrowed, rules.MaxPrefixes = borrowed, most
		victim := node(1, with("10.4.1.0/24", "10.4.3.3/32"))
		hostile, kept := NodeFor("aws", most)(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: "hostile", CreationTimestamp: metav1.NewTime(epoch.Add(-time.Hour)), Annotations: map[string]string{
				PublicKeyAnnotation("aws"): key(9).String(), EndpointAnnotation("aws"): "10.22.0.9:51820", PodCIDRsAnnotation: text,
			},
		}})
		if !kept || len(hostile.PodCIDRs) > most+1 {
			t.Fatalf("kept %v, %d prefixes", kept, len(hostile.PodCIDRs))
		}
		for _, part := range hostile.PodCIDRs {
			if len(part) > 2*maxPrefix {
				t.Fatalf("%d bytes of one prefix are kept", len(part))
			}
		}
		_, _, accepted := DesiredAfter(Accepted{}, []*Node{victim}, rules)
		peers, rejected, _ := DesiredAfter(accepted, []*Node{victim, hostile}, rules)
		i := slices.IndexFunc(peers, func(p Peer) bool { return p.Node == "node-1" })
		if i < 0 || !slices.Equal(peers[i].AllowedIPs, prefixes("10.4.1.0/24", "10.4.3.3/32")) {
			t.Fatalf("the victim has lost something: %+v %+v", peers, rejected)
		}
		for _, p := range peers {
			if p.Node == "node-1" {
				continue
			}
			if len(p.AllowedIPs) > most {
				t.Fatalf("%d prefixes", len(p.AllowedIPs))
			}
			for _, a := range p.AllowedIPs {
				if !within(a, rules.Subnets) || a != a.Masked() {
					t.Fatalf("it is allowed %s", a)
				}
				// It may contain another node's single address.
				if gcp := netip.MustParsePrefix("10.4.1.0/24"); a.Overlaps(gcp) && (!borrowed || !a.IsSingleIP()) {
					t.Fatalf("it is allowed %s", a)
				}
			}
		}
		_, _, accepted = DesiredAfter(Accepted{}, []*Node{hostile}, rules)
		for _, before := range []Accepted{{}, accepted} {
			peers, rejected, _ := DesiredAfter(before, []*Node{hostile, node(1), node(2)}, rules)
			for _, want := range []Peer{peer(1), peer(2)} {
				if !slices.ContainsFunc(peers, func(p Peer) bool { return differ(p, want) == "" }) {
					t.Fatalf("%s has lost what it was given: %+v %+v", want.Node, peers, rejected)
				}
			}
		}
	})
}
