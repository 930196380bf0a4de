package mirror

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
	"github.com/kube-semaphore/kube-semaphore/mirror/published"
)

type setID = published.ID

const mirrored, merged, exported = published.Mirrored, published.Merged, published.Exported

// world is a state of three clusters without API servers, and the objects of the mirror
// namespace, which changes are applied to. The cluster gcp is the local one.
type world struct {
	*state
	survey  *survey
	plans   map[string]*Service // that are not absent
	version int
	said    map[setID]map[*origin.Slice]struct{} // slices that clusters have
	clock   time.Time                            // of reports of paths

	services map[string]*corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
}

// clusterConfig is the configuration of a cluster.
type clusterConfig struct {
	name    string
	local   bool
	prefix  string
	subnets []netip.Prefix
	bounds  Bounds
	tier    int
}

func testClusters() []clusterConfig {
	return []clusterConfig{
		{name: "gcp", local: true},
		{name: "aws", tier: 1, prefix: "c1", subnets: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/15"), netip.MustParsePrefix("fd00:4::/31")}},
		{name: "merit", tier: 1, prefix: "c1-x"},
	}
}

// newWorld returns one in which all clusters are synced.
func newWorld(clusters ...clusterConfig) *world {
	if len(clusters) == 0 {
		clusters = testClusters()
	}
	w := &world{
		clock:    epoch,
		services: map[string]*corev1.Service{}, slices: map[string]*discoveryv1.EndpointSlice{},
	}
	w.restart(clusters...)
	for _, id := range w.order {
		w.contact(id, true, false)
	}
	return w
}

// restart starts again with a configuration, without the state of the process. No cluster is
// synced.
func (w *world) restart(clusters ...clusterConfig) {
	var all []*cluster
	for _, c := range clusters {
		all = append(all, &cluster{name: c.name, local: c.local, prefix: c.prefix, subnets: c.subnets, quota: newQuota(c.bounds), tier: c.tier})
	}
	w.state = newState(all, []published.Kind{mirrored, merged}, home, newLocal(func() {}), newSummer())
	w.plans = map[string]*Service{}
	w.zones, w.survey, w.said = []string{""}, newSurvey(), map[setID]map[*origin.Slice]struct{}{}
	w.show()
	w.planned()
}

// again restarts with the same configuration, and reads the same origins from all clusters.
func (w *world) again() {
	before, said := w.state, w.said
	w.restart(configs(before)...)
	for _, id := range w.order {
		set := before.sets[id]
		for _, k := range keysOf(set) {
			w.origin(id, k, set.Service(k))
		}
		for sl := range said[id] {
			w.slice(id, nil, sl)
		}
		w.contact(id, set.Synced, set.Stale)
	}
	w.paths = before.paths
	for name, c := range before.clusters {
		w.clusters[name].drained = c.drained
	}
	w.zones, w.removeAt = before.zones, before.removeAt
}

func configs(s *state) []clusterConfig {
	var all []clusterConfig
	for _, id := range s.order {
		if c := s.clusters[id.Cluster]; id.Kind == merged {
			all = append(all, clusterConfig{c.name, c.local, c.prefix, c.subnets, c.quota.bounds, c.tier})
		}
	}
	return all
}

// origin updates what a cluster publishes; nil: it was deleted.
func (w *world) origin(id setID, k origin.Key, after *origin.Service) {
	w.sets[id].PutService(k, after)
}

// slice replaces a slice.
func (w *world) slice(id setID, before, after *origin.Slice) {
	w.sets[id].PutSlice(before, after)
	if w.said[id] == nil {
		w.said[id] = map[*origin.Slice]struct{}{}
	}
	if delete(w.said[id], before); after != nil {
		w.said[id][after] = struct{}{}
	}
}

func keysOf(s *published.Set) (all []origin.Key) {
	s.Keys(func(k origin.Key) { all = append(all, k) })
	return all
}

// slicesOf returns the slices of a set, in order.
func (w *world) slicesOf(id setID) []*origin.Slice {
	return slices.SortedFunc(maps.Keys(w.said[id]), func(a, b *origin.Slice) int {
		return strings.Compare(a.Service.String()+a.Name, b.Service.String()+b.Name)
	})
}

// show puts the objects into the ledgers.
func (w *world) show() {
	observeAll(w.local.home.services, w.services, w.sums.observedService)
	observeAll(w.local.home.slices, w.slices, w.sums.observedSlice)
	w.local.update(w.now, w.touch)
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

// mark returns the UID and the version that an API server gives an object that is written.
func (w *world) mark(name string, uid types.UID) (types.UID, string) {
	w.version++
	if uid == "" {
		uid = types.UID(fmt.Sprintf("uid of %s, %d", name, w.version))
	}
	return uid, strconv.Itoa(w.version)
}

// do applies changes but those for which fails returns true.
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
			w.put(want.object(home, ""))
		case c.Object == aSlice && c.Verb == verbDelete:
			delete(w.slices, c.Name)
		case c.Object == aSlice && c.Slice.kept != nil:
			sl := w.slices[c.Name].DeepCopy()
			sl.Ports = c.Slice.origin.Ports
			w.putSlice(sl)
		default:
			w.putSlice(c.Slice.object(home, want, ""))
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

// settle applies changes until there are none, and fails the test when that takes more than
// five passes.
func (w *world) settle(t testing.TB) {
	t.Helper()
	for range 5 {
		changes := 0
		w.each(func(want *Service, have *Observed) {
			all := w.sums.Diff(have, want)
			changes += len(all)
			w.do(want, all, nil)
		})
		w.show()
		if changes == 0 {
			return
		}
	}
	t.Fatal("applied changes lead to more changes")
}

// each plans the services that may have changed, and those that may have room by that.
func (w *world) each(f func(want *Service, have *Observed)) {
	for names := slices.Concat(w.take()); len(names) > 0; names = names[1:] {
		want, have, next := w.plan(names[0])
		names = append(names, next...)
		want.seal(w.sums, &have, &w.local.answers)
		w.survey.note(&have, &want)
		if delete(w.plans, want.Name); !want.Absent {
			w.plans[want.Name] = &want
		}
		f(&want, &have)
	}
}

// planned plans the services that may have changed, without writing them.
func (w *world) planned() (names []string) {
	w.each(func(want *Service, _ *Observed) { names = append(names, want.Name) })
	return names
}

// want returns the desired and the observed state of a service.
func (w *world) want(name string) (Service, Observed) {
	want, have, _ := w.plan(name)
	want.seal(w.sums, &have, &w.local.answers)
	return want, have
}

// says replaces the origins of a kind of a cluster, and settles.
func (w *world) says(t *testing.T, id setID, all ...*origin.Service) {
	t.Helper()
	w.hears(id, all...)
	w.settle(t)
}

// hears replaces the origins of a kind of a cluster.
func (w *world) hears(id setID, all ...*origin.Service) {
	for _, k := range keysOf(w.sets[id]) {
		if !slices.ContainsFunc(all, func(o *origin.Service) bool { return o.Key == k }) {
			w.origin(id, k, nil)
		}
	}
	for _, o := range all {
		w.origin(id, o.Key, o)
	}
	w.contact(id, true, false)
}

// has adds a slice of an origin.
func (w *world) has(id setID, of origin.Key, name string, addresses ...string) {
	sl := &origin.Slice{Name: name, Service: of, Family: discoveryv1.AddressTypeIPv4}
	for _, a := range addresses {
		sl.Endpoints = append(sl.Endpoints, origin.Endpoint{Address: netip.MustParseAddr(a)})
	}
	w.slice(id, w.sets[id].Slices(of)[name], sl)
}

// leads returns the addresses of a local service, sorted.
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

// newOrigin returns an origin with the time of its creation, in seconds.
func newOrigin(k origin.Key, created int64, port int32, traits origin.Traits) *origin.Service {
	traits.IPv4 = true
	return &origin.Service{Key: k, Created: time.Unix(created, 0), Spec: origin.Spec{Traits: traits, Ports: []origin.Port{tcp("http", port)}}}
}

var epoch = time.Unix(1e9, 0)

// down is a report that nodes of aws are down.
func down(of string, nodes ...string) *pathreport.Report {
	return &pathreport.Report{Node: of, Remotes: map[string]pathreport.Down{"aws": {Nodes: nodes}}}
}

// setRemoveAt begins or ends the grace of clusters that are no longer configured.
func (w *world) setRemoveAt(until time.Time) { w.wait(w.importAfter, until) }

func setOf(cluster string, kind published.Kind) setID { return setID{Cluster: cluster, Kind: kind} }
