package mirror

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
	"github.com/kube-semaphore/kube-semaphore/mirror/published"
)

// longName must be shortened. twin returns the name of a service whose mirror would have the same
// name as that of another service in the same namespace.
var longName = strings.Repeat("n", 60)

func twin(prefix, namespace, name string) string {
	return strings.TrimPrefix(shortened(fullName(prefix, origin.Key{Namespace: namespace, Name: name})), fullName(prefix, origin.Key{Namespace: namespace}))
}

// step changes one object, or the state of contact, of a cluster.
func (w *world) step(r *rand.Rand) {
	id := w.order[r.IntN(len(w.order))]
	s := w.sets[id]
	// Names that collide across prefixes and separators.
	names := []string{"n", "n-73736d-n", "m", longName, twin("gl", "z", longName), twin("c1", "z", longName)}
	k := origin.Key{Namespace: []string{"y", "x-y", "x-y-73736d-n", "z"}[r.IntN(4)], Name: names[r.IntN(len(names))]}
	switch r.IntN(15) {
	case 12:
		node := fmt.Sprintf("local-%d", r.IntN(2))
		w.paths.SetNode(node, r.IntN(3) > 0)
		w.judge(w.clock, nil)
	case 13:
		node := fmt.Sprintf("local-%d", r.IntN(2))
		var report *pathreport.Report
		if r.IntN(3) > 0 {
			report = &pathreport.Report{Node: node, Remotes: map[string]pathreport.Down{id.Cluster: {AllBut: r.IntN(2) == 0, Nodes: []string{"n1"}}}}
		}
		w.clock = w.clock.Add(time.Duration(r.IntN(30)) * time.Second)
		w.paths.Report(node, report, w.clock)
		w.judge(w.clock, nil)
	case 14:
		w.drain(id.Cluster, r.IntN(2) == 0)
	case 0:
		w.contact(id, true, s.Stale)
	case 1:
		w.contact(id, s.Synced, !s.Stale)
	case 2:
		w.nodes([][]string{{""}, {"a"}, {"", "a", "b"}}[r.IntN(3)])
	case 3, 4:
		w.origin(id, k, nil)
	case 5:
		if all := w.slicesOf(id); len(all) > 0 {
			w.slice(id, all[r.IntN(len(all))], nil)
		}
	case 6, 7:
		o := newOrigin(k, int64(r.IntN(3)), 80+r.Int32N(2), origin.Traits{Headless: r.IntN(4) == 0})
		if r.IntN(2) == 0 {
			o.Spec.Ports = append(o.Spec.Ports, tcp("metrics", 9090))
		}
		o.LocalFirst, o.LocalMinimum = r.IntN(2) == 0, r.IntN(3)
		if r.IntN(8) == 0 {
			o.Reject = "rejected"
		}
		w.origin(id, k, o)
	case 8:
		if r.IntN(4) == 0 {
			w.setRemoveAt(map[bool]time.Time{true: time.Unix(1e9, 0)}[w.removeAt.IsZero()])
		}
	case 9:
		w.drift(r)
	default:
		sl := &origin.Slice{Name: fmt.Sprintf("slice-%d", r.IntN(6)), Service: k, Family: discoveryv1.AddressTypeIPv4}
		six := r.IntN(2) == 0
		if six {
			sl.Name, sl.Family = sl.Name+"-six", discoveryv1.AddressTypeIPv6
		}
		for _, name := range [][]string{nil, {"http"}, {"http", "metrics"}, {"metrics"}}[r.IntN(4)] {
			protocol, number := corev1.ProtocolTCP, int32(8080)
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number})
		}
		for range r.IntN(4) {
			second, last := 4+r.IntN(3), 1+r.IntN(200)
			address := netip.AddrFrom4([4]byte{10, byte(second), 0, byte(last)})
			if six {
				address = netip.MustParseAddr(fmt.Sprintf("fd00:%d::%x", second, last))
			}
			sl.Endpoints = append(sl.Endpoints, origin.Endpoint{
				Address: address,
				Ready:   origin.Condition(r.IntN(3)),
				Node:    []string{"", "n1", "n2"}[r.IntN(3)],
				Target:  uint64(r.IntN(3)),
			})
		}
		slices.SortFunc(sl.Endpoints, origin.CompareEndpoints)
		// Slices of one name are one, whatever service they are of.
		var before *origin.Slice
		for _, have := range w.slicesOf(id) {
			if have.Service.Namespace == k.Namespace && have.Name == sl.Name {
				before = have
			}
		}
		w.slice(id, before, sl)
		w.judge(w.clock, nil)
	}
}

// drift changes one object of the mirror namespace.
func (w *world) drift(r *rand.Rand) {
	names := slices.Sorted(maps.Keys(w.services))
	parts := slices.Sorted(maps.Keys(w.slices))
	if len(names) == 0 || len(parts) == 0 {
		return
	}
	s := w.services[names[r.IntN(len(names))]].DeepCopy()
	sl := w.slices[parts[r.IntN(len(parts))]].DeepCopy()
	switch r.IntN(5) {
	case 0:
		delete(w.services, s.Name)
	case 1:
		s.Spec.Ports = nil
		w.put(s)
	case 2:
		delete(w.slices, sl.Name)
	case 3:
		sl.Labels[discoveryv1.LabelServiceName] = names[r.IntN(len(names))]
		w.putSlice(sl)
	case 4:
		sl.Endpoints = nil
		w.putSlice(sl)
	}
	w.show()
}

// contents is all that is desired of what may have changed, as text by name.
func (w *world) contents() map[string]string {
	texts := map[string]string{}
	w.each(func(want *Service, _ *Observed) {
		if want.Absent && want.Hold == "" && len(want.Slices) == 0 {
			return
		}
		text := fmt.Sprint(want.Absent, want.Origin, want.Hold, want.Outdated, want.Conflicts, want.Refused)
		objects := []any{want.object(home, "")}
		for i := range want.Slices {
			if sl := &want.Slices[i]; sl.kept != nil {
				text += fmt.Sprint(" ", sl.Name, len(sl.origin.Ports))
			} else {
				objects = append(objects, sl.object(home, want, ""))
			}
		}
		for _, object := range objects {
			data, _ := json.Marshal(object) // it never fails for these types
			text += " " + string(data)
		}
		texts[want.Name] = text
	})
	return texts
}

// TestEventsNameWhatChanges follows random histories by the services that events name, and checks
// that no other one differs from what is desired, that a restart changes nothing without bounds, and
// that quotas and status are those of what is desired.
func TestEventsNameWhatChanges(t *testing.T) {
	bounded := testClusters()
	bounded[1].bounds = Bounds{Services: 4, Slices: 3, Addresses: 5}
	bounded[2].bounds = Bounds{Services: 2, Slices: 50, Addresses: 2}
	for round := range rounds(40, 8) {
		r := rand.New(rand.NewPCG(uint64(round), 7))
		clusters := testClusters()
		if round%2 == 1 {
			clusters = bounded
		}
		w := newWorld(clusters...)
		for _, id := range w.order {
			w.contact(id, r.IntN(2) == 0, false)
		}
		for step := range 120 {
			w.step(r)
			w.settle(t)
			version := w.version
			w.touchAll()
			before := w.contents()
			w.touchAll()
			w.settle(t)
			if w.version != version {
				t.Fatalf("round %d, step %d: %d objects of services that no event has named", round, step, w.version-version)
			}
			w.checkRooms(t)
			w.checkFrontends(t)
			if err := w.checkSurvey(); err != nil {
				t.Fatalf("round %d, step %d: %v", round, step, err)
			}
			if round%2 == 1 {
				continue
			}
			w.again()
			if diff := cmp.Diff(before, w.contents()); diff != "" {
				t.Fatalf("round %d, step %d (-before +after a restart):\n%s", round, step, diff)
			}
		}
	}
}

// checkSurvey compares the survey that follows changes with one of all services.
func (w *world) checkSurvey() error {
	followed, y := w.survey, newSurvey()
	w.survey = y
	w.touchAll()
	w.each(func(*Service, *Observed) {})
	statuses := func(y *survey) map[string]statuspage.Service {
		all := map[string]statuspage.Service{}
		for name, l := range y.services {
			all[name] = l.status
		}
		return all
	}
	diff := cmp.Diff(statuses(y), statuses(followed))
	diff += cmp.Diff(slices.Sorted(maps.Keys(y.blocked)), slices.Sorted(maps.Keys(followed.blocked)))
	if diff != "" {
		return fmt.Errorf("(-from nothing +followed):\n%s", diff)
	}
	return nil
}

// checkRooms compares the counts of objects that are made for remotes with the objects.
func (w *world) checkRooms(t *testing.T) {
	t.Helper()
	want := map[string]Bounds{}
	for _, s := range w.plans {
		clusters := s.Clusters
		if !s.Origin.Global() {
			clusters = []string{s.Origin.Cluster}
		}
		for _, cluster := range clusters {
			if set := w.sets[setOf(cluster, map[bool]published.Kind{true: merged, false: mirrored}[s.Origin.Global()])]; set != nil && set.Synced {
				b := want[cluster]
				b.Services++
				want[cluster] = b
			}
		}
		for i := range s.Slices {
			b := want[s.Slices[i].Cluster]
			b.Slices++
			b.Addresses += len(s.Slices[i].Endpoints)
			want[s.Slices[i].Cluster] = b
		}
	}
	for cluster, c := range w.clusters {
		b, q := want[cluster], &c.quota
		if c.local {
			continue
		}
		if q.used != b {
			t.Fatalf("%s: counted %+v, made %+v", cluster, q.used, b)
		}
		for kind, n := range map[string][2]int{
			"services": {b.Services, q.bounds.Services}, "slices": {b.Slices, q.bounds.Slices}, "addresses": {b.Addresses, q.bounds.Addresses},
		} {
			if n[1] > 0 && n[0] > n[1] {
				t.Fatalf("%s: %d %s of %d", cluster, n[0], kind, n[1])
			}
		}
		if len(q.next()) > 0 {
			t.Fatalf("%s: there is room for %v", cluster, q.next())
		}
	}
}
