package mirror

import (
	"net/netip"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
	"github.com/kube-semaphore/kube-semaphore/mirror/published"
	"github.com/kube-semaphore/kube-semaphore/mirror/withdrawal"
)

// Bounds are the maximum numbers of objects in the local cluster for one remote. 0: unlimited.
type Bounds struct{ Services, Slices, Addresses int }

// cluster is a configured cluster.
type cluster struct {
	name    string
	local   bool
	prefix  string         // of its mirrors; empty for the local cluster
	subnets []netip.Prefix // of its pods; none: any address
	quota   quota          // of a remote
	drained bool
	// tier orders the clusters whose endpoints are preferred; that of the local one is 0.
	tier int
	// imports reports whether its exports of a namespace are imported; nil: all are.
	imports func(namespace string) bool
}

// claimant is a published service, which claims the name of its local service.
type claimant struct {
	set *published.Set
	key origin.Key
}

// state is the observed state of all clusters, with indexes by the name of the local service. It
// collects the names of services that may differ from their desired state, and of those of them that
// may have to lose endpoints.
type state struct {
	sums     summer
	clusters map[string]*cluster
	order    []published.ID // of configuration
	sets     map[published.ID]*published.Set
	claims   map[string][]claimant // by local service
	local    *local
	paths    *withdrawal.Table[string] // local services with endpoints on remote nodes
	// zones are those of the local nodes, sorted; "" for nodes without a zone.
	zones []string
	// removeAt is when services of clusters that are no longer configured are removed; zero: now.
	removeAt time.Time
	// importAfter is until when new imports wait for clusters that have not synced; zero: they
	// don't.
	importAfter time.Time
	// now is the time of the last pass.
	now time.Time
	// importsKnown is whether the objects of imports have been read.
	importsKnown bool
	// departed are clusters that left in order: their objects are removed at once.
	departed map[string]bool
	// localMinimum is the minimum number of ready local endpoints for a global service to prefer
	// them.
	localMinimum int
	changed      map[string]struct{}
	losing       map[string]struct{} // some of changed
}

// newState returns an empty state with sets of the given kinds. home is the namespace of mirrors.
func newState(clusters []*cluster, kinds []published.Kind, home string, local *local, sums summer) *state {
	s := &state{
		now: time.Now(), sums: sums, clusters: map[string]*cluster{}, sets: map[published.ID]*published.Set{}, claims: map[string][]claimant{},
		local: local, paths: withdrawal.New[string](), departed: map[string]bool{}, changed: map[string]struct{}{}, losing: map[string]struct{}{},
	}
	for _, c := range clusters {
		s.clusters[c.name] = c
		for _, k := range kinds {
			if k == published.Mirrored && c.local {
				continue
			}
			id := published.ID{Cluster: c.name, Kind: k}
			s.order = append(s.order, id)
			s.sets[id] = published.NewSet(id, c.local, home, s)
			s.sets[id].Imports = c.imports
		}
	}
	return s
}

// take returns the names of the services that may have changed since the last call. Those that exist
// come first, so that what others need is left for new ones; of these, losing may have to lose
// endpoints.
func (s *state) take() (losing, names []string) {
	var existing, others []string
	for name := range s.changed {
		switch _, loses := s.losing[name]; {
		case !s.local.exists(name):
			others = append(others, name)
		case loses:
			losing = append(losing, name)
		default:
			existing = append(existing, name)
		}
	}
	s.changed, s.losing = map[string]struct{}{}, map[string]struct{}{} // clearing a map takes time in proportion to its largest size
	slices.Sort(losing)
	slices.Sort(existing)
	slices.Sort(others)
	return losing, append(existing, others...)
}

func (s *state) touch(name string) {
	if name != "" {
		s.changed[name] = struct{}{}
	}
}

// lose marks a service as one that may have to lose endpoints.
func (s *state) lose(name string) {
	s.touch(name)
	s.losing[name] = struct{}{}
}

// touchAll marks all services as changed: published ones and those that exist.
func (s *state) touchAll() {
	for name := range s.claims {
		s.touch(name)
	}
	s.local.names(s.touch)
}

// nameOf returns the name of the local service of a published one.
func (s *state) nameOf(set *published.Set, k origin.Key) string {
	switch set.Kind {
	case published.Merged:
		return GlobalName(k)
	case published.Exported:
		return k.String()
	default:
		return Name(s.clusters[set.Cluster].prefix, k)
	}
}

// Changed implements published.Watcher.
func (s *state) Changed(set *published.Set, k origin.Key) {
	name, c := s.nameOf(set, k), claimant{set, k}
	at, has := slices.Index(s.claims[name], c), set.Has(k)
	switch {
	case has && at < 0:
		s.claims[name] = append(s.claims[name], c)
	case !has && at >= 0 && len(s.claims[name]) == 1:
		delete(s.claims, name)
	case !has && at >= 0:
		s.claims[name] = slices.Delete(s.claims[name], at, at+1)
	}
	if s.touch(name); !has && at >= 0 {
		s.lose(name)
	}
}

// Replaced implements published.Watcher. Only endpoints of the local copy must go.
func (s *state) Replaced(set *published.Set, before, after *origin.Slice) {
	name := s.nameOf(set, before.Service)
	o := s.local.of(name).slices.Get(sliceName(name, set.Cluster, before))
	if o == nil || !o.ours {
		return
	}
	ready := o.Addresses[:o.Ready]
	if gone := lacking(readyIn(after), readyIn(before)); len(lacking(gone, ready)) < len(ready) {
		s.lose(name)
	}
}

// readyIn returns the ready addresses of a slice, which may be nil.
func readyIn(sl *origin.Slice) []netip.Addr {
	if sl == nil {
		return nil
	}
	e := (&Slice{Endpoints: sl.Endpoints, origin: sl}).exposed()
	return e.Addresses[:e.Ready]
}

// Placed implements published.Watcher.
func (s *state) Placed(set *published.Set, node string, k origin.Key, change int) {
	s.paths.Place(withdrawal.Node{Cluster: set.Cluster, Name: node}, s.nameOf(set, k), change)
}

// judge updates the verdicts about paths. changed, unless nil, is called for each remote node whose
// verdict has changed.
func (s *state) judge(now time.Time, changed func(n withdrawal.Node, withdrawn bool)) {
	s.paths.Judge(now, func(n withdrawal.Node, withdrawn bool) {
		mark := s.marking(withdrawn)
		for name := range s.paths.Origins(n) {
			mark(name)
		}
		if changed != nil {
			changed(n, withdrawn)
		}
	})
}

// withdrawn reports whether an endpoint of a cluster is withdrawn.
func (s *state) withdrawn(c *cluster, e *origin.Endpoint) bool {
	return !c.local && e.Node != "" && s.paths.Withdrawn(withdrawal.Node{Cluster: c.name, Name: e.Node})
}

// drain updates whether a cluster is drained.
func (s *state) drain(name string, drained bool) {
	if c := s.clusters[name]; c.drained != drained {
		c.drained = drained
		s.touchShared(published.ID{Cluster: name, Kind: published.Merged}, s.marking(drained))
		s.touchShared(published.ID{Cluster: name, Kind: published.Exported}, s.marking(drained))
	}
}

// marking returns lose or touch.
func (s *state) marking(loses bool) func(name string) {
	if loses {
		return s.lose
	}
	return s.touch
}

// touchShared marks the global services or the imports of a cluster.
func (s *state) touchShared(id published.ID, mark func(name string)) {
	set := s.sets[id]
	if set == nil {
		return
	}
	set.Keys(func(k origin.Key) { mark(s.nameOf(set, k)) })
	if id.Kind == published.Exported {
		for _, own := range s.local.imports.All() {
			if own.has(id.Cluster) {
				mark(own.Name)
			}
		}
		return
	}
	for _, own := range s.local.home.services.All() {
		if own.global && slices.Contains(own.clusters, id.Cluster) {
			mark(own.Name)
		}
	}
}

// touchNamespace marks the imports of a namespace as changed.
func (s *state) touchNamespace(namespace string) {
	for _, id := range s.order {
		if set := s.sets[id]; id.Kind == published.Exported {
			set.Keys(func(k origin.Key) {
				if k.Namespace == namespace {
					s.touch(k.String())
				}
			})
		}
	}
}

// contact updates whether a set is synced and stale. No event follows when a set has synced, so all
// services are marked, also those that were held for its sake.
func (s *state) contact(id published.ID, synced, stale bool) {
	set := s.sets[id]
	if set.Synced != synced {
		s.touchAll()
	}
	if set.Stale != stale && id.Kind != published.Mirrored {
		s.touchShared(id, s.marking(stale))
	}
	set.Synced, set.Stale = synced, stale
}

// nodes updates the zones of local nodes.
func (s *state) nodes(zones []string) {
	if !slices.Equal(zones, s.zones) {
		s.zones = zones
		s.touchAll()
	}
}

// wait updates until when new imports wait for clusters that have not synced, and services stay
// whose clusters are no longer configured; zero: they don't.
func (s *state) wait(imports, removals time.Time) {
	if imports.IsZero() != s.importAfter.IsZero() || removals.IsZero() != s.removeAt.IsZero() {
		s.touchAll()
	}
	s.importAfter, s.removeAt = imports, removals
}

// unknown returns why it isn't known what a cluster publishes of a namespace: it hasn't synced since
// start, or the cluster is no longer configured, until the time returned. Empty: it is known.
func (s *state) unknown(cluster string, k published.Kind, namespace string) (why string, until time.Time) {
	switch set := s.sets[published.ID{Cluster: cluster, Kind: k}]; {
	case set != nil && !set.Synced && !set.Refuses(namespace):
		return cluster + ", which has not synced since start", time.Time{}
	case set == nil && !s.removal(cluster).IsZero():
		return cluster + ", which is no longer configured", s.removal(cluster)
	}
	return "", time.Time{}
}

// removal returns when objects of a cluster that is no longer configured are removed; zero: now.
func (s *state) removal(cluster string) time.Time {
	if s.departed[cluster] {
		return time.Time{}
	}
	return s.removeAt
}

// clusterOf returns the cluster of a mirror: that of its annotation, or, if that isn't configured,
// the one with its prefix.
func (s *state) clusterOf(o *ObservedService) string {
	if s.clusters[o.id.Cluster] != nil {
		return o.id.Cluster
	}
	for _, id := range s.order {
		if id.Kind == published.Mirrored && s.clusters[id.Cluster].prefix == o.prefix {
			return id.Cluster
		}
	}
	return o.id.Cluster
}

// localCluster returns the local cluster.
func (s *state) localCluster() *cluster {
	for _, c := range s.clusters {
		if c.local {
			return c
		}
	}
	return nil
}

// tenant returns the cluster that a service belongs to: of one of several clusters, the first
// remote that was accepted.
func (s *state) tenant(name string) string {
	var first []string
	if own := s.local.imports.Get(name); own != nil && own.ours {
		first = mcs.Exporting(own.places)
	}
	own := s.local.home.services.Get(name)
	if own != nil && own.ours {
		first = own.accepted
	}
	for _, cluster := range first {
		if c := s.clusters[cluster]; c != nil && !c.local {
			return cluster
		}
	}
	for _, id := range s.order {
		if !s.sets[id].Local && slices.ContainsFunc(s.claims[name], func(c claimant) bool { return c.set.ID == id }) {
			return id.Cluster
		}
	}
	if own != nil && own.ours && !own.global {
		return own.id.Cluster
	}
	return s.localCluster().name
}
