package policy

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// ours is a set of a remote as it is in the local cluster.
func ours(name string, id Identity, list ...string) *Observed {
	return &Observed{
		Object: Object{Name: name, Identity: id, Addrs: addrs(list...)},
		Owned:  true, Exact: true, UID: "uid-" + name, ResourceVersion: "1",
	}
}

func foreign(name string) *Observed { return &Observed{Object: Object{Name: name}} }

func byName(sets ...*Observed) map[string]*Observed {
	all := map[string]*Observed{}
	for _, s := range sets {
		all[s.Name] = s
	}
	return all
}

// made returns the objects after changes.
func made(have map[string]*Observed, changes []Change) map[string]*Observed {
	have = maps.Clone(have)
	if have == nil {
		have = map[string]*Observed{}
	}
	for _, c := range changes {
		if c.Want == nil {
			delete(have, c.Name)
		} else {
			have[c.Name] = &Observed{Object: *c.Want, Owned: true, Exact: true}
		}
	}
	return have
}

func view(id Identity, list []netip.Addr, taken ...string) *View {
	return &View{
		ID: id, Addrs: list,
		Taken: func(name string) bool { return slices.Contains(taken, name) },
	}
}

func desired(t *testing.T, v *View) []Object {
	t.Helper()
	objects, err := Desired(v)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func TestForeignObjectsAreNeverTaken(t *testing.T) {
	id := gcp("app")
	var all []string
	for try := range maxCandidates {
		want := []Object{{Name: id.candidate(1, try), Identity: id, Addrs: addrs("10.4.0.1")}}
		if diff := cmp.Diff(want, desired(t, view(id, addrs("10.4.0.1"), all...)), compareAddrs); diff != "" {
			t.Errorf("%d names are taken (-want +got):\n%s", try, diff)
		}
		all = append(all, id.candidate(1, try))
	}
	got, err := Desired(view(id, addrs("10.4.0.1"), all...))
	if err == nil || !strings.Contains(err.Error(), id.String()) || len(got) > 0 {
		t.Errorf("all names are taken: %v, %v", got, err)
	}
}

func TestDiffTouchesOnlyWhatDiffers(t *testing.T) {
	drifted := ours("drifted", gcp("app"), "10.4.0.3")
	drifted.Exact = false
	leaving := ours("leaving", gcp("app"), "10.4.0.8")
	leaving.Deleting = true
	empty := ours("empty", gcp("app"))
	empty.Deleting = true
	have := byName(
		ours("same", gcp("app"), "10.4.0.1"), ours("grows", gcp("app"), "10.4.0.2"),
		ours("gone", gcp("app"), "10.4.0.9"), ours("relabelled", gcp("other"), "10.4.0.7"), drifted, leaving, empty,
	)
	want := []Object{
		{Name: "same", Identity: gcp("app"), Addrs: addrs("10.4.0.1")},
		{Name: "grows", Identity: gcp("app"), Addrs: addrs("10.4.0.2", "10.4.0.4")},
		{Name: "drifted", Identity: gcp("app"), Addrs: addrs("10.4.0.3")},
		{Name: "new", Identity: gcp("app"), Addrs: addrs("10.4.0.5")},
		{Name: "relabelled", Identity: gcp("app"), Addrs: addrs("10.4.0.7")},
	}
	got := map[string]string{}
	changes, again := Diff(have, want)
	if again {
		t.Error("an address moves")
	}
	first := 0
	for i := range changes {
		if changes[i].removes() && first < i {
			t.Errorf("%s, which removes something, comes after another one", changes[i].Name)
		} else if changes[i].removes() {
			first = i + 1
		}
	}
	for _, c := range changes {
		switch {
		case c.Have == nil:
			got[c.Name] = "create"
		case c.Want == nil:
			got[c.Name] = "delete"
		default:
			got[c.Name] = "patch"
		}
	}
	if diff := cmp.Diff(map[string]string{"grows": "patch", "drifted": "patch", "relabelled": "patch", "new": "create", "gone": "delete", "leaving": "patch"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDiffConverges grows and shrinks a set at random, with small shards, while others
// take and free names. After each step the objects hold every address that stays, in the end all
// addresses, and then a diff is empty.
func TestDiffConverges(t *testing.T) {
	const size = 5
	random := rand.New(rand.NewPCG(9, 9))
	pool := randomAddrs(random, 60)
	id := gcp("app")
	have := map[string]*Observed{}
	for range rounds(2000, 200) {
		if random.IntN(5) == 0 { // another client edits or deletes an object
			for name, o := range have {
				if edited := *o; random.IntN(2) == 0 {
					edited.Addrs = randomAddrs(random, 3)
					have[name] = &edited
				} else {
					delete(have, name)
				}
				break
			}
		}
		want := slices.Clone(pool)
		random.Shuffle(len(want), func(i, j int) { want[i], want[j] = want[j], want[i] })
		want = want[:random.IntN(len(want))]
		slices.SortFunc(want, netip.Addr.Compare)
		taken := id.candidate(1+random.IntN(5), random.IntN(3))
		v := &View{
			ID: id, Addrs: want, Size: size,
			Taken: func(name string) bool { return name == taken && have[name] == nil },
		}
		var objects []Object
		for step := 0; ; step++ {
			if step > 8 {
				t.Fatal("more than eight steps are needed")
			}
			v.Have = have
			objects = desired(t, v)
			if again := desired(t, v); !reflect.DeepEqual(objects, again) {
				t.Fatalf("a second call desires other objects:\n%s", cmp.Diff(objects, again, compareAddrs))
			}
			changes, again := Diff(have, objects)
			if len(changes) == 0 {
				if again {
					t.Fatal("an address waits for nothing")
				}
				break
			}
			for _, c := range changes {
				for _, addr := range c.Want.addrs() {
					if !slices.Contains(want, addr) {
						t.Fatalf("%v stays in %s", addr, c.Name)
					}
				}
			}
			random.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
			before := held(have)
			for i := range changes {
				now := held(made(have, changes[:i+1]))
				for _, addr := range want {
					if before[addr] && !now[addr] {
						t.Fatalf("no object holds %v after the change of %s", addr, changes[i].Name)
					}
				}
			}
			have = made(have, changes)
		}
		all := held(have)
		if len(all) != len(want) {
			t.Fatalf("%d addresses, want %d", len(all), len(want))
		}
		for _, o := range objects {
			if have[o.Name] == nil || !have[o.Name].matches(&o) || len(o.Addrs) > size {
				t.Fatalf("%s is %v, want %v", o.Name, have[o.Name], o)
			}
		}
		if changes, _ := Diff(have, objects); len(changes) > 0 {
			t.Fatalf("a second diff has %v", changes)
		}
	}
}

func held(have map[string]*Observed) map[netip.Addr]bool {
	all := map[netip.Addr]bool{}
	for _, o := range have {
		for _, addr := range o.Addrs {
			all[addr] = true
		}
	}
	return all
}

func (o *Object) addrs() []netip.Addr {
	if o == nil {
		return nil
	}
	return o.Addrs
}
