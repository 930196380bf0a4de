package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func gcp(name string) Identity { return Identity{Cluster: "gcp", Namespace: "ns", Name: name} }

func rules(subnets ...string) Rules {
	r := Rules{Cluster: "gcp"}
	for _, s := range subnets {
		r.Subnets = append(r.Subnets, netip.MustParsePrefix(s))
	}
	return r
}

func podWith(name, set string, addrs ...string) Pod {
	p := Pod{Namespace: "ns", Name: name, Set: set}
	for _, a := range addrs {
		if addr := netip.MustParseAddr(a); addr.Is4() {
			p.V4 = addr
		} else {
			p.V6 = addr
		}
	}
	return p
}

func addrs(list ...string) []netip.Addr {
	var all []netip.Addr
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// TestPodIndex adds, changes and removes pods at random: the sets that update returns are those
// that have changed, and the index is that of the pods that are left, from scratch.
func TestPodIndex(t *testing.T) {
	for seed := range rounds(200, 20) {
		random := rand.New(rand.NewPCG(uint64(seed), 0))
		x, pods, known := newPodIndex(rules("10.4.0.0/16")), map[string]*Pod{}, map[Identity][]netip.Addr{}
		for range 200 {
			name := fmt.Sprint(random.IntN(20))
			before := pods[name]
			var after *Pod
			if random.IntN(4) > 0 {
				p := podWith(name, string(rune('a'+random.IntN(4))), fmt.Sprintf("10.%d.0.%d", 4+random.IntN(2), random.IntN(15)))
				p.Finished = random.IntN(6) == 0
				after = &p
			}
			lost, got := x.update(before, after)
			if pods[name] = after; after == nil {
				delete(pods, name)
			}
			for _, id := range slices.Concat(lost, got) {
				if known[id] = x.addresses(id); len(known[id]) == 0 {
					delete(known, id)
				}
			}
			for _, id := range got {
				if slices.Contains(lost, id) {
					t.Fatalf("seed %d: %v is returned twice", seed, id)
				}
			}
			now := map[Identity][]netip.Addr{}
			for id := range x.sets {
				now[id] = x.addresses(id)
			}
			if diff := cmp.Diff(now, known, compareAddrs); diff != "" {
				t.Fatalf("seed %d: sets that weren't returned (-now +known):\n%s", seed, diff)
			}
		}
		fresh, want := newPodIndex(rules("10.4.0.0/16")), map[Identity][]netip.Addr{}
		for _, p := range pods {
			fresh.update(nil, p)
		}
		for id := range fresh.sets {
			want[id] = fresh.addresses(id)
		}
		if diff := cmp.Diff(want, known, compareAddrs); diff != "" {
			t.Errorf("seed %d: sets (-fresh +index):\n%s", seed, diff)
		}
		for reason, skipped := range fresh.skipped {
			if len(x.skipped[reason]) != len(skipped) {
				t.Errorf("seed %d: %d pods are skipped, %s, want %d", seed, len(x.skipped[reason]), reason, len(skipped))
			}
		}
		for _, p := range pods {
			x.update(p, nil)
		}
		if len(x.sets)+len(x.skipped)+x.count > 0 {
			t.Errorf("seed %d: state is left without pods: %+v", seed, x)
		}
	}
}

// TestBoundsHoldWhateverHappens keeps a remote beyond its bounds.
func TestBoundsHoldWhateverHappens(t *testing.T) {
	for seed := range rounds(200, 20) {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		b := newBench(t, func(cfg *Config) { cfg.Remotes[0].Rules.MaxSets, cfg.Remotes[0].Rules.MaxAddresses = 3, 6 })
		pods := map[string]*Pod{}
		count := func() (sets map[Identity][]netip.Addr, total int) {
			sets = map[Identity][]netip.Addr{}
			for _, o := range b.ledger.All() {
				sets[o.Identity] = o.Addrs
				total += len(o.Addrs)
			}
			return sets, total
		}
		for range 200 {
			name := fmt.Sprint(random.IntN(30))
			var after *Pod
			if random.IntN(3) > 0 {
				p := podWith(name, string(rune('a'+random.IntN(8))), fmt.Sprintf("10.4.0.%d", random.IntN(12)))
				p.Namespace = string(rune('x' + random.IntN(3)))
				after = &p
			}
			before, _ := count()
			lost, _ := b.pods.update(pods[name], after)
			if pods[name] = after; after == nil {
				delete(pods, name)
			}
			existing, others := b.remote.everything()
			ids := slices.Concat(lost, existing, others)
			for _, id := range lost {
				b.write(id)
			}
			for range min(20, 20*len(ids)) {
				b.write(ids[random.IntN(len(ids))])
				sets, total := count()
				of := map[string]usage{}
				for id, addrs := range sets {
					of[id.Namespace] = usage{of[id.Namespace].sets + 1, of[id.Namespace].addresses + len(addrs)}
				}
				for _, n := range of {
					if len(sets) > 3 || total > 6 || n.sets > 2 || n.addresses > 3 {
						t.Fatalf("seed %d: %d sets, %d addresses, %v", seed, len(sets), total, of)
					}
				}
			}
			b.settle()
			sets, total := count()
			if len(sets) != len(b.quota.granted) || total != b.quota.addresses {
				t.Fatalf("seed %d: %d sets, %d addresses, counted %d, %d", seed, len(sets), total, len(b.quota.granted), b.quota.addresses)
			}
			// What a set has and still needs stays.
			desired, most := map[string]usage{}, usage{}
			for id := range b.pods.sets {
				wanted := b.pods.addresses(id)
				of := desired[id.Namespace]
				desired[id.Namespace] = usage{of.sets + 1, of.addresses + len(wanted)}
				for _, addr := range before[id] {
					if slices.Contains(wanted, addr) && !slices.Contains(sets[id], addr) {
						t.Fatalf("seed %d: %v of %v lost its place", seed, addr, id)
					}
				}
			}
			for _, of := range desired {
				most.sets, most.addresses = most.sets+min(of.sets, 2), most.addresses+min(of.addresses, 3)
			}
			if total < min(most.addresses, 6) && len(sets) < min(most.sets, 3) {
				t.Fatalf("seed %d: a set or an address waits although there is room: %v of %v", seed, sets, desired)
			}
		}
		for _, p := range pods {
			lost, _ := b.pods.update(p, nil)
			for _, id := range lost {
				b.write(id)
			}
		}
		if b.settle(); len(b.quota.granted)+len(b.quota.short)+len(b.quota.namespaces)+b.quota.addresses > 0 {
			t.Errorf("seed %d: %+v is left without pods", seed, b.quota)
		}
	}
}
