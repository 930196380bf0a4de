package policy

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ours is a set of the cluster gcp as it is in the local cluster.
func ours(name string, id Identity, list ...string) Observed {
	return Observed{
		Object: Object{Name: name, Identity: id, Addrs: addrs(list...)},
		Owned:  true, Exact: true, UID: "uid-" + name, ResourceVersion: "1",
	}
}

func foreign(name string) Observed { return Observed{Object: Object{Name: name}} }

func byName(sets ...Observed) map[string]Observed {
	all := map[string]Observed{}
	for _, s := range sets {
		all[s.Name] = s
	}
	return all
}

func plan(t *testing.T, sets map[Identity][]netip.Addr, have ...Observed) []Object {
	t.Helper()
	objects, err := Plan("gcp", sets, byName(have...), 0)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestSetsThatWouldShareANameAreNotMerged(t *testing.T) {
	first, second := Identity{"gcp", "a", "b-c"}, Identity{"gcp", "a-b", "c"}
	sets := map[Identity][]netip.Addr{first: addrs("10.4.0.1"), second: addrs("10.4.0.2")}
	hashed := second.candidate(1, 1)
	want := []Object{
		{Name: "gcp-a-b-c", Identity: first, Addrs: addrs("10.4.0.1")},
		{Name: hashed, Identity: second, Addrs: addrs("10.4.0.2")},
	}
	if diff := cmp.Diff(want, plan(t, sets), compareAddrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	t.Run("the one that has the name keeps it", func(t *testing.T) {
		got := plan(t, sets, ours("gcp-a-b-c", second, "10.4.0.2"))
		want := []Object{
			{Name: "gcp-a-b-c", Identity: second, Addrs: addrs("10.4.0.2")},
			{Name: first.candidate(1, 1), Identity: first, Addrs: addrs("10.4.0.1")},
		}
		if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	t.Run("a name with a hash is kept when the natural one becomes free", func(t *testing.T) {
		got := plan(t, map[Identity][]netip.Addr{second: addrs("10.4.0.2")}, ours(hashed, second, "10.4.0.2"))
		if len(got) != 1 || got[0].Name != hashed {
			t.Errorf("planned %v, want the object %s", got, hashed)
		}
	})
}

func TestForeignObjectsAreNeverTaken(t *testing.T) {
	id := gcp("app")
	elsewhere := ours(id.Natural(1), Identity{"gcp-ns", "x", "app"}, "10.9.0.1") // of another remote
	for name, blocker := range map[string]Observed{"somebody's": foreign(id.Natural(1)), "another remote's": elsewhere} {
		t.Run(name, func(t *testing.T) {
			got := plan(t, map[Identity][]netip.Addr{id: addrs("10.4.0.1")}, blocker)
			want := []Object{{Name: id.candidate(1, 1), Identity: id, Addrs: addrs("10.4.0.1")}}
			if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
	t.Run("the hashed name is taken too", func(t *testing.T) {
		got := plan(t, map[Identity][]netip.Addr{id: addrs("10.4.0.1")}, foreign(id.Natural(1)), foreign(id.candidate(1, 1)))
		if len(got) != 1 || got[0].Name != id.candidate(1, 2) {
			t.Errorf("planned %v, want the name %s", got, id.candidate(1, 2))
		}
	})
	t.Run("all names are taken", func(t *testing.T) {
		var all []Observed
		for try := range maxCandidates {
			all = append(all, foreign(id.candidate(1, try)))
		}
		sets := map[Identity][]netip.Addr{id: addrs("10.4.0.1"), gcp("other"): addrs("10.4.0.2")}
		got, err := Plan("gcp", sets, byName(all...), 0)
		if err == nil || !strings.Contains(err.Error(), id.String()) {
			t.Errorf("error %v, want one that names %v", err, id)
		}
		if len(got) != 1 || got[0].Identity != gcp("other") {
			t.Errorf("planned %v, want the other set all the same", got)
		}
	})
}

func TestAnEditedObjectIsRepairedInPlace(t *testing.T) {
	// Somebody changed the label with the set's name.
	edited := ours("gcp-ns-app", gcp("something-else"), "10.4.0.1")
	got := plan(t, map[Identity][]netip.Addr{gcp("app"): addrs("10.4.0.1")}, edited)
	want := []Object{{Name: "gcp-ns-app", Identity: gcp("app"), Addrs: addrs("10.4.0.1")}}
	if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	changes := Diff("gcp", byName(edited), got)
	if len(changes) != 1 || changes[0].Have == nil || changes[0].Want == nil {
		t.Errorf("changes %v, want one patch", changes)
	}
}

func TestASetThatNamesAnotherOnesShardIsNotMerged(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	big, small := gcp("app"), gcp("app-2")
	sets := map[Identity][]netip.Addr{big: randomAddrs(rng, 25), small: addrs("10.4.0.1")}
	objects, err := Plan("gcp", sets, nil, 10)
	if err != nil {
		t.Fatal(err)
	}
	checkPlan(t, objects, sets, nil, 10)
	// Once there, everything stays where it is.
	have := apply(nil, Diff("gcp", nil, objects))
	again, err := Plan("gcp", sets, have, 10)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(objects, again, compareAddrs); diff != "" {
		t.Errorf("planned anew (-first +second):\n%s", diff)
	}
}

// apply makes changes as an API server would.
func apply(have map[string]Observed, changes []Change) map[string]Observed {
	after := maps.Clone(have)
	if after == nil {
		after = map[string]Observed{}
	}
	for _, c := range changes {
		if c.Want == nil {
			delete(after, c.Name)
			continue
		}
		after[c.Name] = Observed{Object: *c.Want, Owned: true, Exact: true}
	}
	return after
}

// checkPlan holds what every plan must fulfil.
func checkPlan(t *testing.T, objects []Object, sets map[Identity][]netip.Addr, have map[string]Observed, size int) {
	t.Helper()
	together := map[Identity][]netip.Addr{}
	names := map[string]bool{}
	for _, o := range objects {
		if names[o.Name] {
			t.Fatalf("%s is planned twice", o.Name)
		}
		names[o.Name] = true
		if existing, exists := have[o.Name]; exists && !existing.of("gcp") {
			t.Fatalf("%s is not ours", o.Name)
		}
		if len(o.Addrs) == 0 || len(o.Addrs) > size {
			t.Fatalf("%s holds %d addresses of at most %d", o.Name, len(o.Addrs), size)
		}
		together[o.Identity] = append(together[o.Identity], o.Addrs...)
	}
	for id := range together {
		slices.SortFunc(together[id], netip.Addr.Compare)
	}
	if diff := cmp.Diff(sets, together, compareAddrs); diff != "" {
		t.Fatalf("objects don't hold the sets (-want +got):\n%s", diff)
	}
}

// TestAnyStateIsReachedFromAnyOther walks through random states. Namespaces and
// names are such that many identities share their natural names.
func TestAnyStateIsReachedFromAnyOther(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	pool := randomAddrs(rng, 60)
	parts := []string{"a", "a-b", "b", "b-2", "a-2", "A", "2"}
	const size = 8
	have := byName(foreign("gcp-a-b"), foreign("gcp-b-2"), ours("aws-a-b", Identity{"aws", "a", "b"}, "10.9.0.1"))
	others := maps.Clone(have)
	for range 250 {
		sets := map[Identity][]netip.Addr{}
		for range rng.IntN(8) {
			id := Identity{"gcp", parts[rng.IntN(5)], parts[rng.IntN(len(parts))]}
			members := slices.Clone(pool)
			rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			members = members[:1+rng.IntN(30)]
			slices.SortFunc(members, netip.Addr.Compare)
			sets[id] = members
		}
		want, err := Plan("gcp", sets, have, size)
		if err != nil {
			t.Fatal(err)
		}
		checkPlan(t, want, sets, have, size)

		// What is asked for doesn't depend on how often.
		if again, _ := Plan("gcp", sets, have, size); !cmp.Equal(want, again, compareAddrs) {
			t.Fatalf("two plans differ:\n%s", cmp.Diff(want, again, compareAddrs))
		}

		// The way there: no address is missing from the set in between.
		steps := 0
		for ; ; steps++ {
			if steps > 3 {
				t.Fatal("there are more than three steps to the goal")
			}
			eased, held := Ease("gcp", have, want, func(Held) bool { return false })
			changes := Diff("gcp", have, eased)
			if len(changes) == 0 {
				if len(held) > 0 {
					t.Fatalf("addresses are held for nothing: %v", held)
				}
				break
			}
			checkOneByOne(t, have, changes, sets)
			have = apply(have, changes)
		}
		if changes := Diff("gcp", have, want); len(changes) > 0 {
			t.Fatalf("not there after %d steps: %v", steps, changes)
		}
		replan, err := Plan("gcp", sets, have, size)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, replan, compareAddrs); diff != "" {
			t.Fatalf("what was reached is not what is wanted (-reached +wanted):\n%s", diff)
		}
		for name, o := range others {
			if diff := cmp.Diff(o, have[name], compareAddrs); diff != "" {
				t.Fatalf("object of somebody else changed:\n%s", diff)
			}
		}
	}
}

// checkOneByOne applies changes in random order and looks after each whether an
// address that was somewhere, and still must be somewhere, is nowhere.
func checkOneByOne(t *testing.T, have map[string]Observed, changes []Change, sets map[Identity][]netip.Addr) {
	t.Helper()
	anywhere := func(state map[string]Observed) map[netip.Addr]bool {
		all := map[netip.Addr]bool{}
		for _, o := range state {
			if o.of("gcp") {
				for _, a := range o.Addrs {
					all[a] = true
				}
			}
		}
		return all
	}
	before := anywhere(have)
	needed := map[netip.Addr]bool{}
	for _, list := range sets {
		for _, a := range list {
			needed[a] = before[a]
		}
	}
	rand.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
	state := have
	for _, c := range changes {
		state = apply(state, []Change{c})
		now := anywhere(state)
		for a, must := range needed {
			if must && !now[a] {
				t.Fatalf("%v is nowhere after the change of %s", a, c.Name)
			}
		}
	}
}
