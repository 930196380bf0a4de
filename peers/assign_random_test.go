package peers

import (
	"encoding/json"
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
	r.Borrowed = true
	return r
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
		n, kept := NodeFor("aws", 4, nil)(object(&text))
		if !kept || !n.Published || !slices.Equal(n.PodCIDRs, want) {
			t.Errorf("of %.40q: %v, %v, %q", text, kept, n.Published, n.PodCIDRs)
		}
	}
	impossible := object(nil)
	impossible.Name = strings.Repeat("<", 253)
	if _, kept := NodeFor("aws", 4, nil)(impossible); kept {
		t.Error("a node is kept whose name no API server accepts")
	}
	late := object(nil)
	late.CreationTimestamp = metav1.Date(9999, 12, 31, 23, 59, 59, 0, time.FixedZone("", -12*3600))
	n, _ := NodeFor("aws", 4, nil)(late)
	if _, err := json.Marshal(n); err != nil {
		t.Errorf("a node created at %v can't be stored: %v", late.CreationTimestamp, err)
	}
	text := "10.4.7.0/26"
	much := object(&text)
	much.Spec.PodCIDRs = slices.Repeat(much.Spec.PodCIDRs, 1000)
	if n, _ := NodeFor("aws", 4, nil)(much); !slices.Equal(n.Allocated, []string{"10.4.1.0/24", "10.4.1.0/24"}) || n.Equal(&Node{}) {
		t.Errorf("given: %q", n.Allocated)
	}
	if n, _ := NodeFor("aws", 4, nil)(object(nil)); n.Allocated != nil || n.Published || !slices.Equal(n.PodCIDRs, []string{"10.4.1.0/24"}) {
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
			s := newAssignment(Accepted{}, nodes, make([]bool, len(nodes)), &Rules{Borrowed: !alone, Subnets: rules.Subnets})
			got := map[netip.Prefix]struct{}{}
			for i := range s.places {
				if s.places[i].contested {
					got[s.places[i].prefix] = struct{}{}
				}
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

// FuzzPodCIDRs makes a node publish anything: other nodes keep their accepted prefixes, and without
// accepted state their allocations, and the prefixes that it gets are within bounds.
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
		hostile, kept := NodeFor("aws", most, nil)(&corev1.Node{ObjectMeta: metav1.ObjectMeta{
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
		peers, rejected, _ = DesiredAfter(Accepted{}, []*Node{hostile, node(1), node(2)}, rules)
		for _, want := range []Peer{peer(1), peer(2)} {
			if !slices.ContainsFunc(peers, func(p Peer) bool { return differ(p, want) == "" }) {
				t.Fatalf("%s has lost what it was given: %+v %+v", want.Node, peers, rejected)
			}
		}
	})
}

// given sets the allocation of a node that publishes other prefixes.
func given(prefixes ...string) func(*Node) { return func(n *Node) { n.Allocated = prefixes } }

// TestHostileNodeTakesNoAllocation makes a node publish arbitrary prefixes with any age.
// The other nodes keep their allocations where nothing was accepted before, or they were accepted
// themselves, and also single addresses unless Rules.Borrowed is set.
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
		if random.IntN(4) == 0 {
			hostile.Allocated = nil
		}
		_, _, some := DesiredAfter(Accepted{}, slices.Concat([]*Node{hostile}, victims[:len(victims)/2]), rules)
		_, _, others := DesiredAfter(Accepted{}, victims, rules)
		all := slices.Concat(victims, []*Node{hostile})
		for name, before := range map[string]Accepted{"without memory": {}, "after the victims": others, "after some of them": some} {
			random.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
			peers, rejected, accepted := DesiredAfter(before, all, rules)
			checkPeers(t, slices.DeleteFunc(slices.Clone(peers), func(p Peer) bool { return len(p.AllowedIPs) == 0 }), rules)
			again, _, _ := DesiredAfter(accepted, all, rules)
			if diff := differ(peers, again); diff != "" {
				t.Fatalf("%s, once more, other peers:\n%s", name, diff)
			}
			kept := victims
			if name == "after some of them" {
				kept = victims[:len(victims)/2]
			}
			for _, v := range kept {
				i := slices.IndexFunc(peers, func(p Peer) bool { return p.Node == v.Name })
				if i < 0 || !slices.Equal(peers[i].AllowedIPs, prefixes(v.PodCIDRs...)) {
					t.Fatalf("%s, %s has lost something to %v: %+v", name, v.Name, published, rejected)
				}
			}
		}
	}
}

// TestRules applies the rules to all pairs of claims by themselves, without the structure that finds
// which of them overlap.
func TestRules(t *testing.T) {
	random := rand.New(rand.NewPCG(13, 14))
	for range 2000 {
		rules := borrowing()
		rules.Borrowed = random.IntN(2) == 0
		nodes := make([]*Node, 2+random.IntN(5))
		for i := range nodes {
			var texts []string
			for range random.IntN(5) {
				texts = append(texts, fmt.Sprintf("10.4.%d.%d/%d", random.IntN(3), 64*random.IntN(4), []int{22, 24, 25, 26, 32}[random.IntN(5)]))
			}
			nodes[i] = node(i+1, with(texts...), given(fmt.Sprintf("10.4.%d.0/24", random.IntN(3))), aged(random.IntN(9)))
		}
		_, _, before := DesiredAfter(Accepted{}, nodes[:random.IntN(len(nodes))], rules)
		type claim struct {
			of *Node
			p  netip.Prefix
		}
		var claims, got, want []claim
		parsed := make([]*Node, len(nodes))
		for i, n := range nodes {
			parsed[i] = n.parse(0)
			for _, p := range parsed[i].prefixes {
				claims = append(claims, claim{parsed[i], p})
			}
		}
		rank := func(c claim) int {
			switch {
			case before.hasPrefix(c.of.Name, c.p):
				return 1
			case within(c.p, c.of.allocated) && (!rules.Borrowed || !c.p.IsSingleIP()):
				return 2
			}
			return 3
		}
		slices.SortFunc(claims, func(a, b claim) int {
			return cmpOr(rank(a)-rank(b), older(a.of, b.of), comparePrefixes(a.p, b.p))
		})
		for _, c := range claims {
			if !slices.ContainsFunc(want, func(o claim) bool {
				apart := rules.Borrowed && c.p != o.p && (c.p.IsSingleIP() || o.p.IsSingleIP())
				return c.p.Overlaps(o.p) && !apart
			}) {
				want = append(want, c)
			}
		}
		peers, _, _ := DesiredAfter(before, nodes, rules)
		for _, p := range peers {
			i := slices.IndexFunc(parsed, func(n *Node) bool { return n.Name == p.Node })
			for _, a := range p.AllowedIPs {
				got = append(got, claim{parsed[i], a})
			}
		}
		texts := func(claims []claim) (all []string) {
			for _, c := range claims {
				all = append(all, c.of.Name+" "+c.p.String())
			}
			slices.Sort(all)
			return all
		}
		if diff := cmp.Diff(texts(want), texts(got)); diff != "" {
			t.Fatalf("(-want +got):\n%s", diff)
		}
	}
}

func cmpOr(values ...int) int {
	for _, v := range values {
		if v != 0 {
			return v
		}
	}
	return 0
}
