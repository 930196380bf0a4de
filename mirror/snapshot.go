package mirror

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
	"github.com/kube-semaphore/kube-semaphore/mirror/withdrawal"
)

// Bounds are the maximum numbers of objects in the local cluster for one remote. Existing
// ones stay; further ones are rejected. 0: unlimited.
type Bounds struct{ Services, Slices, Addresses int }

// clusterConfig is the configuration of a cluster.
type clusterConfig struct {
	name    string
	local   bool
	prefix  string         // of its mirrors; empty for the local cluster
	subnets []netip.Prefix // of its pods; none: any address
	bounds  Bounds
	// imports reports whether its exports of a namespace are imported; nil: all are.
	imports func(namespace string) bool
}

// mayExport reports whether exports of a namespace are imported.
func (c *clusterConfig) mayExport(namespace string) bool {
	return c.imports == nil || c.imports(namespace)
}

// kind is whether origins are mirrored, merged, or exported to a cluster set.
type kind int

const (
	mirrored kind = iota
	merged
	exported
)

// String names origins of a kind in logs.
func (k kind) String() string {
	switch k {
	case merged:
		return "global services"
	case exported:
		return "exported services"
	default:
		return "services to mirror"
	}
}

// setID identifies the origins of one kind of one cluster.
type setID struct {
	cluster string
	kind    kind
}

// set has the origins of one kind of one cluster.
type set struct {
	cluster clusterConfig
	kind    kind
	// synced is whether all have been listed since start, stale whether there was no contact
	// for StaleAfter.
	synced, stale bool
	origins       map[origin.Key]*origin.Service
	slices        map[origin.Key]map[string]*origin.Slice // by origin and name
	// services and exports are joined to the origins of a set of exported ones.
	services map[origin.Key]*origin.Service
	exports  map[origin.Key]*mcs.Export
}

func (s *set) id(k origin.Key) origin.ID { return s.kind.id(s.cluster.name, k) }

// id returns the ID of the local service of an origin.
func (k kind) id(cluster string, key origin.Key) origin.ID {
	switch k {
	case merged:
		return origin.ID{Key: key}
	case exported:
		return origin.ID{Cluster: origin.ClusterSet, Key: key}
	default:
		return origin.ID{Cluster: cluster, Key: key}
	}
}

// Snapshot is the observed state of all clusters, and what has changed since the last pass.
type Snapshot struct {
	sums  summer
	order []setID // of configuration
	sets  map[setID]*set
	// clusters are the configured ones.
	clusters map[string]bool
	local    *local
	// zones are those of the local nodes, sorted; "" for nodes without a zone.
	zones []string
	// removeAt is when services of clusters that are no longer configured are removed; zero:
	// now.
	removeAt time.Time
	// home is the namespace of mirrors.
	home string
	// importAfter is until when new imports wait for clusters that have not synced; zero: they
	// don't.
	importAfter time.Time
	// now is the time of the last pass.
	now time.Time
	// importsKnown is whether the objects of imports have been read.
	importsKnown bool
	// departed are those of them that left in order: theirs are removed at once.
	departed map[string]bool
	paths    *withdrawal.Table[origin.ID]
	// drained are the drained clusters. localMinimum is the minimum number of ready local
	// endpoints for a global service to prefer them.
	drained      map[string]bool
	localMinimum int
	// all: anything may have changed. origins and names are the changed origins and local
	// services.
	all     bool
	origins map[origin.ID]struct{}
	names   map[string]struct{}
}

// newSnapshot returns an empty snapshot with the given kinds.
func newSnapshot(clusters []clusterConfig, kinds []kind, local *local, sums summer) *Snapshot {
	s := &Snapshot{
		now: time.Now(), sums: sums, sets: map[setID]*set{}, clusters: map[string]bool{}, local: local, paths: withdrawal.New[origin.ID](), drained: map[string]bool{}, departed: map[string]bool{},
	}
	for _, c := range clusters {
		s.clusters[c.name] = true
		for _, k := range kinds {
			if k == mirrored && c.local {
				continue
			}
			id := setID{c.name, k}
			s.order = append(s.order, id)
			s.sets[id] = &set{
				cluster: c, kind: k, origins: map[origin.Key]*origin.Service{}, slices: map[origin.Key]map[string]*origin.Slice{},
				services: map[origin.Key]*origin.Service{}, exports: map[origin.Key]*mcs.Export{},
			}
		}
	}
	s.seen()
	return s
}

// seen resets what has changed.
func (s *Snapshot) seen() {
	s.all, s.origins, s.names = false, map[origin.ID]struct{}{}, map[string]struct{}{}
}

// origin updates an origin; nil: it was deleted.
func (s *Snapshot) origin(id setID, k origin.Key, after *origin.Service) {
	set := s.sets[id]
	before := set.origins[k]
	if after == nil {
		delete(set.origins, k)
	} else {
		set.origins[k] = after
	}
	if before == nil || after == nil || !before.Equal(after) {
		s.origins[set.id(k)] = struct{}{}
	}
}

// slice replaces a slice; nil: none.
func (s *Snapshot) slice(id setID, before, after *origin.Slice) {
	set := s.sets[id]
	if before != nil {
		delete(set.slices[before.Service], before.Name)
		if len(set.slices[before.Service]) == 0 {
			delete(set.slices, before.Service)
		}
		s.changed(set, before.Service)
		s.place(set, before, -1)
	}
	if after != nil {
		if set.slices[after.Service] == nil {
			set.slices[after.Service] = map[string]*origin.Slice{}
		}
		set.slices[after.Service][after.Name] = after
		s.changed(set, after.Service)
		s.place(set, after, 1)
	}
}

// place adds or removes the nodes of a slice's endpoints in the path table, except for the local
// cluster, which is reached without a tunnel, and for services that aren't exported.
func (s *Snapshot) place(set *set, sl *origin.Slice, change int) {
	if set.cluster.local || !set.uses(sl.Service) {
		return
	}
	for i := range sl.Endpoints {
		if node := sl.Endpoints[i].Node; node != "" && (i == 0 || node != sl.Endpoints[i-1].Node) {
			s.paths.Place(withdrawal.Node{Cluster: set.cluster.name, Name: node}, set.id(sl.Service), change)
		}
	}
}

// uses reports whether the slices of a service are used.
func (s *set) uses(service origin.Key) bool { return s.kind != exported || s.exports[service] != nil }

// changed marks the local service of an origin as changed.
func (s *Snapshot) changed(set *set, k origin.Key) {
	if set.uses(k) {
		s.origins[set.id(k)] = struct{}{}
	}
}

// judge updates the verdicts of the path table. changed, unless nil, is called for each
// remote node whose verdict has changed.
func (s *Snapshot) judge(now time.Time, changed func(n withdrawal.Node, withdrawn bool)) {
	s.paths.Judge(now, func(n withdrawal.Node, withdrawn bool) {
		for id := range s.paths.Origins(n) {
			s.origins[id] = struct{}{}
		}
		if changed != nil {
			changed(n, withdrawn)
		}
	})
}

// withdrawn reports whether an endpoint of a cluster is withdrawn.
func (s *Snapshot) withdrawn(c *clusterConfig, e *origin.Endpoint) bool {
	return !c.local && e.Node != "" && s.paths.Withdrawn(withdrawal.Node{Cluster: c.name, Name: e.Node})
}

// drain updates whether a cluster is drained.
func (s *Snapshot) drain(cluster string, drained bool) {
	if s.drained[cluster] == drained {
		return
	}
	if delete(s.drained, cluster); drained {
		s.drained[cluster] = true
	}
	for _, k := range []kind{merged, exported} {
		if set := s.sets[setID{cluster, k}]; set != nil {
			s.sharedOf(set)
		}
	}
}

// sharedOf marks the global services or the imports of a cluster as changed.
func (s *Snapshot) sharedOf(set *set) {
	for k := range set.origins {
		s.origins[set.id(k)] = struct{}{}
	}
	if set.kind == exported {
		for _, own := range s.local.imported.imports.All() {
			if own.has(set.cluster.name) {
				s.origins[origin.ID{Cluster: origin.ClusterSet, Key: own.key}] = struct{}{}
			}
		}
		return
	}
	for k := range s.local.globals {
		if own := s.local.global(k); own != nil && slices.Contains(own.clusters, set.cluster.name) {
			s.origins[origin.ID{Key: k}] = struct{}{}
		}
	}
}

// contact updates whether a set is synced and stale.
func (s *Snapshot) contact(id setID, synced, stale bool) {
	set := s.sets[id]
	if set.synced != synced {
		s.all = true // including held services
	}
	if set.stale != stale && set.kind != mirrored {
		s.sharedOf(set)
	}
	set.synced, set.stale = synced, stale
}

// nodes updates the zones of local nodes.
func (s *Snapshot) nodes(zones []string) {
	if !slices.Equal(zones, s.zones) {
		s.zones, s.all = zones, true
	}
}

// setRemoveAt updates when services of clusters that are no longer configured are removed.
func (s *Snapshot) setRemoveAt(until time.Time) {
	if until.IsZero() != s.removeAt.IsZero() {
		s.all = true
	}
	s.removeAt = until
}

// observe marks what has changed in the mirror namespace.
func (s *Snapshot) observe() {
	names, globals := s.local.update()
	for name := range names {
		s.names[name] = struct{}{}
		// Other parts may be used instead of slices that are only remembered.
		if own := s.local.services.Get(name); own != nil && own.global && slices.ContainsFunc(own.clusters, func(cluster string) bool {
			why, _ := s.unknown(cluster, merged)
			return why != ""
		}) {
			s.origins[origin.ID{Key: own.id.Key}] = struct{}{}
		}
	}
	for k := range globals {
		s.origins[origin.ID{Key: k}] = struct{}{}
	}
}

// observeImports marks what has changed in the objects of imports.
func (s *Snapshot) observeImports() {
	for k := range s.local.imported.update(s.names) {
		s.origins[origin.ID{Cluster: origin.ClusterSet, Key: k}] = struct{}{}
	}
}

// unknown returns why a cluster's origins of a kind are unknown: they haven't synced since
// start, or the cluster is no longer configured, until the time returned. Empty: they are
// known.
func (s *Snapshot) unknown(cluster string, k kind) (why string, until time.Time) {
	switch set := s.sets[setID{cluster, k}]; {
	case set != nil && !set.synced:
		return cluster + ", which has not synced since start", time.Time{}
	case set == nil && !s.removal(cluster).IsZero():
		return cluster + ", which is no longer configured", s.removal(cluster)
	}
	return "", time.Time{}
}

// removal returns when objects of a cluster that is no longer configured are removed; zero:
// now.
func (s *Snapshot) removal(cluster string) time.Time {
	if s.departed[cluster] {
		return time.Time{}
	}
	return s.removeAt
}

// clusterOf returns the cluster of a mirror: that of its annotation, or, if that isn't
// configured, the one with its prefix.
func (s *Snapshot) clusterOf(o *ObservedService) string {
	if s.clusters[o.id.Cluster] {
		return o.id.Cluster
	}
	for _, id := range s.order {
		if set := s.sets[id]; id.kind == mirrored && set.cluster.prefix == o.prefix {
			return id.cluster
		}
	}
	return o.id.Cluster
}

// exists reports whether an origin has a local service.
func (s *Snapshot) exists(id setID, k origin.Key) bool {
	switch id.kind {
	case merged:
		own := s.local.global(k)
		return own != nil && slices.Contains(own.clusters, id.cluster)
	case exported:
		own := s.local.imported.imports.Get(k.String())
		return own != nil && own.ours && own.has(id.cluster)
	}
	c := claim{id: origin.ID{Cluster: id.cluster, Key: k}, prefix: s.sets[id].cluster.prefix}
	for rank := range 2 {
		o := s.local.services.Get(c.nameOf(rank))
		if o != nil && o.ours && !o.global && s.clusterOf(o) == id.cluster && (o.id.Key == k || o.id.Name == "") {
			return true
		}
	}
	return false
}

// want returns the desired and the observed state of a local service.
func (s *Snapshot) want(m *Memo, name string) (Service, Observed) {
	if k, is := importKey(name); is {
		return s.wantImport(m, k)
	}
	w := Service{Name: name, Absent: true}
	planned := m.services[name]
	if planned != nil {
		w = *planned
	}
	have := s.local.get(name, &w)
	if w.Hold, w.Until = s.hold(have.Service, planned); len(w.Former) > 0 {
		w.Until = s.removeAt
	}
	w.keep(have, func(o *ObservedSlice) (Retained, bool) { return s.keeps(planned, o) })
	return w, have
}

// keep adds what is retained of slices that aren't desired.
func (t *Service) keep(have Observed, retained func(*ObservedSlice) (Retained, bool)) {
	for _, o := range have.Slices {
		if !o.ours || o.service != t.Name || t.slice(o.Name) != nil {
			continue
		}
		if r, keep := retained(o); keep {
			t.Keep = append(t.Keep, r)
		}
	}
	slices.SortFunc(t.Keep, func(a, b Retained) int { return strings.Compare(a.slice.Name, b.slice.Name) })
}

// hold returns why a service must not be changed: it belongs to a cluster whose state is
// unknown, and may still be desired.
func (s *Snapshot) hold(o *ObservedService, want *Service) (why string, until time.Time) {
	if o == nil || !o.ours {
		return "", time.Time{}
	}
	if o.global {
		if want != nil && want.Origin.Global() && (want.Origin.Key == o.id.Key || o.id.Name == "") {
			return "", time.Time{}
		}
		for _, cluster := range o.clusters {
			if why, until = s.unknown(cluster, merged); why != "" {
				return "global service of " + why, until
			}
		}
		return "", time.Time{}
	}
	cluster := s.clusterOf(o)
	if want != nil && want.Origin.Cluster == cluster && (want.Origin.Key == o.id.Key || o.id.Name == "") {
		return "", time.Time{}
	}
	why, until = s.unknown(cluster, mirrored)
	if why == "" && o.id.Cluster != "" {
		why, until = s.unknown(o.id.Cluster, mirrored) // another cluster may have its prefix by now
	}
	if why == "" {
		return "", time.Time{}
	}
	return "mirror of " + why, until
}

// keeps returns what is retained of a slice that isn't desired, because the state of its cluster
// is unknown; false: nothing.
func (s *Snapshot) keeps(want *Service, o *ObservedSlice) (Retained, bool) {
	if want != nil && want.Origin.Global() {
		return want.retain(o, s.sums)
	}
	return Retained{slice: o, Ports: o.Ports, sum: o.sum}, s.maybe(want, o)
}

// maybe reports whether a slice of a mirror, or of no service, may still be desired.
func (s *Snapshot) maybe(want *Service, o *ObservedSlice) bool {
	switch {
	case o.cluster == "":
		return slices.ContainsFunc(s.order, func(id setID) bool { return id.kind != exported && !s.sets[id].synced })
	case want != nil:
		return false
	}
	for _, k := range []kind{mirrored, merged} {
		set := s.sets[setID{o.cluster, k}]
		if set != nil && !set.synced || !s.clusters[o.cluster] && !s.removal(o.cluster).IsZero() {
			return true
		}
	}
	return false
}
