package mirror

import (
	"encoding/json"
	"hash/maphash"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/mirror/exposed"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// Labels and annotations of our objects. Those of Services are the original tool's, so that
// each program adopts the objects of the other.
const (
	labelMirrored   = "mirrored-svc"
	labelGlobal     = "global-svc"
	labelPrefix     = "mirror-svc-prefix-sync"
	labelValue      = "true"
	managedBy       = "semaphore-service-mirror"
	annotationFrom  = "mirror.semaphore.uw.io/"
	annotCluster    = annotationFrom + "cluster"
	annotNamespace  = annotationFrom + "namespace"
	annotName       = annotationFrom + "name"
	annotAccepted   = annotationFrom + "accepted-remotes"
	annotClusters   = "global-svc-clusters"
	legacySliceFrom = "mirror-endpointslice-sync-name"
)

// annotDrained is set by users, on the Service kubernetes in the namespace default of a
// drained cluster.
const annotDrained = annotationFrom + "drained"

// marks are the labels and annotations that we set and remove.
type marks struct{ labels, annotations []string }

//nolint:gochecknoglobals // Go has no constants of this type.
var (
	serviceMarks = marks{
		[]string{labelMirrored, labelGlobal, labelPrefix},
		[]string{annotCluster, annotNamespace, annotName, annotClusters, annotAccepted},
	}
	sliceMarks = marks{
		[]string{discoveryv1.LabelManagedBy, discoveryv1.LabelServiceName, corev1.IsHeadlessService},
		[]string{annotCluster, annotNamespace, annotName},
	}
	derivedMarks     = marks{[]string{mcs.LabelImported}, []string{mcs.AnnotImport}}
	importSliceMarks = marks{[]string{discoveryv1.LabelManagedBy, discoveryv1.LabelServiceName, mcs.LabelServiceName, mcs.LabelSourceCluster}, nil}
)

// marksOf returns the marks of the Service and the slices of a local service.
func marksOf(name string) (service, slice *marks) {
	if _, is := importKey(name); is {
		return &derivedMarks, &importSliceMarks
	}
	return &serviceMarks, &sliceMarks
}

// remoteZone is a zone without nodes. kube-proxy uses the hints of a service only if each
// ready endpoint has hints, and one of them has the zone of the node.
const remoteZone = "remote.mirror.semaphore.uw.io"

// maxZones is the maximum number of zones in the hints of one endpoint.
const maxZones = 8

// Service is the desired state of one local service. It is immutable.
type Service struct {
	Name string
	// Absent: the service must not exist.
	Absent bool
	Origin origin.ID
	Spec   origin.Spec
	// Refused are further origins that would have the name.
	Refused []origin.ID
	// Clusters are those of a global service, sorted, Accepted those of them that
	// are remote, the first accepted first.
	Clusters, Accepted []string
	LocalFirst         bool
	Slices             []Slice // sorted by name
	Conflicts          []statuspage.Conflict
	Tallies            map[string]*Tally // by cluster
	// Outdated: endpoints of stale clusters are omitted. Drained are the clusters with
	// endpoints that are omitted because they are drained. Needed are frontends of stale and
	// drained clusters that no other one has a ready endpoint for, by cluster.
	Outdated bool
	Drained  []string
	Needed   map[string][]string
	// Former are clusters of a global service that are no longer configured.
	Former []string
	// Hold is the reason for which the service must not be changed yet, and Until the end of
	// that, if there is one.
	Hold  string
	Until time.Time

	// Imported is that of an import; nil: it is none, or must not exist. Conditions are those of
	// the export of the local cluster; nil: there is none, or they must not change yet.
	Imported   *Imported
	Conditions []metav1.Condition

	prefix   string       // of the remote; "gl" for a global service
	sum      sum          // of the Service
	conflict mcs.Conflict // of an import
}

// Imported is the desired state of an import, beyond that of its endpoints.
type Imported struct {
	mcs.Import
	// IPs and Families are those of the derived Service, none yet if there is none. A headless
	// import has no IPs, and the families of mcs.Import.Families.
	IPs      []string
	Families []corev1.IPFamily
	// Unsupported: the local cluster has none of its IP families.
	Unsupported bool
	// Rejected are objects that the API server refuses, and Instead what others have instead of
	// some fields.
	Rejected, Instead []string
	// Status is nil if the state of a cluster is unknown that the running one is made of.
	Status *v1beta1.ServiceImportStatus
	sum    sum
}

// object returns the desired ServiceImport.
func (i *Imported) object(k origin.Key) *v1beta1.ServiceImport {
	return i.Object(k.Namespace, k.Name, i.IPs, i.Families)
}

// Tally counts the used endpoints of a cluster in a service, those of them that are
// withdrawn, and the rejected ones, with an example.
type Tally struct {
	Taken, Withdrawn, Rejected int
	Example                    string
}

func (t *Tally) reject(count int, example string) {
	t.Rejected += count
	if t.Example == "" || example < t.Example {
		t.Example = example
	}
}

// Slice is the desired state of one local EndpointSlice.
type Slice struct {
	Name, Cluster string
	Endpoints     []origin.Endpoint

	origin *origin.Slice
	// kept is the existing slice, if the state of its cluster is unknown: it stays as it is, except
	// for ports that must go, and origin is made from it.
	kept     *ObservedSlice
	zones    []string // hints; nil: none
	headless bool
	// nodes: endpoints have their nodes, which must be those of the local cluster.
	nodes bool
	sum   sum
	size  int // of the object, in bytes
}

// tally returns the tally of a cluster.
func (t *Service) tally(cluster string) *Tally {
	if t.Tallies == nil {
		t.Tallies = map[string]*Tally{}
	}
	if t.Tallies[cluster] == nil {
		t.Tallies[cluster] = &Tally{}
	}
	return t.Tallies[cluster]
}

// slice returns a desired slice, or nil.
func (t *Service) slice(name string) *Slice {
	i, found := slices.BinarySearchFunc(t.Slices, name, func(s Slice, name string) int { return strings.Compare(s.Name, name) })
	if !found {
		return nil
	}
	return &t.Slices[i]
}

// seal completes a planned service by what its desired objects are, as sums.
func (t *Service) seal(sums summer, have *Observed, answers *answers) {
	service, slice := marksOf(t.Name)
	for i := range t.Slices {
		w := &t.Slices[i]
		if o := w.kept; o != nil {
			w.sum, w.size = sums.withPorts(o, w.origin.Ports), o.size
			continue
		}
		object := w.object("", t, "")
		w.sum, w.size = sums.slice(object, slice), object.Size()
	}
	if t.Absent {
		answers.forget(t.Name)
		return
	}
	t.sum = sums.service(t.object("", ""), service)
	if t.Imported == nil {
		return
	}
	i, k := t.Imported, t.Origin.Key
	cluster := answers.clusterFamilies()
	common := i.Import.Families(cluster)
	if i.Unsupported = len(common) == 0 && len(cluster) > 0; t.Spec.Headless {
		i.Families = common
	}
	if o := have.Service; o != nil && o.ours && !t.Spec.Headless && !o.spec.Headless && (o.owner == "" || o.ownedBy(have.Import)) {
		i.IPs, i.Families = o.ips, o.families
	}
	i.sum = sums.serviceImport(i.object(k))
	i.Rejected, i.Instead = answers.refusals(k, t, have)
}

// object returns the desired Service. Of an import it is the derived one: without a selector, so
// that its endpoints are our slices. It is made before the import, which gets its addresses; then
// owner is empty.
func (t *Service) object(home string, owner types.UID) *corev1.Service {
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	s := &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: t.metadata(home, owner),
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeClusterIP,
			InternalTrafficPolicy:    &cluster,
			SessionAffinity:          corev1.ServiceAffinityNone,
			PublishNotReadyAddresses: t.Spec.PublishNotReady,
		},
	}
	if t.Spec.Headless {
		s.Spec.ClusterIP = corev1.ClusterIPNone
	}
	if t.Spec.AffinityTimeout > 0 {
		timeout := t.Spec.AffinityTimeout
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
	if t.LocalFirst {
		distribution := corev1.ServiceTrafficDistributionPreferClose
		s.Spec.TrafficDistribution = &distribution
	}
	s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = families(t.Spec.Traits)
	for _, p := range t.Spec.Ports {
		port := corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, TargetPort: p.Target}
		if p.AppProtocol != "" {
			port.AppProtocol = &p.AppProtocol
		}
		s.Spec.Ports = append(s.Spec.Ports, port)
	}
	if t.Imported != nil {
		t.Imported.Traffic(&s.Spec)
	}
	return s
}

// metadata returns that of the desired Service.
func (t *Service) metadata(home string, owner types.UID) metav1.ObjectMeta {
	if k, is := importKey(t.Name); is {
		m := metav1.ObjectMeta{
			Namespace: k.Namespace, Name: mcs.DerivedName(k.Namespace, k.Name),
			Labels: map[string]string{mcs.LabelImported: labelValue}, Annotations: map[string]string{mcs.AnnotImport: k.Name},
		}
		if owner != "" {
			m.OwnerReferences = []metav1.OwnerReference{mcs.Owner(k.Name, owner)}
		}
		return m
	}
	m := metav1.ObjectMeta{
		Namespace: home, Name: t.Name, Labels: map[string]string{labelMirrored: labelValue, labelPrefix: t.prefix},
		Annotations: map[string]string{annotNamespace: t.Origin.Namespace, annotName: t.Origin.Name},
	}
	if !t.Origin.Global() {
		m.Annotations[annotCluster] = t.Origin.Cluster
		return m
	}
	m.Labels[labelGlobal] = labelValue
	m.Annotations[annotClusters] = strings.Join(t.Clusters, ",")
	if len(t.Accepted) > 0 {
		m.Annotations[annotAccepted] = strings.Join(t.Accepted, ",")
	}
	return m
}

// families returns the IP families of the origin. With both, the local cluster decides on
// the order, or on the only family that it has.
func families(t origin.Traits) (*corev1.IPFamilyPolicy, []corev1.IPFamily) {
	single, both := corev1.IPFamilyPolicySingleStack, corev1.IPFamilyPolicyPreferDualStack
	switch {
	case t.IPv4 && t.IPv6:
		return &both, nil
	case t.IPv4:
		return &single, []corev1.IPFamily{corev1.IPv4Protocol}
	case t.IPv6:
		return &single, []corev1.IPFamily{corev1.IPv6Protocol}
	default:
		return nil, nil
	}
}

// object returns the desired EndpointSlice of a service. One of an import has an owner.
func (w *Slice) object(home string, of *Service, owner types.UID) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: home, Name: w.Name,
			Labels: map[string]string{discoveryv1.LabelManagedBy: managedBy},
		},
		AddressType: w.origin.Family,
		Ports:       w.origin.Ports,
	}
	if k, is := importKey(of.Name); is {
		slice, _ := importKey(w.Name)
		s.Namespace, s.Name, s.OwnerReferences = k.Namespace, slice.Name, []metav1.OwnerReference{mcs.Owner(k.Name, owner)}
		s.Labels[mcs.LabelServiceName], s.Labels[mcs.LabelSourceCluster] = k.Name, w.Cluster
		// CoreDNS finds it by the labels of the API. A headless import has no Service.
		if !w.headless {
			s.Labels[discoveryv1.LabelServiceName] = mcs.DerivedName(k.Namespace, k.Name)
		}
	} else {
		s.Labels[discoveryv1.LabelServiceName] = of.Name
		s.Annotations = map[string]string{annotCluster: w.Cluster, annotNamespace: w.origin.Service.Namespace, annotName: w.origin.Name}
		if w.headless {
			// kube-proxy ignores slices with this label.
			s.Labels[corev1.IsHeadlessService] = ""
		}
	}
	for i := range w.Endpoints {
		e := &w.Endpoints[i]
		endpoint := discoveryv1.Endpoint{
			Addresses: []string{e.Address.String()},
			Conditions: discoveryv1.EndpointConditions{
				Ready: e.Ready.Pointer(), Serving: e.Serving.Pointer(), Terminating: e.Terminating.Pointer(),
			},
			Hints: hints(w.zones, i),
		}
		if e.Hostname != "" {
			endpoint.Hostname = &e.Hostname
		}
		if w.nodes && e.Node != "" {
			endpoint.NodeName = &e.Node
		}
		s.Endpoints = append(s.Endpoints, endpoint)
	}
	return s
}

// hints returns the hints of the endpoint at an index. If there are more than maxZones
// zones, they are distributed over the endpoints.
func hints(zones []string, index int) *discoveryv1.EndpointHints {
	if len(zones) == 0 {
		return nil
	}
	h := &discoveryv1.EndpointHints{}
	for i := range min(len(zones), maxZones) {
		h.ForZones = append(h.ForZones, discoveryv1.ForZone{Name: zones[(index*maxZones+i)%len(zones)]})
	}
	slices.SortFunc(h.ForZones, func(a, b discoveryv1.ForZone) int { return strings.Compare(a.Name, b.Name) })
	return h
}

// summer hashes the fields that we set, to compare objects with a tenth of their memory.
// Hashes are valid within one process.
type summer struct{ seed maphash.Seed }

func newSummer() summer { return summer{maphash.MakeSeed()} }

// sum is a hash of an object, never zero.
type sum uint64

func (h summer) of(parts ...any) sum {
	var m maphash.Hash
	m.SetSeed(h.seed)
	// Encoding never fails for these types.
	if err := json.NewEncoder(&m).Encode(parts); err != nil {
		return 0
	}
	return max(1, sum(m.Sum64()))
}

// ownFields are the fields of an object that we set, and those that must stay unset.
type ownFields struct {
	Spec                any
	Labels, Annotations map[string]string
}

// service hashes a Service.
func (h summer) service(s *corev1.Service, m *marks) sum {
	spec := corev1.ServiceSpec{
		Type:                     s.Spec.Type,
		Ports:                    slices.Clone(s.Spec.Ports),
		Selector:                 s.Spec.Selector,
		ExternalIPs:              s.Spec.ExternalIPs,
		LoadBalancerIP:           s.Spec.LoadBalancerIP,
		ExternalName:             s.Spec.ExternalName,
		SessionAffinity:          s.Spec.SessionAffinity,
		SessionAffinityConfig:    s.Spec.SessionAffinityConfig,
		PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses,
		TrafficDistribution:      s.Spec.TrafficDistribution,
		IPFamilyPolicy:           s.Spec.IPFamilyPolicy,
	}
	if s.Spec.ClusterIP == corev1.ClusterIPNone {
		spec.ClusterIP = corev1.ClusterIPNone
	}
	if p := s.Spec.IPFamilyPolicy; p != nil && *p == corev1.IPFamilyPolicySingleStack {
		spec.IPFamilies = s.Spec.IPFamilies
	}
	if p := s.Spec.InternalTrafficPolicy; p != nil && *p == corev1.ServiceInternalTrafficPolicyLocal {
		spec.InternalTrafficPolicy = p
	}
	if len(spec.Selector) == 0 {
		spec.Selector = nil
	}
	return h.of(ownFields{spec, only(s.Labels, m.labels...), only(s.Annotations, m.annotations...)})
}

// slice hashes an EndpointSlice: its ports and the rest, so that withPorts needs only the
// former.
func (h summer) slice(s *discoveryv1.EndpointSlice, m *marks) sum {
	endpoints := s.Endpoints
	if len(endpoints) == 0 {
		endpoints = nil // Empty and nil lists are equal in the API.
	}
	rest := h.of(ownFields{
		struct {
			Endpoints   []discoveryv1.Endpoint  `json:"endpoints"`
			AddressType discoveryv1.AddressType `json:"addressType"`
		}{endpoints, s.AddressType},
		only(s.Labels, m.labels...), only(s.Annotations, m.annotations...),
	})
	return max(1, rest^h.ports(s.Ports))
}

func (h summer) ports(ports []discoveryv1.EndpointPort) sum {
	return h.of(origin.Named(ports))
}

// withPorts returns the sum of a slice with other ports.
func (h summer) withPorts(o *ObservedSlice, ports []discoveryv1.EndpointPort) sum {
	return max(1, o.sum^h.ports(o.Ports)^h.ports(ports))
}

// serviceImport hashes a ServiceImport: all but its status.
func (h summer) serviceImport(i *v1beta1.ServiceImport) sum {
	spec := i.Spec
	if len(spec.Ports) == 0 {
		spec.Ports = []v1beta1.ServicePort{}
	}
	return h.of(ownFields{spec, i.Labels, i.Annotations})
}

// status hashes the status of an import, without times.
func (h summer) status(st *v1beta1.ServiceImportStatus) sum {
	return h.of(st.Clusters, st.EndpointSliceObjects, h.conditions(st.Conditions))
}

// conditions hashes conditions, without times.
func (h summer) conditions(all []metav1.Condition) sum {
	timeless := slices.Clone(all)
	for i := range timeless {
		timeless[i].LastTransitionTime = metav1.Time{}
	}
	return h.of(timeless)
}

func only(all map[string]string, keys ...string) map[string]string {
	some := make(map[string]string, len(keys))
	for _, k := range keys {
		if v, ok := all[k]; ok {
			some[k] = v
		}
	}
	return some
}

// exposed returns what a desired slice exposes.
func (w *Slice) exposed() exposed.Set {
	e := exposed.Set{Ports: w.origin.Ports}
	for i := range w.Endpoints {
		e.Add(w.Endpoints[i].Address, w.Endpoints[i].Ready != origin.False)
	}
	return e
}
