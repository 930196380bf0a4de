package mirror

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// world is what is known of three clusters, without any API: gcp is the local one.
// What is desired comes true at once, as far as changes to the mirror namespace do
// what they say.
type world struct {
	*Snapshot
	memo    *Memo
	survey  *survey
	version int
	clock   time.Time // of reports of paths

	services  map[string]*corev1.Service
	slices    map[string]*discoveryv1.EndpointSlice
	endpoints map[string]*corev1.Endpoints //nolint:staticcheck // See observedEndpoints.
}

func testClusters() []clusterConfig {
	return []clusterConfig{
		{name: "gcp", local: true},
		{name: "aws", prefix: "c1", subnets: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/15")}},
		{name: "merit", prefix: "c1-x"},
	}
}

// newWorld returns one in which all clusters have been heard of.
func newWorld(clusters ...clusterConfig) *world {
	if len(clusters) == 0 {
		clusters = testClusters()
	}
	w := &world{
		clock:    epoch,
		services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{},
		endpoints: map[string]*corev1.Endpoints{}, //nolint:staticcheck // See observedEndpoints.
	}
	w.restart(clusters...)
	for _, id := range w.order {
		w.contact(id, true, false)
	}
	return w
}

// restart forgets what only the process knows, and has a configuration. Nothing has
// been heard of any cluster yet.
func (w *world) restart(clusters ...clusterConfig) {
	w.Snapshot = newSnapshot(clusters, []kind{mirrored, merged}, newLocal(func() {}), newSummer())
	w.zones, w.memo, w.survey = []string{""}, NewMemo(), newSurvey()
	w.show()
}

// again restarts, and hears of all clusters what it knew.
func (w *world) again() {
	before := w.Snapshot
	w.restart(configs(before)...)
	for _, id := range w.order {
		for k, o := range before.sets[id].origins {
			w.origin(id, k, o)
		}
		for _, all := range before.sets[id].slices {
			for _, sl := range all {
				w.slice(id, nil, sl)
			}
		}
		w.contact(id, before.sets[id].synced, before.sets[id].stale)
	}
	w.paths, w.drained = before.paths, before.drained
	w.zones, w.lingers, w.legacy = before.zones, before.lingers, before.legacy
}

func configs(s *Snapshot) []clusterConfig {
	var all []clusterConfig
	for _, id := range s.order {
		if id.kind == merged {
			all = append(all, s.sets[id].cluster)
		}
	}
	return all
}

// show has the ledgers show what is there.
func (w *world) show() {
	observeAll(w.local.services, w.services, w.sums.observedService)
	observeAll(w.local.slices, w.slices, w.sums.observedSlice)
	observeAll(w.local.endpoints, w.endpoints, func(e *corev1.Endpoints) *ObservedEndpoints { //nolint:staticcheck // See observedEndpoints.
		return w.sums.observedEndpoints(e, w.legacy)
	})
	w.observe()
}

func observeAll[O, T any](ledger *keep.Ledger[T], objects map[string]*O, observed func(*O) *T) {
	var changes []kube.Change[T]
	for _, o := range ledger.All() {
		if name := metaOf(o).Name; objects[name] == nil {
			changes = append(changes, kube.Change[T]{Key: name})
		}
	}
	for name, o := range objects {
		changes = append(changes, kube.Change[T]{Key: name, After: observed(o)})
	}
	ledger.Observe(changes, true)
}

func metaOf(o any) keep.Meta { return o.(interface{ meta() keep.Meta }).meta() }

// marks returns what an API server gives each object that is written.
func (w *world) mark(name string, uid types.UID) (types.UID, string) {
	w.version++
	if uid == "" {
		uid = types.UID(fmt.Sprintf("uid of %s, %d", name, w.version))
	}
	return uid, strconv.Itoa(w.version)
}

// do makes changes come true. Those for which fails is true fail.
func (w *world) do(want *Service, changes []Change, fails func(*Change) bool) {
	for i := range changes {
		c := &changes[i]
		if fails != nil && fails(c) {
			continue
		}
		switch {
		case c.Object == aService && c.Verb == verbDelete:
			delete(w.services, c.Name)
		case c.Object == aService:
			w.put(want.service(home))
		case c.Object == aSlice && c.Verb == verbDelete:
			delete(w.slices, c.Name)
		case c.Object == aSlice:
			w.putSlice(c.Slice.object(home, want.Name))
		case c.Verb == verbDelete:
			delete(w.endpoints, c.Name)
		default:
			e := want.endpoints(home, want.family)
			e.UID, e.ResourceVersion = w.mark(e.Name, "")
			w.endpoints[e.Name] = e
		}
	}
}

// put stores a Service as an API server does.
func (w *world) put(s *corev1.Service) {
	uid := types.UID("")
	if before := w.services[s.Name]; before != nil {
		uid = before.UID
		if len(s.Spec.IPFamilies) == 0 {
			s.Spec.IPFamilies = before.Spec.IPFamilies
		}
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	}
	s.UID, s.ResourceVersion = w.mark(s.Name, uid)
	w.services[s.Name] = s
}

func (w *world) putSlice(s *discoveryv1.EndpointSlice) {
	uid := types.UID("")
	if before := w.slices[s.Name]; before != nil {
		uid = before.UID
	}
	s.UID, s.ResourceVersion = w.mark(s.Name, uid)
	w.slices[s.Name] = s
}

// settle brings everything to what is desired, and fails the test when that takes
// more than it should.
func (w *world) settle(t *testing.T) {
	t.Helper()
	for range 5 {
		changes := 0
		desired := Desired(w.Snapshot, w.memo)
		w.seen()
		for i := range desired {
			want, have := w.want(w.memo, desired[i].Name)
			w.survey.note(&have, &desired[i])
			all := Diff(have, want)
			changes += len(all)
			w.do(&want, all, nil)
		}
		w.show()
		if changes == 0 {
			return
		}
	}
	t.Fatal("what is desired changes by coming true")
}

// says has a cluster have these origins of a kind, and no others.
func (w *world) says(t *testing.T, id setID, all ...*Origin) {
	t.Helper()
	w.hears(id, all...)
	w.settle(t)
}

func (w *world) hears(id setID, all ...*Origin) {
	for k := range maps.Clone(w.sets[id].origins) {
		if !slices.ContainsFunc(all, func(o *Origin) bool { return o.Key == k }) {
			w.origin(id, k, nil)
		}
	}
	for _, o := range all {
		w.origin(id, o.Key, o)
	}
	w.contact(id, true, false)
}

// has adds a slice of an origin.
func (w *world) has(id setID, of Key, name string, addresses ...string) {
	sl := &OriginSlice{Name: name, Service: of, Family: discoveryv1.AddressTypeIPv4}
	for _, a := range addresses {
		sl.Endpoints = append(sl.Endpoints, Endpoint{Address: netip.MustParseAddr(a)})
	}
	w.slice(id, w.sets[id].slices[of][name], sl)
}

// leads returns the addresses that a local service leads to, sorted.
func (w *world) leads(service string) []string {
	var all []string
	for _, s := range w.slices {
		if s.Labels[discoveryv1.LabelServiceName] == service {
			for i := range s.Endpoints {
				all = append(all, s.Endpoints[i].Addresses...)
			}
		}
	}
	slices.Sort(all)
	return all
}

// origin returns one that its cluster says is of an age.
func newOrigin(k Key, created int64, port int32, traits Traits) *Origin {
	traits.IPv4 = true
	return &Origin{Key: k, Created: time.Unix(created, 0), Spec: Spec{traits, []Port{tcp("http", port)}}}
}
