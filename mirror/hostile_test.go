package mirror

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// TestSliceNamesHaveNoSecondOrigin checks the length of the hash in names: a remote that is
// part of a global service may try many names until one collides.
func TestSliceNamesHaveNoSecondOrigin(t *testing.T) {
	name := sliceName("gl-shop-73736d-web", "aws", &origin.Slice{Name: "web-1", Service: origin.Key{Namespace: "shop", Name: "web"}, Family: discoveryv1.AddressTypeIPv4})
	digits, found := strings.CutPrefix(name, "gl-shop-73736d-web-")
	if !found || len(digits)*4 < 128 {
		t.Errorf("%s has %d bits of a hash, want 128 at least", name, len(digits)*4)
	}
}

// TestLastToJoinDecidesNothing gives origins of remotes false dates.
func TestLastToJoinDecidesNothing(t *testing.T) {
	web := origin.Key{Namespace: "shop", Name: "web"}
	aws, merit, gcp := setOf("aws", merged), setOf("merit", merged), setOf("gcp", merged)
	honest := newOrigin(web, 1000, 80, origin.Traits{})
	backdated := newOrigin(web, 1, 6666, origin.Traits{Headless: true, PublishNotReady: true, AffinityTimeout: 1})
	backdated.LocalFirst = true
	check := func(t *testing.T, w *world, accepted ...string) {
		t.Helper()
		s := w.plans[globalName]
		if s == nil {
			t.Fatal("no global service")
		}
		if s.Spec.Traits != honest.Spec.Traits || s.LocalFirst || s.Spec.Ports[0].Port != 80 {
			t.Errorf("%+v, local first %v: not as in the clusters that joined before", s.Spec, s.LocalFirst)
		}
		if diff := cmp.Diff(accepted, s.Accepted); diff != "" {
			t.Errorf("accepted (-want +got):\n%s", diff)
		}
	}
	t.Run("the first remote stays first", func(t *testing.T) {
		w := newWorld()
		w.says(t, merit, honest)
		check(t, w, "merit")
		w.says(t, aws, backdated)
		check(t, w, "merit", "aws")
		w.again()
		w.settle(t)
		check(t, w, "merit", "aws")
	})
	t.Run("also while the object does not exist", func(t *testing.T) {
		w := newWorld()
		w.says(t, merit, honest)
		w.says(t, aws, backdated)
		clear(w.services)
		w.show()
		w.planned()
		check(t, w, "merit", "aws")
	})
	t.Run("the local cluster is before all", func(t *testing.T) {
		w := newWorld()
		kind := newOrigin(web, 1, 6666, origin.Traits{PublishNotReady: true, AffinityTimeout: 1})
		w.says(t, aws, kind)
		w.says(t, gcp, honest)
		check(t, w, "aws")
		w.says(t, merit, backdated)
		check(t, w, "aws", "merit")
	})
	t.Run("but what runs keeps its kind", func(t *testing.T) {
		w := newWorld()
		w.says(t, aws, honest)
		uid := w.services[globalName].UID
		w.says(t, gcp, newOrigin(web, 1, 80, origin.Traits{Headless: true}))
		if w.services[globalName].UID != uid || w.plans[globalName].Spec.Headless {
			t.Error("a headless joiner has replaced the service that all use")
		}
		if c := w.plans[globalName].Conflicts; len(c) != 1 || c[0].Cluster != "gcp" {
			t.Errorf("conflicts %v, want one of the joiner", c)
		}
		w.again()
		w.settle(t)
		w.says(t, aws)
		if !w.plans[globalName].Spec.Headless {
			t.Error("no cluster wants this kind any more, and it stays")
		}
	})
	t.Run("a remote that leaves loses its place", func(t *testing.T) {
		w := newWorld()
		w.says(t, aws, backdated)
		w.says(t, merit, honest)
		w.says(t, aws)
		check(t, w, "merit")
		w.says(t, aws, backdated)
		check(t, w, "merit", "aws")
	})
	t.Run("a remote out of contact keeps it", func(t *testing.T) {
		w := newWorld()
		w.says(t, merit, honest)
		w.again()
		w.contact(merit, false, false)
		w.says(t, aws, backdated)
		check(t, w, "merit", "aws")
		w.says(t, merit, honest)
		check(t, w, "merit", "aws")
	})
}

// rival is one of two origins of one name.
type rival struct {
	set    setID
	origin origin.Key
}

func (r rival) id() origin.ID { return r.set.Kind.Of(r.set.Cluster, r.origin) }

// TestNoOriginTakesAnothersName gives origins names whose mirrors or global services would have
// the same name.
func TestNoOriginTakesAnothersName(t *testing.T) {
	aws, merit := setOf("aws", mirrored), setOf("merit", mirrored)
	globalAWS, globalMerit, gcp := setOf("aws", merged), setOf("merit", merged), setOf("gcp", merged)
	for _, c := range []struct {
		name   string
		prefix string // of merit
		a, b   rival
		first  int // which gets the name when both come at once
	}{
		{"a global name that is cut, and one that is that", "c1-x", rival{globalAWS, origin.Key{Namespace: "z", Name: longName}}, rival{globalMerit, origin.Key{Namespace: "z", Name: twin("gl", "z", longName)}}, 0},
		{"a mirror's name that is cut, and one that is that", "c1-x", rival{aws, origin.Key{Namespace: "z", Name: longName}}, rival{aws, origin.Key{Namespace: "z", Name: twin("c1", "z", longName)}}, 0},
		{"one prefix begins like the other", "c1-x", rival{merit, origin.Key{Namespace: "y", Name: "n"}}, rival{aws, origin.Key{Namespace: "x-y", Name: "n"}}, 0},
		{"a prefix that begins like a global name", "gl-x", rival{globalAWS, origin.Key{Namespace: "x-y", Name: "n"}}, rival{merit, origin.Key{Namespace: "y", Name: "n"}}, 0},
	} {
		clusters := testClusters()
		clusters[2].prefix = c.prefix
		claimants := []rival{c.a, c.b}
		for _, order := range [][]int{{0, 1}, {1, 0}, {}} {
			t.Run(fmt.Sprint(c.name, order), func(t *testing.T) {
				w := newWorld(clusters...)
				var name string
				for i, n := range order {
					w.origin(claimants[n].set, claimants[n].origin, newOrigin(claimants[n].origin, 1, 80, origin.Traits{}))
					w.settle(t)
					if i == 0 {
						name = slices.Collect(maps.Keys(w.services))[0]
					}
				}
				first := c.first
				if len(order) > 0 {
					first = order[0]
				} else {
					for _, p := range claimants {
						w.origin(p.set, p.origin, newOrigin(p.origin, 1, 80, origin.Traits{}))
					}
					w.settle(t)
					name = slices.Collect(maps.Keys(w.services))[0]
				}
				uid := w.services[name].UID
				check := func(when string) {
					t.Helper()
					if len(w.services) != 1 {
						t.Fatalf("%s: %d services of one name", when, len(w.services))
					}
					p := claimants[first]
					if s := w.plans[name]; s == nil || !slices.Equal(s.Refused, []origin.ID{claimants[1-first].id()}) || s.Origin != p.id() || w.services[name].UID != uid {
						t.Fatalf("%s: %s is that of %v, not of %v, which had it", when, name, s.Origin, p)
					}
				}
				check("both exist")
				w.again()
				w.settle(t)
				check("after a restart")
				// Without the first one, the name is free.
				w.origin(claimants[first].set, claimants[first].origin, nil)
				w.settle(t)
				if p := claimants[1-first]; len(w.services) != 1 || w.plans[name].Origin != p.id() {
					t.Errorf("%s doesn't go to the remaining origin", name)
				}
			})
		}
	}
	t.Run("the local cluster's service goes first", func(t *testing.T) {
		w := newWorld()
		victim := origin.Key{Namespace: "z", Name: longName}
		w.says(t, globalMerit, newOrigin(origin.Key{Namespace: "z", Name: twin("gl", "z", longName)}, 1, 6666, origin.Traits{}))
		w.says(t, gcp, newOrigin(victim, 1000, 80, origin.Traits{}))
		if s := w.plans[GlobalName(victim)]; s == nil || s.Origin.Key != victim {
			t.Errorf("%s is not that of the local service", GlobalName(victim))
		}
	})
}

// TestNameFollowsTheObject annotates a service whose name two origins claim as that of the other
// one, which keeps the name.
func TestNameFollowsTheObject(t *testing.T) {
	w := newWorld()
	aws, merit := setOf("aws", mirrored), setOf("merit", mirrored)
	first, second := origin.Key{Namespace: "y", Name: "n"}, origin.Key{Namespace: "x-y", Name: "n"}
	name := Name("c1", second)
	w.says(t, merit, newOrigin(first, 1, 80, origin.Traits{}))
	w.says(t, aws, newOrigin(second, 1, 80, origin.Traits{}))
	s := w.services[name].DeepCopy()
	s.Annotations[annotCluster], s.Annotations[annotNamespace] = "aws", second.Namespace
	w.put(s)
	w.show()
	w.settle(t)
	if got := w.plans[name].Origin; got != (origin.ID{Cluster: "aws", Key: second}) {
		t.Errorf("%s becomes that of %v again", name, got)
	}
}
