package shards

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// node returns the nth node of a remote, with a number of prefixes.
func node(n, prefixes int) *peers.Node {
	key := tunnel.Key{1, byte(n), byte(n >> 8), byte(n >> 16)}
	p := &peers.Node{
		Name: fmt.Sprintf("node-%d.example", n), Created: time.Unix(1_700_000_000+int64(n), 0).UTC(), PublicKey: key.String(),
		Endpoint: fmt.Sprintf("10.%d.%d.%d:51820", 20+n>>16, n>>8&255, n&255), Published: n%2 == 0,
	}
	for i := range prefixes {
		p.PodCIDRs = append(p.PodCIDRs, fmt.Sprintf("10.%d.%d.%d/28", 100+i>>12, i>>4&255, i&15<<4))
	}
	if n%3 == 0 {
		p.Allocated = []string{"10.4.0.0/24"}
	}
	return p
}

func from(t *testing.T, n *peers.Node) *Node {
	t.Helper()
	placed, valid := FromRemote(n)
	if !valid {
		t.Fatalf("%q is not a node's name", n.Name)
	}
	return placed
}

func fromAll(t *testing.T, nodes []*peers.Node) (all []*Node) {
	t.Helper()
	for _, n := range nodes {
		all = append(all, from(t, n))
	}
	return all
}

// store has the objects of one cluster, as an API server has them.
type store struct {
	version int
	objects map[string]*v1alpha1.WireguardPeers // by shard
}

func newStore() *store { return &store{objects: map[string]*v1alpha1.WireguardPeers{}} }

func (s *store) observed(shard string) *v1alpha1.Spec {
	if o := s.objects[shard]; o != nil {
		return &o.Spec
	}
	return nil
}

func (s *store) have() (names []string) {
	for name := range s.objects {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// write makes the next write of a shard, and reports whether that changed anything.
func (s *store) write(t *testing.T, p *Plan, shard string) bool {
	t.Helper()
	want, due := p.Next(shard, s.observed)
	have := s.objects[shard]
	switch {
	case !due, want == nil && have == nil, want != nil && have != nil && Equal(&have.Spec, want):
		return false
	case want == nil:
		delete(s.objects, shard)
		return true
	}
	s.version++
	o := &v1alpha1.WireguardPeers{
		ObjectMeta: metav1.ObjectMeta{Name: Name(want.Cluster, want.Shard), ResourceVersion: strconv.Itoa(s.version)}, Spec: *want,
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var read v1alpha1.WireguardPeers
	if err := json.Unmarshal(text, &read); err != nil {
		t.Fatal(err)
	}
	s.objects[shard] = &read
	return true
}

// keys returns all shards that exist or are desired, and the index.
func (s *store) keys(p *Plan) []string {
	keys := append(slices.Concat(p.Shards(), s.have()), "")
	slices.Sort(keys)
	return slices.Compact(keys)
}

// settle makes all writes, and returns their number.
func (s *store) settle(t *testing.T, p *Plan) (writes int) {
	t.Helper()
	for wrote := true; wrote; {
		wrote = false
		for _, key := range s.keys(p) {
			if s.write(t, p, key) {
				wrote = true
				writes++
			}
		}
	}
	return writes
}

func (s *store) join(t *testing.T) *Set {
	t.Helper()
	var all []*Object
	for _, o := range s.objects {
		d, err := Decode(o, 0)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	set := Join(all)["gcp"]
	if set == nil {
		set = &Set{Incomplete: "no object"}
	}
	return set
}

func sorted(nodes []*peers.Node) []*peers.Node {
	nodes = slices.Clone(nodes)
	slices.SortFunc(nodes, func(a, b *peers.Node) int { return strings.Compare(a.Name, b.Name) })
	return nodes
}

// TestRoundTrip: agents get the nodes that the relay has read.
func TestRoundTrip(t *testing.T) {
	for _, count := range []int{0, 1, 16, 25, 300} {
		var nodes []*peers.Node
		for i := range count {
			nodes = append(nodes, node(i, i%4).Canonical())
		}
		s := newStore()
		plan := Desired("gcp", fromAll(t, nodes), nil)
		s.settle(t, plan)
		set := s.join(t)
		if diff := gocmp.Diff(sorted(nodes), sorted(set.Nodes), cmpopts.IgnoreUnexported(peers.Node{}), cmpopts.EquateEmpty()); diff != "" || set.Incomplete != "" {
			t.Errorf("%d nodes, incomplete %q (-want +got):\n%s", count, set.Incomplete, diff)
		}
		if s.settle(t, plan)+s.settle(t, Desired("gcp", fromAll(t, nodes), s.have())) > 0 {
			t.Errorf("%d nodes: a second pass writes", count)
		}
	}
}

// TestLocalRoundTrip is TestRoundTrip for the nodes of the relay's own cluster.
func TestLocalRoundTrip(t *testing.T) {
	want := peers.LocalNode{
		Name: "n1", Addrs: []netip.Addr{netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.2.1.0/24")},
	}
	s := newStore()
	s.settle(t, Desired("gcp", []*Node{FromLocal(want), FromLocal(peers.LocalNode{Name: "n2"})}, nil))
	set := s.join(t)
	slices.SortFunc(set.Locals, func(a, b peers.LocalNode) int { return strings.Compare(a.Name, b.Name) })
	if set.Incomplete != "" || len(set.Locals) != 2 || !set.Locals[0].Equal(want) || set.Locals[1].Name != "n2" {
		t.Errorf("got %+v", set)
	}
}

// metadataSize is about what an API server adds to an object, and to a watch event of it.
const metadataSize = 430

// TestSizes: shards have about 8 nodes, and none is large but that of a large node. What a change
// of a node is to each agent: with two clusters of 5,000 nodes that live a day, 0.35 of these
// a second are sent to each of 5,000 agents, and shall be less than 5 MB/s.
func TestSizes(t *testing.T) {
	for _, count := range []int{100, 1000, 5000} {
		var nodes []*Node
		for i := range count {
			nodes = append(nodes, from(t, node(i, 1)))
		}
		// Nodes with thousands of prefixes.
		for i := range 20 {
			nodes = append(nodes, from(t, node(1_000_000+i, 2000+i)))
		}
		plan := Desired("gcp", nodes, nil)
		all, small, largest, events := 0, 0, 0, 0
		for name, of := range plan.shards {
			text, err := json.Marshal(plan.content(name, of))
			if err != nil {
				t.Fatal(err)
			}
			if len(of) > 64 || len(text) > 64<<10 || len(of) > 1 && len(text) > splitBytes {
				t.Errorf("shard %s has %d nodes and %d bytes", name, len(of), len(text))
			}
			all += len(of)
			if len(of) > 1 {
				small++
				largest = max(largest, len(text))
				events += len(of) * (len(text) + metadataSize)
			}
		}
		event := events / count
		t.Logf("%d nodes: %d shards, %d of several nodes of at most %d bytes; %d bytes for a change", count, len(plan.shards), small, largest, event)
		if event > 2800 {
			t.Errorf("%d nodes: a change takes %d bytes", count, event)
		}
		if all != len(nodes) || len(plan.shards) < count/splitNodes || len(plan.shards) > count/5+100 {
			t.Errorf("%d nodes are in %d shards", all, len(plan.shards))
		}
	}
}

// TestOneChange: a node that appears, changes or goes away is one write, unless a shard is
// split or merged.
func TestOneChange(t *testing.T) {
	var nodes []*Node
	for i := range 1000 {
		nodes = append(nodes, from(t, node(i, 1)))
	}
	s := newStore()
	s.settle(t, Desired("gcp", nodes, nil))
	moved := 0
	for i := range 200 {
		plan := Desired("gcp", append(slices.Clone(nodes), from(t, node(5000+i, 1))), s.have())
		writes := s.settle(t, plan)
		writes += s.settle(t, Desired("gcp", nodes, s.have()))
		if writes != 2 {
			moved++
		}
	}
	t.Logf("%d of 200 split a shard", moved)
	if moved > 20 {
		t.Errorf("%d of 200 nodes that come and go split a shard", moved)
	}
	changed := slices.Clone(nodes)
	changed[7] = from(t, node(7, 2))
	before, after := Desired("gcp", nodes, s.have()), Desired("gcp", changed, s.have())
	if c := after.Since(before); len(c.Written) != 1 || len(c.Shrunk)+len(c.Removed) > 0 {
		t.Errorf("one change: %+v", c)
	}
	if c := Desired("gcp", nodes[1:], s.have()).Since(before); len(c.Shrunk) != 1 || len(c.Written)+len(c.Removed) > 0 {
		t.Errorf("one removal: %+v", c)
	}
}

// TestNothingIsLost: whatever happens to nodes and objects, and in whatever order the writes
// are made, an agent never removes a node that is desired since the agent knows it. It knows
// what it has read; a complete set replaces that. Others delete objects meanwhile. What they delete
// is lost of a node that was gone and is back, while only a shard that isn't listed has it.
func TestNothingIsLost(t *testing.T) {
	seeds := uint64(150)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		random := rand.New(rand.NewPCG(seed, 37))
		s, known := newStore(), map[string]struct{}{}
		nodes, back := map[string]*Node{}, map[string]bool{}
		listed := func(name string) bool {
			index := s.observed("")
			return index != nil && slices.ContainsFunc(index.Shards, func(shard string) bool { return has(s.observed(shard), name) })
		}
		change := func() {
			before := maps.Clone(nodes)
			// Sizes around those where shards are split and merged.
			for target := random.IntN(120); len(nodes) != target; {
				if n := from(t, node(random.IntN(200), random.IntN(3))); len(nodes) < target {
					nodes[n.name] = n
				} else {
					names := slices.Sorted(maps.Keys(nodes))
					delete(nodes, names[random.IntN(len(names))])
				}
			}
			for name := range nodes {
				if before[name] == nil {
					back[name] = !listed(name) && slices.ContainsFunc(s.have(), func(shard string) bool { return has(s.observed(shard), name) })
				}
			}
		}
		look := func(what string) {
			set := s.join(t)
			now := map[string]struct{}{}
			for _, n := range set.Nodes {
				back[n.Name] = back[n.Name] && !listed(n.Name)
				if nodes[n.Name] != nil && !back[n.Name] {
					now[n.Name] = struct{}{}
				}
			}
			for name := range known {
				if _, still := now[name]; !still && set.Incomplete == "" {
					t.Fatalf("seed %d, %s: %s is lost", seed, what, name)
				}
			}
			if set.Incomplete == "" {
				known = now
			} else {
				maps.Copy(known, now)
			}
		}
		for range 30 {
			change()
			maps.DeleteFunc(known, func(name string, _ struct{}) bool { return nodes[name] == nil })
			plan := Desired("gcp", slices.Collect(maps.Values(nodes)), s.have())
			for range random.IntN(40) {
				keys := s.keys(plan)
				key := keys[random.IntN(len(keys))]
				if s.write(t, plan, key) {
					look("after the write of " + cmp.Or(key, "the index"))
				}
				if existing := s.keys(plan); random.IntN(40) == 0 {
					key := existing[random.IntN(len(existing))]
					delete(s.objects, key)
					look("after the deletion of " + cmp.Or(key, "the index") + " by others")
				}
				if random.IntN(100) == 0 {
					delete(s.objects, "")
					look("after the deletion of the index by others")
				}
				if random.IntN(400) == 0 {
					clear(s.objects)
					look("after the deletion of all objects by others")
				}
			}
		}
		plan := Desired("gcp", slices.Collect(maps.Values(nodes)), s.have())
		s.settle(t, plan)
		look("at the end")
		if got := slices.Sorted(maps.Keys(known)); !slices.Equal(got, slices.Sorted(maps.Keys(nodes))) {
			t.Fatalf("seed %d: %d of %d nodes at the end", seed, len(got), len(nodes))
		}
		if want := append([]string{""}, plan.Shards()...); !slices.Equal(slices.Sorted(maps.Keys(s.objects)), want) {
			t.Fatalf("seed %d: objects %q", seed, slices.Sorted(maps.Keys(s.objects)))
		}
		gone := Gone("gcp")
		if len(plan.Shards()) > 0 {
			s.write(t, gone, plan.Shards()[0])
			if s.objects[plan.Shards()[0]] == nil {
				t.Fatalf("seed %d: a shard was removed before the index", seed)
			}
		}
		if s.settle(t, gone); len(s.objects) > 0 {
			t.Fatalf("seed %d: %d objects of a gone cluster", seed, len(s.objects))
		}
	}
}

// TestIncomplete: a set without its index, or without one of the shards that the index
// lists, is incomplete.
func TestIncomplete(t *testing.T) {
	var nodes []*Node
	for i := range 100 {
		nodes = append(nodes, from(t, node(i, 1)))
	}
	s := newStore()
	plan := Desired("gcp", nodes, nil)
	if s.write(t, plan, "") {
		t.Error("the index was written first")
	}
	s.settle(t, plan)
	if set := s.join(t); set.Incomplete != "" {
		t.Errorf("after all writes: %s", set.Incomplete)
	}
	for _, name := range s.keys(plan) {
		object := s.objects[name]
		delete(s.objects, name)
		if set := s.join(t); set.Incomplete == "" {
			t.Errorf("complete without %q", name)
		}
		s.objects[name] = object
	}
}

// TestForeignNames: an object with the content of another one is refused.
func TestForeignNames(t *testing.T) {
	for _, spec := range []v1alpha1.Spec{{Cluster: "aws"}, {Cluster: "gcp", Shard: "p"}, {}} {
		if _, err := Decode(&v1alpha1.WireguardPeers{ObjectMeta: metav1.ObjectMeta{Name: "gcp"}, Spec: spec}, 0); err == nil {
			t.Errorf("%+v is accepted", spec)
		}
	}
	if _, valid := FromRemote(&peers.Node{Name: "../x"}); valid {
		t.Error("an impossible name is accepted")
	}
}
