package published

import (
	"maps"

	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// Kind is what services are published for.
type Kind int

// The kinds: a mirror of one cluster's service, a global service merged from several clusters, and
// an import of the Multi-Cluster Services API.
const (
	Mirrored Kind = iota
	Merged
	Exported
)

// String names services of a kind in status and logs.
func (k Kind) String() string {
	switch k {
	case Merged:
		return "global services"
	case Exported:
		return "exported services"
	default:
		return "services to mirror"
	}
}

// Of returns the ID of the local service of a published one.
func (k Kind) Of(cluster string, key origin.Key) origin.ID {
	switch k {
	case Merged:
		return origin.ID{Key: key}
	case Exported:
		return origin.ID{Cluster: origin.ClusterSet, Key: key}
	default:
		return origin.ID{Cluster: cluster, Key: key}
	}
}

// Reasons for which an export isn't imported.
const (
	RejectNoService = "there is no Service of this name"
	RejectDerived   = "the Service is that of an import"
	RejectNamespace = "nothing is imported from the cluster in this namespace"
	RejectHome      = "its namespace is that of mirrors, in which nothing is imported"
)

// ID identifies a Set.
type ID struct {
	Cluster string
	Kind    Kind
}

// Watcher is called with what changes in a Set.
type Watcher interface {
	// Changed is called with a key whose service or slices have changed. Of exported services only
	// those with an export count.
	Changed(s *Set, k origin.Key)
	// Replaced is called with a slice of such a service that was changed, or deleted: after is nil.
	Replaced(s *Set, before, after *origin.Slice)
	// Placed is called with the change of the number of slices of a key that have an endpoint on a
	// node.
	Placed(s *Set, node string, k origin.Key, change int)
}

// Set has the services that one cluster publishes for one purpose.
type Set struct {
	ID
	// Local is whether the cluster is the local one, and Home its namespace of mirrors.
	Local bool
	Home  string
	// Imports reports whether exports of a namespace are imported; nil: all are.
	Imports func(namespace string) bool
	// Synced is whether all have been listed since start, Stale whether there was no contact for
	// too long.
	Synced, Stale bool

	watcher  Watcher
	services map[origin.Key]*origin.Service
	slices   map[origin.Key]map[string]*origin.Slice // by service and name
	exports  map[origin.Key]*mcs.Export              // of a set of exported services
}

// NewSet returns an empty set.
func NewSet(id ID, local bool, home string, watcher Watcher) *Set {
	return &Set{
		ID: id, Local: local, Home: home, watcher: watcher, services: map[origin.Key]*origin.Service{},
		slices: map[origin.Key]map[string]*origin.Slice{}, exports: map[origin.Key]*mcs.Export{},
	}
}

// Service returns what is published under a key, which may be rejected; nil: nothing.
func (s *Set) Service(k origin.Key) *origin.Service {
	service := s.services[k]
	if s.Kind != Exported {
		return service
	}
	export := s.exports[k]
	switch {
	case export == nil:
		return nil
	case k.Namespace == s.Home:
		return &origin.Service{Key: k, Export: export, Reject: RejectHome}
	case s.Refuses(k.Namespace):
		return &origin.Service{Key: k, Export: export, Reject: RejectNamespace}
	case mcs.IsDerivedName(k.Name):
		return &origin.Service{Key: k, Export: export, Reject: RejectDerived}
	case service == nil:
		return &origin.Service{Key: k, Export: export, Reject: RejectNoService}
	}
	exported := *service
	exported.Export = export
	if export.Cluster != "" && export.Cluster != s.Cluster && !s.Local {
		exported.Reject = "the cluster calls itself " + export.Cluster + ", and is configured here as " + s.Cluster
	}
	return &exported
}

// Refuses reports whether nothing of a namespace is published, whatever the cluster has there.
func (s *Set) Refuses(namespace string) bool {
	return s.Kind == Exported && s.Imports != nil && !s.Imports(namespace)
}

// Has reports whether Service returns one.
func (s *Set) Has(k origin.Key) bool {
	if s.Kind == Exported {
		return s.exports[k] != nil
	}
	return s.services[k] != nil
}

// Slices returns the slices of a key by name. They must not be changed.
func (s *Set) Slices(k origin.Key) map[string]*origin.Slice { return s.slices[k] }

// Keys calls each with all keys of Service, in no order.
func (s *Set) Keys(each func(k origin.Key)) {
	if s.Kind == Exported {
		for k := range s.exports {
			each(k)
		}
		return
	}
	for k := range s.services {
		each(k)
	}
}

// selects reports whether a key is published, if there is a service of it.
func (s *Set) selects(k origin.Key) bool { return s.Kind != Exported || s.exports[k] != nil }

func (s *Set) changed(k origin.Key) {
	if s.selects(k) {
		s.watcher.Changed(s, k)
	}
}

// PutService updates a Service; nil: it was deleted.
func (s *Set) PutService(k origin.Key, after *origin.Service) {
	if after == nil {
		delete(s.services, k)
	} else {
		s.services[k] = after
	}
	s.changed(k)
}

// PutExport updates an export; nil: it was deleted.
func (s *Set) PutExport(k origin.Key, after *mcs.Export) {
	before := s.exports[k]
	switch {
	case after == nil && before == nil:
		return
	case after == nil:
		s.placeAll(k, -1)
		delete(s.exports, k)
	default:
		if s.exports[k] = after; before == nil {
			s.placeAll(k, 1)
		}
	}
	s.watcher.Changed(s, k)
}

// PutSlice replaces a slice; nil: there was none, or it was deleted.
func (s *Set) PutSlice(before, after *origin.Slice) {
	if before != nil {
		of := before.Service
		s.place(before, -1)
		if delete(s.slices[of], before.Name); len(s.slices[of]) == 0 {
			delete(s.slices, of)
		}
		if s.changed(of); s.selects(of) {
			s.watcher.Replaced(s, before, after)
		}
	}
	if after != nil {
		of := after.Service
		if s.slices[of] == nil {
			s.slices[of] = map[string]*origin.Slice{}
		}
		s.slices[of][after.Name] = after
		s.place(after, 1)
		s.changed(of)
	}
}

func (s *Set) placeAll(k origin.Key, change int) {
	for sl := range maps.Values(s.slices[k]) {
		s.place(sl, change)
	}
}

// place counts the nodes of a slice's endpoints. The local cluster is reached without a tunnel.
func (s *Set) place(sl *origin.Slice, change int) {
	if s.Local || !s.selects(sl.Service) {
		return
	}
	for i := range sl.Endpoints {
		if node := sl.Endpoints[i].Node; node != "" && (i == 0 || node != sl.Endpoints[i-1].Node) {
			s.watcher.Placed(s, node, sl.Service, change)
		}
	}
}
