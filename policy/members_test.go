package policy

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

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

// sets returns what all sets must hold.
func (m *Members) holdAll() map[Identity][]netip.Addr {
	all := map[Identity][]netip.Addr{}
	for id := range m.sets {
		if addrs := m.Addrs(id); len(addrs) > 0 {
			all[id] = addrs
		}
	}
	return all
}

// TestOnlyTheSamePodHoldsAnAddress checks which pods retain an address in a set of which
// they are no longer members.
func TestOnlyTheSamePodHoldsAnAddress(t *testing.T) {
	const ip = "10.4.0.1"
	now := time.Unix(1000, 0)
	with := func(name string, uid uint64, set string, ips ...string) *Pod {
		p := podWith(name, set, ips...)
		p.UID = uid
		return &p
	}
	old, ready := with("p", 1, "a", ip), func(netip.Addr) bool { return true }
	for _, c := range []struct {
		name string
		do   func(m *Members)
		held []netip.Addr
	}{
		{"relabelled", func(m *Members) { m.Update(old, with("p", 1, "b", ip), now) }, addrs(ip)},
		{"relabelled, and the new set has it", func(m *Members) {
			m.Update(old, with("p", 1, "b", ip), now)
			m.Arrived(gcp("b"), ready)
		}, nil},
		{"relabelled long ago", func(m *Members) { m.Update(old, with("p", 1, "b", ip), now.Add(-holdLimit)) }, nil},
		{"relabelled and back", func(m *Members) {
			moved := with("p", 1, "b", ip)
			m.Update(old, moved, now)
			m.Update(moved, with("p", 1, "a", ip), now)
		}, nil},
		{"relabelled twice", func(m *Members) {
			moved := with("p", 1, "b", ip)
			m.Update(old, moved, now)
			m.Update(moved, with("p", 1, "c", ip), now)
			m.Arrived(gcp("b"), ready)
		}, addrs(ip)},
		{"deleted, and another pod has it", func(m *Members) {
			m.Update(old, nil, now)
			m.Update(nil, with("q", 2, "b", ip), now)
		}, nil},
		{"another pod has it, then deleted", func(m *Members) {
			m.Update(nil, with("q", 2, "b", ip), now)
			m.Update(old, nil, now)
		}, nil},
		{"another pod of that name has it", func(m *Members) { m.Update(old, with("p", 2, "b", ip), now) }, nil},
		{"pods that have no UID", func(m *Members) {
			nameless := with("n", 0, "a", ip)
			m.Update(old, nil, now)
			m.Update(nil, nameless, now)
			m.Update(nameless, with("n", 0, "b", ip), now)
		}, nil},
		{"relabelled, then deleted, and another pod has it", func(m *Members) {
			moved := with("p", 1, "b", ip)
			m.Update(old, moved, now)
			m.Update(moved, nil, now)
			m.Update(nil, with("q", 2, "b", ip), now)
		}, nil},
		{"relabelled with another address", func(m *Members) { m.Update(old, with("p", 1, "b", "10.4.0.2"), now) }, nil},
		{"relabelled and ended", func(m *Members) {
			ended := with("p", 1, "b", ip)
			ended.Finished = true
			m.Update(old, ended, now)
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewMembers(rules())
			m.Update(nil, old, now)
			c.do(m)
			held, _ := m.Held(gcp("a"), now, func(Identity, netip.Addr) bool { return false })
			if diff := cmp.Diff(c.held, held, compareAddrs); diff != "" {
				t.Errorf("held in the old set (-want +got):\n%s", diff)
			}
			if !slices.Contains(m.Touched(), gcp("a")) {
				t.Error("the old set isn't touched")
			}
		})
	}
}

// TestMembersAreTheSameFromScratch adds, changes and removes pods at random.
func TestMembersAreTheSameFromScratch(t *testing.T) {
	for seed := range rounds(200, 20) {
		random := rand.New(rand.NewPCG(uint64(seed), 0))
		now := time.Unix(1000, 0)
		m, pods, known := NewMembers(rules("10.4.0.0/16")), map[string]*Pod{}, map[Identity][]netip.Addr{}
		for range 200 {
			name := fmt.Sprint(random.IntN(20))
			before := pods[name]
			var after *Pod
			if random.IntN(4) > 0 {
				p := podWith(name, string(rune('a'+random.IntN(4))), fmt.Sprintf("10.%d.0.%d", 4+random.IntN(2), random.IntN(15)))
				p.UID, p.Finished = uint64(1+random.IntN(2)), random.IntN(6) == 0
				after = &p
			}
			m.Update(before, after, now)
			if pods[name] = after; after == nil {
				delete(pods, name)
			}
			now = now.Add(time.Duration(random.IntN(1000)) * time.Millisecond)
			// Only touched sets have changed.
			for _, id := range m.Touched() {
				if known[id] = m.Addrs(id); len(known[id]) == 0 {
					delete(known, id)
				}
			}
			if all := m.holdAll(); !maps.EqualFunc(all, known, slices.Equal) {
				t.Fatalf("seed %d: sets that weren't touched (-now +known):\n%s", seed, cmp.Diff(all, known, compareAddrs))
			}
		}
		scratch := NewMembers(rules("10.4.0.0/16"))
		for _, p := range pods {
			scratch.Update(nil, p, now)
		}
		if diff := cmp.Diff(scratch.holdAll(), m.holdAll(), compareAddrs); diff != "" {
			t.Errorf("seed %d: sets (-scratch +incremental):\n%s", seed, diff)
		}
		if diff := cmp.Diff(scratch.Skipped(), m.Skipped()); diff != "" {
			t.Errorf("seed %d: skipped (-scratch +incremental):\n%s", seed, diff)
		}
		for name, p := range pods {
			m.Update(p, nil, now)
			delete(pods, name)
		}
		if len(m.sets)+len(m.skipped)+len(m.moves)+len(m.leaving)+len(m.coming)+m.pods+m.admitted+m.addresses > 0 {
			t.Errorf("seed %d: state is left without pods: %+v", seed, m)
		}
	}
}

// TestBoundsHoldWhateverHappens keeps a remote beyond its bounds.
func TestBoundsHoldWhateverHappens(t *testing.T) {
	for seed := range rounds(200, 20) {
		random := rand.New(rand.NewPCG(uint64(seed), 1))
		m, pods := NewMembers(Rules{Cluster: "gcp", MaxSets: 3, MaxAddresses: 6}), map[string]*Pod{}
		for range 300 {
			name := fmt.Sprint(random.IntN(30))
			var after *Pod
			if random.IntN(3) > 0 {
				p := podWith(name, string(rune('a'+random.IntN(8))), fmt.Sprintf("10.4.0.%d", random.IntN(12)))
				p.UID = 1
				after = &p
			}
			before := m.holdAll()
			m.Update(pods[name], after, time.Time{})
			if pods[name] = after; after == nil {
				delete(pods, name)
			}
			sets, total := m.holdAll(), 0
			for _, addrs := range sets {
				total += len(addrs)
			}
			if len(sets) > 3 || total > 6 || total != m.addresses {
				t.Fatalf("seed %d: %d sets, %d addresses, counted %d", seed, len(sets), total, m.addresses)
			}
			// Members within bounds that are still wanted stay.
			for id, list := range before {
				for _, addr := range list {
					if s := m.sets[id]; s != nil && s.entries[addr] != nil && !slices.Contains(sets[id], addr) {
						t.Fatalf("seed %d: %v of %v lost its place", seed, addr, id)
					}
				}
			}
			if waits := m.waitingEntries.Len() > 0; waits && total < 6 || m.waitingSets.Len() > 0 && m.admitted < 3 {
				t.Fatalf("seed %d: a set or an address waits although there is room", seed)
			}
		}
	}
}
