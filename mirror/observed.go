package mirror

import (
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/mirror/exposed"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// identity has the common fields of observed objects.
type identity struct {
	keep.Meta
	sum sum
	// ours is whether the object has our labels; foreign objects are never changed. going
	// is whether it is being deleted, and waits for finalizers.
	ours, going bool
	// tracked is kube.Tracked; untracked: there are no managed fields at all.
	tracked, untracked bool
	begin              bool      // managed fields, see withFields
	owner              types.UID // of an object of an import
}

// ObservedService is a Service of the mirror namespace, or a derived one.
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

// ObservedSlice is an EndpointSlice of the mirror namespace, or of an import.
type ObservedSlice struct {
	identity
	service string // local service, as Service.Name
	cluster string // of the origin; empty if unknown
	family  discoveryv1.AddressType
	size    int // in bytes
	exposed.Set
}

// ObservedImport is a ServiceImport of the local cluster. Its name is namespace/name, as are
// those of the other objects of imports.
type ObservedImport struct {
	identity
	key    origin.Key
	places []mcs.Place // of the exports that it was computed from
	spec   v1beta1.ServiceImportSpec
	labels map[string]string // exported ones
	annots map[string]string
	status v1beta1.ServiceImportStatus
	age    int64 // generation
}

func (o *ObservedService) meta() keep.Meta { return o.Meta }
func (o *ObservedSlice) meta() keep.Meta   { return o.Meta }
func (o *ObservedImport) meta() keep.Meta  { return o.Meta }

// has reports whether an import was computed from an export of a cluster.
func (o *ObservedImport) has(cluster string) bool {
	return slices.Contains(mcs.Exporting(o.places), cluster)
}

// ownedBy reports whether an object is owned by an import, and by nothing else.
func (o *identity) ownedBy(i *ObservedImport) bool { return i != nil && o.owner == types.UID(i.UID) }

// slice returns an existing slice in the form of what clusters publish.
func (o *ObservedSlice) slice(of origin.Key) *origin.Slice {
	sl := &origin.Slice{Name: o.Name, Service: of, Family: o.family, Ports: o.Ports}
	for i, address := range o.Addresses {
		e := origin.Endpoint{Address: address, Ready: origin.True}
		if i >= o.Ready {
			e.Ready = origin.False
		}
		sl.Endpoints = append(sl.Endpoints, e)
	}
	return sl
}

// running returns what a global service is made of, with its clusters in the order of precedence.
func (o *ObservedService) running(local string) mcs.Import {
	i := mcs.Import{Spec: o.spec, LocalFirst: o.localFirst}
	for _, cluster := range slices.Concat([]string{local}, o.accepted, o.clusters) {
		known := slices.ContainsFunc(i.Places, func(p mcs.Place) bool { return p.Cluster == cluster })
		if slices.Contains(o.clusters, cluster) && !known {
			i.Places = append(i.Places, mcs.Place{Cluster: cluster})
		}
	}
	return i
}

// isGlobal reports whether a Service has the marks of a global service.
func isGlobal(s metav1.Object) bool {
	return s.GetLabels()[labelGlobal] == labelValue || s.GetAnnotations()[annotClusters] != ""
}

// isMade reports whether a Service has the marks of a mirror or a global service, made by
// this program or the original one. In the mirror namespace it is ours; it is an origin in
// no namespace of no cluster: two clusters would copy each other's copies without end.
func isMade(s metav1.Object) bool {
	return isGlobal(s) || s.GetLabels()[labelMirrored] == labelValue || s.GetAnnotations()[annotCluster] != ""
}

// isMadeSlice is isMade for an EndpointSlice.
func isMadeSlice(s metav1.Object) bool {
	return s.GetLabels()[discoveryv1.LabelManagedBy] == managedBy || s.GetAnnotations()[annotCluster] != ""
}

func (h summer) observedService(s *corev1.Service) *ObservedService {
	o := &ObservedService{
		identity:   identity{Meta: keep.Meta{Name: s.Name, UID: string(s.UID), ResourceVersion: s.ResourceVersion}, sum: h.service(s, &serviceMarks)},
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
	return o
}

func (h summer) observedSlice(s *discoveryv1.EndpointSlice) *ObservedSlice {
	cluster := s.Annotations[annotCluster]
	if cluster == "" {
		cluster = s.Labels[legacySliceFrom]
	}
	o := &ObservedSlice{
		identity: identity{
			Meta: keep.Meta{Name: s.Name, UID: string(s.UID), ResourceVersion: s.ResourceVersion}, sum: h.slice(s, &sliceMarks),
			ours:  isMadeSlice(s),
			going: s.DeletionTimestamp != nil, tracked: kube.Tracked(s, fieldManager),
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

func (h summer) observedImport(i *v1beta1.ServiceImport) *ObservedImport {
	return &ObservedImport{
		identity: identity{
			Meta: keep.Meta{Name: i.Namespace + "/" + i.Name, UID: string(i.UID), ResourceVersion: i.ResourceVersion},
			sum:  h.serviceImport(i),
			ours: i.Labels[mcs.LabelImported] == labelValue, going: i.DeletionTimestamp != nil, tracked: kube.Tracked(i, fieldManager),
		},
		key:    origin.Key{Namespace: i.Namespace, Name: i.Name},
		places: mcs.ParsePlaces(i.Annotations[mcs.AnnotExports]),
		spec:   i.Spec, labels: i.Labels, annots: i.Annotations, status: i.Status, age: i.Generation,
	}
}

// observedDerived reads a derived Service. Its id has the key of its import.
func (h summer) observedDerived(s *corev1.Service) *ObservedService {
	o := h.observedService(s)
	o.Name, o.sum = s.Namespace+"/"+s.Name, h.service(s, &derivedMarks)
	o.id = origin.ID{Cluster: origin.ClusterSet, Key: origin.Key{Namespace: s.Namespace, Name: s.Annotations[mcs.AnnotImport]}}
	o.ours = s.Labels[mcs.LabelImported] == labelValue && s.Name == mcs.DerivedName(s.Namespace, o.id.Name)
	o.ips, o.families = s.Spec.ClusterIPs, s.Spec.IPFamilies
	if len(s.OwnerReferences) == 1 {
		o.owner = s.OwnerReferences[0].UID
	}
	return o
}

// observedImportSlice reads an EndpointSlice of an import. Its service is namespace/name of the
// import.
func (h summer) observedImportSlice(s *discoveryv1.EndpointSlice) *ObservedSlice {
	o := h.observedSlice(s)
	o.Name, o.sum, o.cluster = s.Namespace+"/"+s.Name, h.slice(s, &importSliceMarks), s.Labels[mcs.LabelSourceCluster]
	o.service = s.Namespace + "/" + s.Labels[mcs.LabelServiceName]
	if service, ok := sliceOf(o.Name); ok {
		o.service = service
	}
	if len(s.OwnerReferences) == 1 {
		o.owner = s.OwnerReferences[0].UID
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

// objects are the Services and EndpointSlices of the mirror namespace, or those of all imports.
type objects struct {
	services *keep.Ledger[ObservedService]
	slices   *keep.Ledger[ObservedSlice]

	mu      sync.RWMutex                   // the writer's workers call get during a pass
	members map[string]map[string]struct{} // slices by local service
}

func newObjects(notify func()) *objects {
	return &objects{
		services: keep.NewLedger(keep.LedgerConfig[ObservedService]{Meta: (*ObservedService).meta, Notify: notify}),
		slices:   keep.NewLedger(keep.LedgerConfig[ObservedSlice]{Meta: (*ObservedSlice).meta, Notify: notify}),
		members:  map[string]map[string]struct{}{},
	}
}

// changed returns the changed Services, and calls touch with the local services of changed slices.
func (x *objects) changed(touch func(name string)) []kube.Change[ObservedService] {
	changes := x.slices.Changes()
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, c := range changes {
		if c.Before != nil {
			leave(x.members, c.Before.service, c.Key)
			touch(c.Before.service)
		}
		if c.After != nil {
			join(x.members, c.After.service, c.Key)
			touch(c.After.service)
		}
	}
	return x.services.Changes()
}

// get returns the observed state of a local service, and the objects with the names of its desired
// slices.
func (x *objects) get(want *Service) Observed {
	all := map[string]*ObservedSlice{}
	add := func(name string) {
		if s := x.slices.Get(name); s != nil {
			all[name] = s
		}
	}
	x.mu.RLock()
	for name := range x.members[want.Name] {
		add(name)
	}
	x.mu.RUnlock()
	for i := range want.Slices {
		add(want.Slices[i].Name)
	}
	return Observed{Service: x.services.Get(want.Name), Slices: all}
}

// of returns our slices of a local service.
func (x *objects) of(name string) iter.Seq[*ObservedSlice] {
	return func(yield func(*ObservedSlice) bool) {
		for slice := range x.members[name] {
			if o := x.slices.Get(slice); o != nil && o.ours && !yield(o) {
				return
			}
		}
	}
}

// local has the objects of the local cluster.
type local struct {
	home, imported *objects
	imports        *keep.Ledger[ObservedImport]
	namespaces     map[string]*namespaceState
	answers        answers
	// left are the places of the clusters of imports and global services that are gone.
	left map[string][]mcs.Place
}

// namespaceState is whether a namespace is being deleted.
type namespaceState struct{ going bool }

func newLocal(notify func()) *local {
	return &local{
		home: newObjects(notify), imported: newObjects(notify),
		imports:    keep.NewLedger(keep.LedgerConfig[ObservedImport]{Meta: (*ObservedImport).meta, Notify: notify}),
		namespaces: map[string]*namespaceState{}, answers: newAnswers(), left: map[string][]mcs.Place{},
	}
}

// of returns the objects among which those of a local service are.
func (l *local) of(name string) *objects {
	if _, is := importKey(name); is {
		return l.imported
	}
	return l.home
}

// update calls touch with the local services of which an object has changed.
func (l *local) update(now time.Time, touch func(name string)) {
	services := l.home.changed(touch)
	for _, c := range services {
		touch(c.Key)
		if c.After == nil && c.Before.global && c.Before.ours { // another client may have deleted it
			l.leave(c.Key, c.Before.running("").Places, now)
		}
	}
	for _, c := range l.imports.Changes() {
		touch(c.Key)
	}
	for _, c := range l.imported.changed(touch) {
		for _, o := range []*ObservedService{c.Before, c.After} {
			if o != nil && o.id.Name != "" {
				touch(o.id.Key.String())
			}
		}
	}
}

// exists reports whether a local service has an object.
func (l *local) exists(name string) bool {
	return l.home.services.Get(name) != nil || l.imports.Get(name) != nil
}

// names calls each with the names of all local services with any object of ours.
func (l *local) names(each func(name string)) {
	for _, x := range []*objects{l.home, l.imported} {
		for name := range x.members {
			each(name)
		}
	}
	for _, o := range l.home.services.All() {
		each(o.Name)
	}
	for _, o := range l.imported.services.All() {
		if o.ours && o.id.Name != "" {
			each(o.id.Key.String())
		}
	}
	for _, o := range l.imports.All() {
		each(o.Name)
	}
}

// maxLeft bounds local.left: of further services no places are kept.
const maxLeft = 10000

// leave remembers the places of the clusters of a service that is gone.
func (l *local) leave(name string, places []mcs.Place, now time.Time) {
	places = mcs.Leave(places, now)
	if len(l.left) >= maxLeft {
		maps.DeleteFunc(l.left, func(_ string, places []mcs.Place) bool { return len(mcs.Leave(places, now)) == 0 })
	}
	if delete(l.left, name); len(places) > 0 && len(l.left) < maxLeft {
		l.left[name] = places
	}
}

// usable reports whether objects can be created in a namespace.
func (l *local) usable(namespace string) bool {
	n := l.namespaces[namespace]
	return n != nil && !n.going
}

// derived returns the derived Service of an import. That of another import, whose name has the
// same hash, is foreign.
func (l *local) derived(k origin.Key) *ObservedService {
	s := l.imported.services.Get(k.Namespace + "/" + mcs.DerivedName(k.Namespace, k.Name))
	if s == nil || s.id.Key == k {
		return s
	}
	foreign := *s
	foreign.ours = false
	return &foreign
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
