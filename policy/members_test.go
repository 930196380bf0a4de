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

func (m *Members) counts() map[Reason]int {
	counts := map[Reason]int{}
	for reason, pods := range m.Skipped() {
		counts[Reason(reason)] = pods.Pods
	}
	return counts
}

func TestCollect(t *testing.T) {
	finished := podWith("done", "app")
	finished.Finished = true
	host := podWith("host", "app", "192.168.0.1")
	host.HostNetwork = true
	bad := Pod{Namespace: "ns", Name: "bad", Set: "ü", Fault: ReasonBadName}
	for name, test := range map[string]struct {
		pods    []Pod
		rules   Rules
		want    map[Identity][]netip.Addr
		skipped map[Reason]int
	}{
		"sorted, without duplicates, both families": {
			pods: []Pod{podWith("c", "app", "10.4.0.10", "fd00::2"), podWith("a", "app", "10.4.0.9", "fd00::1"), podWith("b", "app", "10.4.0.9")},
			want: map[Identity][]netip.Addr{gcp("app"): addrs("10.4.0.9", "10.4.0.10", "fd00::1", "fd00::2")},
		},
		"a finished pod's address doesn't count, that of the pod that has it now does": {
			pods:    []Pod{finished, podWith("new", "app", "10.4.0.1")},
			want:    map[Identity][]netip.Addr{gcp("app"): addrs("10.4.0.1")},
			skipped: map[Reason]int{ReasonFinished: 1},
		},
		"an address of two sets is in both": {
			pods: []Pod{podWith("old", "app", "10.4.0.1"), podWith("new", "other", "10.4.0.1")},
			want: map[Identity][]netip.Addr{gcp("app"): addrs("10.4.0.1"), gcp("other"): addrs("10.4.0.1")},
		},
		"host network stays out": {
			pods: []Pod{host}, want: map[Identity][]netip.Addr{}, skipped: map[Reason]int{ReasonHostNetwork: 1},
		},
		"host network that is let in": {
			pods: []Pod{host}, rules: Rules{IncludeHostNetwork: true},
			want: map[Identity][]netip.Addr{gcp("app"): addrs("192.168.0.1")},
		},
		"addresses outside of the subnets": {
			pods:  []Pod{podWith("a", "app", "10.5.0.1", "fd00::1"), podWith("b", "app", "10.4.0.1", "fd01::1"), podWith("c", "app", "10.5.0.1")},
			rules: rules("10.4.0.0/16", "fd00::/48"),
			want:  map[Identity][]netip.Addr{gcp("app"): addrs("10.4.0.1", "fd00::1")}, skipped: map[Reason]int{ReasonOutside: 3},
		},
		"bad names and no address": {
			pods: []Pod{bad, podWith("pending", "app")}, want: map[Identity][]netip.Addr{},
			skipped: map[Reason]int{ReasonBadName: 1, ReasonNoAddress: 1},
		},
		"more sets than there may be": {
			pods:  []Pod{podWith("a", "a", "10.4.0.1"), podWith("b", "b", "10.4.0.2"), podWith("c", "c", "10.4.0.3"), podWith("d", "a", "10.4.0.4")},
			rules: Rules{MaxSets: 2},
			want:  map[Identity][]netip.Addr{gcp("a"): addrs("10.4.0.1", "10.4.0.4"), gcp("b"): addrs("10.4.0.2")}, skipped: map[Reason]int{ReasonTooManySets: 1},
		},
		"more addresses than there may be": {
			pods:  []Pod{podWith("a", "a", "10.4.0.1"), podWith("b", "b", "10.4.0.2", "fd00::2"), podWith("c", "a", "10.4.0.3"), podWith("d", "a", "10.4.0.1")},
			rules: Rules{MaxAddresses: 2},
			want:  map[Identity][]netip.Addr{gcp("a"): addrs("10.4.0.1"), gcp("b"): addrs("10.4.0.2")}, skipped: map[Reason]int{ReasonTooManyAddresses: 2},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.rules.Cluster = "gcp"
			m := NewMembers(test.rules)
			for i := range test.pods {
				m.Update(nil, &test.pods[i], time.Time{})
			}
			if diff := cmp.Diff(test.want, m.holdAll(), compareAddrs); diff != "" {
				t.Errorf("sets (-want +got):\n%s", diff)
			}
			if test.skipped == nil {
				test.skipped = map[Reason]int{}
			}
			if diff := cmp.Diff(test.skipped, m.counts()); diff != "" {
				t.Errorf("skipped (-want +got):\n%s", diff)
			}
		})
	}
}

func TestFirstPodStaysAndTheNextFollows(t *testing.T) {
	m := NewMembers(Rules{Cluster: "gcp", MaxSets: 2, MaxAddresses: 3})
	pods := map[string]*Pod{}
	put := func(name, set string, ips ...string) {
		p := podWith(name, set, ips...)
		m.Update(pods[name], &p, time.Time{})
		pods[name] = &p
	}
	drop := func(name string) {
		m.Update(pods[name], nil, time.Time{})
		delete(pods, name)
	}
	want := func(sets map[Identity][]netip.Addr, skipped map[Reason]int) {
		t.Helper()
		if diff := cmp.Diff(sets, m.holdAll(), compareAddrs); diff != "" {
			t.Errorf("sets (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff(skipped, m.counts()); diff != "" {
			t.Errorf("skipped (-want +got):\n%s", diff)
		}
	}
	put("1", "a", "10.4.0.1")
	put("2", "b", "10.4.0.2")
	put("3", "c", "10.4.0.3")
	put("4", "d", "10.4.0.4")
	put("5", "a", "10.4.0.5")
	put("6", "a", "10.4.0.6")
	put("7", "b", "10.4.0.7")
	a, b, c, d := gcp("a"), gcp("b"), gcp("c"), gcp("d")
	want(map[Identity][]netip.Addr{a: addrs("10.4.0.1", "10.4.0.5"), b: addrs("10.4.0.2")}, map[Reason]int{ReasonTooManySets: 2, ReasonTooManyAddresses: 2})
	drop("5")
	want(map[Identity][]netip.Addr{a: addrs("10.4.0.1", "10.4.0.6"), b: addrs("10.4.0.2")}, map[Reason]int{ReasonTooManySets: 2, ReasonTooManyAddresses: 1})
	m.Touched()
	drop("7")
	drop("2")
	want(map[Identity][]netip.Addr{a: addrs("10.4.0.1", "10.4.0.6"), c: addrs("10.4.0.3")}, map[Reason]int{ReasonTooManySets: 1})
	if diff := cmp.Diff([]Identity{b, c}, m.Touched()); diff != "" {
		t.Errorf("touched (-want +got):\n%s", diff)
	}
	drop("3")
	want(map[Identity][]netip.Addr{a: addrs("10.4.0.1", "10.4.0.6"), d: addrs("10.4.0.4")}, map[Reason]int{})
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
