package mirror

import (
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/mirror/exposed"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// identity has the common fields of objects of the mirror namespace.
type identity struct {
	keep.Meta
	sum sum
	// ours is whether the object has our labels; foreign objects are never changed. going
	// is whether it is being deleted, and waits for finalizers.
	ours, going bool
	// tracked is kube.Tracked; untracked: there are no managed fields at all. by is
	// kube.LastManager.
	tracked, untracked bool
	begin              bool // managed fields, see withFields
	by                 string
	owner              types.UID // of an object of an import
}

// ObservedService is a Service of the mirror namespace.
type ObservedService struct {
	identity
	id         origin.ID // origin; without a cluster if unknown
	prefix     string    // identifies the remote of a mirror of the original tool
	global     bool
	clusters   []string // of a global service
	accepted   []string // the remote ones, in the order of acceptance; empty: unknown
	localFirst bool
	family     corev1.IPFamily // of its first address
	spec       origin.Spec
	ips        []string          // of a derived one
	families   []corev1.IPFamily // of a derived one
}

// ObservedSlice is an EndpointSlice of the mirror namespace.
type ObservedSlice struct {
	identity
	service string
	cluster string // of the origin; empty if unknown
	family  discoveryv1.AddressType
	size    int // in bytes
	exposed.Set
}

func (o *ObservedService) meta() keep.Meta { return o.Meta }
func (o *ObservedSlice) meta() keep.Meta   { return o.Meta }

// isGlobal reports whether a Service has the marks of a global service.
func isGlobal(s *corev1.Service) bool {
	return s.Labels[labelGlobal] == labelValue || s.Annotations[annotClusters] != ""
}

// isMade reports whether a Service has the marks of a mirror or a global service, made by
// this program or the original one. In the mirror namespace it is ours; it is an origin in
// no namespace of no cluster: two clusters would copy each other's copies without end.
func isMade(s *corev1.Service) bool {
	return isGlobal(s) || s.Labels[labelMirrored] == labelValue || s.Annotations[annotCluster] != ""
}

// isMadeSlice is isMade for an EndpointSlice.
func isMadeSlice(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == managedBy || s.Annotations[annotCluster] != ""
}

func (h summer) observedService(s *corev1.Service) *ObservedService {
	o := &ObservedService{
		identity:   identity{Meta: keep.Meta{Name: s.Name, UID: string(s.UID), ResourceVersion: s.ResourceVersion}, sum: h.service(s)},
		id:         origin.ID{Cluster: s.Annotations[annotCluster], Key: origin.Key{Namespace: s.Annotations[annotNamespace], Name: s.Annotations[annotName]}},
		prefix:     s.Labels[labelPrefix],
		global:     isGlobal(s),
		localFirst: s.Spec.TrafficDistribution != nil,
		spec:       origin.TrimSpec(&s.Spec),
	}
	if len(s.Spec.IPFamilies) > 0 {
		o.family = s.Spec.IPFamilies[0]
	}
	if o.global && o.id.Name == "" {
		// The original tool has the origin in the name only.
		rest := strings.TrimPrefix(s.Name, globalPrefix+"-")
		o.id.Namespace, o.id.Name, _ = strings.Cut(rest, "-"+separator+"-")
	}
	if list := s.Annotations[annotClusters]; list != "" {
		o.clusters = strings.Split(list, ",")
	}
	if list := s.Annotations[annotAccepted]; list != "" {
		o.accepted = strings.Split(list, ",")
	}
	o.ours = isMade(s)
	o.going, o.tracked, o.untracked = s.DeletionTimestamp != nil, kube.Tracked(s, fieldManager), len(s.ManagedFields) == 0
	o.by = kube.LastManager(s, fieldManager)
	return o
}

func (h summer) observedSlice(s *discoveryv1.EndpointSlice) *ObservedSlice {
	cluster := s.Annotations[annotCluster]
	if cluster == "" {
		cluster = s.Labels[legacySliceFrom]
	}
	o := &ObservedSlice{
		identity: identity{
			Meta: keep.Meta{Name: s.Name, UID: string(s.UID), ResourceVersion: s.ResourceVersion}, sum: h.slice(s),
			ours:  isMadeSlice(s),
			going: s.DeletionTimestamp != nil, tracked: kube.Tracked(s, fieldManager), by: kube.LastManager(s, fieldManager),
		},
		service: s.Labels[discoveryv1.LabelServiceName],
		cluster: cluster,
		family:  s.AddressType,
		size:    s.Size(),
	}
	if o.ours {
		// The name has precedence over the label, which others may have changed.
		if service, ok := sliceOf(s.Name); ok {
			o.service = service
		}
		o.Ports = origin.Named(s.Ports)
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			for _, text := range e.Addresses {
				o.Parse(text, e.Conditions.Ready == nil || *e.Conditions.Ready)
			}
		}
	}
	return o
}

// Observed is the observed state of one local service. That of an import is its derived one.
type Observed struct {
	Service *ObservedService
	Import  *ObservedImport
	Export  *mcs.Export               // of the local cluster, with the same namespace and name
	Slices  map[string]*ObservedSlice // by name, including foreign ones
}

// local has the objects of the mirror namespace, with indexes.
type local struct {
	services *keep.Ledger[ObservedService]
	slices   *sliceIndex
	// globals are the names of global services by their origin.
	globals map[origin.Key]map[string]struct{}
	// made are the numbers of our objects by the cluster of their origin.
	made map[string]made
	// imported has the objects of imports.
	imported *imported
}

// made are numbers of mirrors, and of slices of mirrors and global services.
type made struct{ services, slices int }

func newLocal(notify func()) *local {
	return &local{
		services: keep.NewLedger(keep.LedgerConfig[ObservedService]{Meta: (*ObservedService).meta, Notify: notify}),
		slices:   newSliceIndex(notify),
		globals:  map[origin.Key]map[string]struct{}{},
		made:     map[string]made{},
		imported: newImported(notify),
	}
}

// update returns the names of local services of which the Service or a slice has changed, and
// the origins of the changed global Services.
func (l *local) update() (names map[string]struct{}, globals map[origin.Key]struct{}) {
	names, globals = map[string]struct{}{}, map[origin.Key]struct{}{}
	for _, c := range l.services.Changes() {
		names[c.Key] = struct{}{}
		l.countService(c.Before, -1)
		l.countService(c.After, 1)
		if before := c.Before; before != nil && before.global {
			leave(l.globals, before.id.Key, before.Name)
			globals[before.id.Key] = struct{}{}
		}
		if after := c.After; after != nil && after.global && after.id.Name != "" {
			join(l.globals, after.id.Key, after.Name)
			globals[after.id.Key] = struct{}{}
		}
	}
	for _, c := range l.slices.update(names) {
		l.countSlice(c.Before, -1)
		l.countSlice(c.After, 1)
	}
	delete(names, "")
	return names, globals
}

func (l *local) countService(o *ObservedService, n int) {
	if o != nil && o.ours && !o.global {
		l.count(o.id.Cluster, made{services: n})
	}
}

func (l *local) countSlice(o *ObservedSlice, n int) {
	if o != nil && o.ours {
		l.count(o.cluster, made{slices: n})
	}
}

func (l *local) count(cluster string, n made) {
	of := l.made[cluster]
	if of = (made{of.services + n.services, of.slices + n.slices}); of == (made{}) {
		delete(l.made, cluster)
		return
	}
	l.made[cluster] = of
}

func join[K comparable](groups map[K]map[string]struct{}, k K, name string) {
	if groups[k] == nil {
		groups[k] = map[string]struct{}{}
	}
	groups[k][name] = struct{}{}
}

func leave[K comparable](groups map[K]map[string]struct{}, k K, name string) {
	delete(groups[k], name)
	if len(groups[k]) == 0 {
		delete(groups, k)
	}
}

// get returns the observed state of a service, and the objects with the names of its
// desired slices.
func (l *local) get(name string, want *Service) Observed {
	return Observed{Service: l.services.Get(name), Slices: l.slices.of(name, want)}
}

// slicesOf returns our slices of a local service.
func (l *local) slicesOf(name string) []*ObservedSlice {
	index := l.slices
	if _, is := importKey(name); is {
		index = l.imported.slices
	}
	var all []*ObservedSlice
	for slice := range index.members[name] {
		if o := index.Get(slice); o != nil && o.ours {
			all = append(all, o)
		}
	}
	return all
}

// sliceIndex has EndpointSlices by service.
type sliceIndex struct {
	*keep.Ledger[ObservedSlice]
	mu      sync.RWMutex                   // for update, and for of, which the writer's workers call, too
	members map[string]map[string]struct{} // names by service
}

func newSliceIndex(notify func()) *sliceIndex {
	return &sliceIndex{
		Ledger:  keep.NewLedger(keep.LedgerConfig[ObservedSlice]{Meta: (*ObservedSlice).meta, Notify: notify}),
		members: map[string]map[string]struct{}{},
	}
}

// update takes in what has changed, and adds the names of the services of changed slices.
func (x *sliceIndex) update(names map[string]struct{}) []kube.Change[ObservedSlice] {
	changes := x.Changes()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range changes {
		if c.Before != nil {
			leave(x.members, c.Before.service, c.Key)
			names[c.Before.service] = struct{}{}
		}
		if c.After != nil {
			join(x.members, c.After.service, c.Key)
			names[c.After.service] = struct{}{}
		}
	}
	return changes
}

// of returns the slices of a service, and those with the names of its desired ones.
func (x *sliceIndex) of(service string, want *Service) map[string]*ObservedSlice {
	all := map[string]*ObservedSlice{}
	add := func(name string) {
		if s := x.Get(name); s != nil {
			all[name] = s
		}
	}
	x.mu.RLock()
	for name := range x.members[service] {
		add(name)
	}
	x.mu.RUnlock()
	for i := range want.Slices {
		add(want.Slices[i].Name)
	}
	return all
}

// global returns the local object of a global service, or nil. While a name changes there
// may be several: it returns the first one by name.
func (l *local) global(k origin.Key) *ObservedService {
	var first *ObservedService
	for name := range l.globals[k] {
		if o := l.services.Get(name); o != nil && o.ours && o.id.Key == k && (first == nil || o.Name < first.Name) {
			first = o
		}
	}
	return first
}

// names returns the names of all services with any object.
func (l *local) names() map[string]struct{} {
	names := map[string]struct{}{}
	for _, s := range l.services.All() {
		names[s.Name] = struct{}{}
	}
	for name := range l.slices.members {
		names[name] = struct{}{}
	}
	delete(names, "")
	return names
}

// foreign returns the foreign slices of a service of ours.
func (o *Observed) foreign(want *Service) []string {
	var names []string
	if want.Absent && (o.Service == nil || !o.Service.ours) {
		return nil
	}
	for name, s := range o.Slices {
		if !s.ours && s.service == want.Name {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
