package mirror

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// TestDiffConverges applies the differences of random histories, with foreign objects among
// the observed ones.
func TestDiffConverges(t *testing.T) {
	for round := range rounds(30, 6) {
		r := rand.New(rand.NewPCG(uint64(round), 11))
		w := newWorld()
		for range 100 {
			w.step(r)
			if r.IntN(10) == 0 {
				w.meddle(r)
			}
			foreign := w.foreign()
			w.each(func(want *Service, have *Observed) { w.do(want, w.sums.Diff(have, want), nil) })
			w.show()
			w.touchAll()
			w.each(func(want *Service, have *Observed) {
				if left := w.sums.Diff(have, want); len(left) > 0 {
					t.Fatalf("round %d: %s: left to do %+v", round, want.Name, left)
				}
				if want.Hold == "" {
					w.is(t, want, have)
				}
			})
			if diff := cmp.Diff(foreign, w.foreign()); diff != "" {
				t.Fatalf("round %d: foreign objects (-before +after):\n%s", round, diff)
			}
		}
	}
}

// is compares an observed service with a desired one, without Diff.
func (w *world) is(t *testing.T, want *Service, have *Observed) {
	t.Helper()
	s := w.services[want.Name]
	taken := have.Service != nil && !have.Service.ours
	switch {
	case taken:
	case want.Absent != (s == nil):
		t.Fatalf("%s: there is %v, and must be none: %v", want.Name, s, want.Absent)
	case s != nil && w.sums.service(s, &serviceMarks) != want.sum:
		t.Fatalf("%s is another one", want.Name)
	}
	expected := map[string]sum{}
	if !taken {
		for i := range want.Slices {
			expected[want.Slices[i].Name] = want.Slices[i].sum
		}
	}
	for name, sum := range expected {
		if sl := w.slices[name]; sl == nil || w.sums.observedSlice(sl).ours && w.sums.slice(sl, &sliceMarks) != sum {
			t.Fatalf("slice %s is missing, or another one", name)
		}
	}
	for name, sl := range w.slices {
		if o := w.sums.observedSlice(sl); o.ours && o.service == want.Name {
			if _, ok := expected[name]; !ok {
				t.Fatalf("slice %s of %s is left", name, want.Name)
			}
		}
	}
}

// meddle makes one object foreign, or adds a foreign one.
func (w *world) meddle(r *rand.Rand) {
	for name, s := range w.services {
		if r.IntN(2) == 0 {
			s = s.DeepCopy()
			s.Labels, s.Annotations = nil, nil
			w.put(s)
		} else {
			sl := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "theirs", Labels: map[string]string{discoveryv1.LabelServiceName: name}}}
			w.putSlice(sl)
		}
		break
	}
	w.show()
}

func (w *world) foreign() map[string]string {
	all := map[string]string{}
	for name, s := range w.services {
		if !w.sums.observedService(s).ours {
			all["service "+name] = s.ResourceVersion
		}
	}
	for name, s := range w.slices {
		if !w.sums.observedSlice(s).ours {
			all["slice "+name] = s.ResourceVersion
		}
	}
	return all
}

// TestRemovalsComeFirst: however many endpoints one cluster of a global service gets, those of another
// one leave before them, unless they are the last ones.
func TestRemovalsComeFirst(t *testing.T) {
	web := origin.Key{Namespace: "shop", Name: "web"}
	for name, stays := range map[string]bool{"others stay": true, "the last ones": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld()
			w.hears(setOf("aws", merged), newOrigin(web, 1, 80, origin.Traits{}))
			w.hears(setOf("merit", merged), newOrigin(web, 1, 80, origin.Traits{}))
			w.offers("merit", web, "http 10.6.0.1", "http 10.6.0.2")
			if stays {
				w.hears(setOf("gcp", merged), newOrigin(web, 1, 80, origin.Traits{}))
				w.offers("gcp", web, "http 10.2.0.1")
			}
			w.settle(t)
			for n := range maxSlices {
				w.has(setOf("aws", merged), web, fmt.Sprint("web-", n), fmt.Sprintf("10.4.%d.%d", n/250, 1+n%250))
			}
			for _, sl := range w.slicesOf(setOf("merit", merged)) {
				w.slice(setOf("merit", merged), sl, nil)
			}
			want, have := w.want(globalName)
			changes := w.sums.Diff(&have, &want)
			at := func(verb string) int { return slices.IndexFunc(changes, func(c Change) bool { return c.Verb == verb }) }
			if len(changes) != maxSlices+2 || (at(verbDelete) == 0) != stays || (at(verbCreate) == 0) == stays {
				t.Errorf("%d changes, the first deletion is at %d, the first addition at %d", len(changes), at(verbDelete), at(verbCreate))
			}
		})
	}
}

// TestRemovalsDontDependOnAdditions makes all changes fail except removals, which must
// succeed at the first attempt.
func TestRemovalsDontDependOnAdditions(t *testing.T) {
	w, k := newWorld(), origin.Key{Namespace: "shop", Name: "web"}
	id := setOf("aws", mirrored)
	w.has(id, k, "old", "10.4.0.1")
	w.says(t, id, newOrigin(k, 1, 80, origin.Traits{}))
	w.slice(id, w.sets[id].Slices(k)["old"], nil)
	w.has(id, k, "new", "10.4.0.2")
	w.origin(id, k, newOrigin(k, 1, 81, origin.Traits{}))
	want, have := w.want(Name("c1", k))
	w.do(&want, w.sums.Diff(&have, &want), func(c *Change) bool { return c.Verb != verbDelete })
	if got := w.leads(want.Name); len(got) > 0 {
		t.Errorf("it still leads to %v", got)
	}
}

func TestDiffOfOneService(t *testing.T) {
	k := origin.Key{Namespace: "shop", Name: "web"}
	name := Name("c1", k)
	id := setOf("aws", mirrored)
	start := func(t *testing.T) *world {
		t.Helper()
		w := newWorld()
		w.has(id, k, "web-1", "10.4.0.1")
		w.says(t, id, newOrigin(k, 1, 80, origin.Traits{}))
		return w
	}
	now := metav1.Now()
	six := func() *origin.Service {
		o := newOrigin(k, 1, 80, origin.Traits{IPv6: true})
		o.Spec.IPv4 = false
		return o
	}
	for _, c := range []struct {
		name    string
		happens func(w *world)
		want    []string
	}{
		{"nothing", func(*world) {}, nil},
		{"another port", func(w *world) { w.origin(id, k, newOrigin(k, 1, 81, origin.Traits{})) }, []string{"patch service"}},
		{"headless", func(w *world) { w.origin(id, k, newOrigin(k, 1, 80, origin.Traits{Headless: true})) }, []string{
			"delete service", "create service", "patch endpointslice",
		}},
		{"the origin is gone", func(w *world) { w.origin(id, k, nil) }, []string{"delete service", "delete endpointslice"}},
		{"not heard of", func(w *world) { w.origin(id, k, nil); w.contact(id, false, false) }, nil},
		{"a person takes the service over", func(w *world) {
			s := w.services[name].DeepCopy()
			s.Labels, s.Annotations = nil, nil
			w.put(s)
			w.show()
		}, []string{"delete endpointslice"}},
		{"something with a finalizer holds up its end", func(w *world) {
			s := w.services[name].DeepCopy()
			s.DeletionTimestamp = &now
			w.put(s)
			w.show()
			w.origin(id, k, nil)
		}, []string{"delete endpointslice"}},
		{"it is being deleted, and must exist", func(w *world) {
			s := w.services[name].DeepCopy()
			s.DeletionTimestamp = &now
			w.put(s)
			w.show()
		}, nil},
		{"the other family", func(w *world) { w.origin(id, k, six()) }, []string{"delete service", "create service"}},
		{"both families", func(w *world) {
			w.origin(id, k, newOrigin(k, 1, 80, origin.Traits{IPv6: true}))
		}, []string{"patch service"}},
		{"the other family, while the present one is unknown", func(w *world) {
			s := w.services[name].DeepCopy()
			w.put(s)
			s.Spec.IPFamilies = nil
			w.show()
			w.origin(id, k, six())
		}, []string{"patch service"}},
		{"a slice is being deleted, and must be another one", func(w *world) {
			for _, sl := range w.slices {
				sl = sl.DeepCopy()
				sl.DeletionTimestamp = &now
				w.putSlice(sl)
			}
			w.show()
			w.has(id, k, "web-1", "10.4.0.2")
		}, nil},
		{"a person created its next slice", func(w *world) {
			sl := &origin.Slice{Name: "web-2", Service: k, Family: discoveryv1.AddressTypeIPv4}
			w.slice(id, nil, sl)
			w.putSlice(&discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: sliceName(name, "aws", sl), Labels: map[string]string{corev1.IsHeadlessService: ""}}})
			w.show()
		}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := start(t)
			c.happens(w)
			want, have := w.want(name)
			var got []string
			for _, change := range w.sums.Diff(&have, &want) {
				got = append(got, change.Verb+" "+change.Object)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSlicesOfOtherServicesAreRetained passes a slice of another service to Diff.
func TestSlicesOfOtherServicesAreRetained(t *testing.T) {
	slice := func(name, service string) *ObservedSlice {
		return &ObservedSlice{identity: identity{Meta: keep.Meta{Name: name}, ours: true}, service: service}
	}
	have := Observed{Slices: map[string]*ObservedSlice{"its": slice("its", "web"), "another's": slice("another's", "api")}}
	changes := newSummer().Diff(&have, &Service{Name: "web", Absent: true})
	if len(changes) != 1 || changes[0].Name != "its" || changes[0].Verb != verbDelete {
		t.Errorf("%v", changes)
	}
}
