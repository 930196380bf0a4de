package mirror

import (
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

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

func (o *ObservedImport) meta() keep.Meta { return o.Meta }

// has reports whether an import was computed from an export of a cluster.
func (o *ObservedImport) has(cluster string) bool {
	return slices.Contains(mcs.Exporting(o.places), cluster)
}

func (h summer) observedImport(i *v1beta1.ServiceImport) *ObservedImport {
	return &ObservedImport{
		identity: identity{
			Meta: keep.Meta{Name: i.Namespace + "/" + i.Name, UID: string(i.UID), ResourceVersion: i.ResourceVersion},
			sum:  h.serviceImport(i),
			ours: i.Labels[mcs.LabelImported] == labelValue, going: i.DeletionTimestamp != nil, tracked: kube.Tracked(i, fieldManager), by: kube.LastManager(i, fieldManager),
		},
		key:    origin.Key{Namespace: i.Namespace, Name: i.Name},
		places: mcs.ParsePlaces(i.Annotations[mcs.AnnotExports]),
		spec:   i.Spec, labels: i.Labels, annots: i.Annotations, status: i.Status, age: i.Generation,
	}
}

// observedDerived reads a derived Service. Its id has the key of its import.
func (h summer) observedDerived(s *corev1.Service) *ObservedService {
	o := h.observedService(s)
	o.Name, o.sum = s.Namespace+"/"+s.Name, h.derived(s)
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
	o.Name, o.sum, o.cluster = s.Namespace+"/"+s.Name, h.importSlice(s), s.Labels[mcs.LabelSourceCluster]
	o.service = s.Namespace + "/" + s.Labels[mcs.LabelServiceName]
	if service, ok := sliceOf(o.Name); ok {
		o.service = service
	}
	if len(s.OwnerReferences) == 1 {
		o.owner = s.OwnerReferences[0].UID
	}
	return o
}

// namespaceState is whether a namespace is being deleted.
type namespaceState struct{ going bool }

// imported has the objects of imports in all namespaces, with indexes. Names are
// namespace/name.
type imported struct {
	imports    *keep.Ledger[ObservedImport]
	services   *keep.Ledger[ObservedService] // derived ones
	slices     *sliceIndex
	namespaces map[string]*namespaceState
	// left are the places of exports of imports that are gone.
	left map[origin.Key][]mcs.Place

	mu sync.Mutex
	// unsupported are the imports whose derived Service was refused for its IP family, and
	// deleted those whose ServiceImport the last write deleted.
	unsupported, deleted map[origin.Key]bool
	// refused is what the API server refuses of imports.
	refused map[origin.Key]map[objectName]refusal
	// families are those of the cluster; none: not known.
	families []corev1.IPFamily
}

func newImported(notify func()) *imported {
	return &imported{
		imports:     keep.NewLedger(keep.LedgerConfig[ObservedImport]{Meta: (*ObservedImport).meta, Notify: notify}),
		services:    keep.NewLedger(keep.LedgerConfig[ObservedService]{Meta: (*ObservedService).meta, Notify: notify}),
		slices:      newSliceIndex(notify),
		namespaces:  map[string]*namespaceState{},
		left:        map[origin.Key][]mcs.Place{},
		unsupported: map[origin.Key]bool{}, deleted: map[origin.Key]bool{}, refused: map[origin.Key]map[objectName]refusal{},
	}
}

// maxLeft bounds imported.left: of further imports no places are kept.
const maxLeft = 10000

// leave remembers the places of an import that is gone.
func (l *imported) leave(k origin.Key, places []mcs.Place, now time.Time) {
	if len(l.left) >= maxLeft {
		maps.DeleteFunc(l.left, func(_ origin.Key, places []mcs.Place) bool { return len(mcs.Leave(places, now)) == 0 })
	}
	if delete(l.left, k); len(places) > 0 && len(l.left) < maxLeft {
		l.left[k] = places
	}
}

// importSpacing is the minimum time between the deletion of an import and its next write, so
// that a remote that creates and deletes an export all the time causes few of them.
const importSpacing = 5 * time.Second

// spacing is called after each write of a local service: see keep.WriterConfig.
func (l *imported) spacing(name string) time.Duration {
	k, is := importKey(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !is || !l.deleted[k] {
		return 0
	}
	delete(l.deleted, k)
	return importSpacing
}

// support notes whether the derived Service of an import was refused for its IP family.
func (l *imported) support(k origin.Key, refused bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if delete(l.unsupported, k); refused {
		l.unsupported[k] = true
	}
}

// has notes the IP families of the cluster.
func (l *imported) has(families []corev1.IPFamily) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.families = families
}

func (l *imported) clusterFamilies() []corev1.IPFamily {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.families
}

// gone notes that an import was deleted.
func (l *imported) gone(k origin.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.unsupported, k)
	delete(l.refused, k)
	l.deleted[k] = true
}

func (l *imported) supported(k origin.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.unsupported[k]
}

// update adds the names of imports of which an object has changed, and returns the keys of
// changed imports.
func (l *imported) update(names map[string]struct{}) map[origin.Key]struct{} {
	keys := map[origin.Key]struct{}{}
	for _, c := range l.imports.Changes() {
		names[c.Key] = struct{}{}
		if k, is := importKey(c.Key); is {
			keys[k] = struct{}{}
		}
	}
	for _, c := range l.services.Changes() {
		for _, o := range []*ObservedService{c.Before, c.After} {
			if o != nil && o.id.Name != "" {
				names[o.id.Key.String()] = struct{}{}
			}
		}
	}
	l.slices.update(names)
	return keys
}

// keys returns the keys of all imports with any object.
func (l *imported) keys() map[origin.Key]struct{} {
	keys := map[origin.Key]struct{}{}
	for _, o := range l.imports.All() {
		keys[o.key] = struct{}{}
	}
	for _, o := range l.services.All() {
		if o.ours {
			keys[o.id.Key] = struct{}{}
		}
	}
	for name := range l.slices.members {
		if k, is := importKey(name); is {
			keys[k] = struct{}{}
		}
	}
	return keys
}

// usable reports whether objects can be created in a namespace.
func (l *imported) usable(namespace string) bool {
	n := l.namespaces[namespace]
	return n != nil && !n.going
}

// service returns the derived Service of an import. That of another import, whose name has the
// same hash, is foreign.
func (l *imported) service(k origin.Key) *ObservedService {
	s := l.services.Get(k.Namespace + "/" + mcs.DerivedName(k.Namespace, k.Name))
	if s == nil || s.id.Key == k {
		return s
	}
	foreign := *s
	foreign.ours = false
	return &foreign
}

// get returns the observed state of an import, and the objects with the names of its desired
// slices.
func (l *imported) get(k origin.Key, want *Service) Observed {
	return Observed{Import: l.imports.Get(k.String()), Service: l.service(k), Slices: l.slices.of(k.String(), want)}
}

// ownedBy reports whether an object is owned by an import, and by nothing else.
func (o *identity) ownedBy(i *ObservedImport) bool { return i != nil && o.owner == types.UID(i.UID) }
