package mirror

import (
	"bytes"
	"encoding/json"
	"hash/maphash"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/status"
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

// Labels and annotations that we set and remove.
//
//nolint:gochecknoglobals // Go has no constants of this type.
var (
	serviceLabels      = []string{labelMirrored, labelGlobal, labelPrefix}
	serviceAnnotations = []string{annotCluster, annotNamespace, annotName, annotClusters, annotAccepted}
	sliceLabels        = []string{discoveryv1.LabelManagedBy, discoveryv1.LabelServiceName, corev1.IsHeadlessService}
	sliceAnnotations   = []string{annotCluster, annotNamespace, annotName}
)

// remoteZone is a zone without nodes. kube-proxy uses the hints of a service only if each
// ready endpoint has hints, and one of them has the zone of the node.
const remoteZone = "remote.mirror.semaphore.uw.io"

// maxZones is the maximum number of zones in the hints of one endpoint.
const maxZones = 8

// Service is the desired state of one local service. It is immutable.
type Service struct {
	Name string
	// Absent: the service must not exist.
	Absent  bool
	Origin  origin.ID
	Instead *origin.ID // the origin that has the claimed name; nil: this one
	Spec    origin.Spec
	// Clusters are those of a global service, sorted, Accepted those of them that
	// are remote, the first accepted first.
	Clusters, Accepted []string
	LocalFirst         bool
	Slices             []Slice // sorted by name
	Conflicts          []status.Conflict
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
	// that, if there is one. Keep has slices to retain that aren't desired, sorted by name.
	Hold  string
	Until time.Time
	Keep  []Retained

	// Imported is that of an import; nil: it is none, or must not exist. Conditions are those of
	// the export of the local cluster; nil: there is none, or they must not change yet.
	Imported   *Imported
	Conditions []metav1.Condition

	prefix string // of the remote; "gl" for a global service
	// keeps are, by cluster of unknown state, whether it is used for a frontend; nil: for all.
	keeps    map[string]map[exposed.Frontend]bool
	names    map[string]map[string]string // part.names of them
	sum      sum
	conflict mcs.Conflict // of an import
}

// Retained is a slice that stays as it is, except for ports that must go.
type Retained struct {
	// Ports are the remaining ones.
	Ports []discoveryv1.EndpointPort

	slice *ObservedSlice
	sum   sum // with Ports
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

	origin   *origin.Slice
	zones    []string // hints; nil: none
	headless bool
	// nodes: endpoints have their nodes, which must be those of the local cluster.
	nodes bool
	sum   sum
	size  int // of the object, in bytes
}

// slice returns a desired slice, or nil.
func (t *Service) slice(name string) *Slice {
	i, found := slices.BinarySearchFunc(t.Slices, name, func(s Slice, name string) int { return strings.Compare(s.Name, name) })
	if !found {
		return nil
	}
	return &t.Slices[i]
}

// retained is slice for Keep.
func (t *Service) retained(name string) *Retained {
	i, found := slices.BinarySearchFunc(t.Keep, name, func(r Retained, name string) int { return strings.Compare(r.slice.Name, name) })
	if !found {
		return nil
	}
	return &t.Keep[i]
}

// service returns the desired Service object.
func (t *Service) service(namespace string) *corev1.Service {
	cluster := corev1.ServiceInternalTrafficPolicyCluster
	s := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: t.Name,
			Labels: map[string]string{labelMirrored: labelValue, labelPrefix: t.prefix},
			Annotations: map[string]string{
				annotNamespace: t.Origin.Namespace, annotName: t.Origin.Name,
			},
		},
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeClusterIP,
			InternalTrafficPolicy:    &cluster,
			SessionAffinity:          corev1.ServiceAffinityNone,
			PublishNotReadyAddresses: t.Spec.PublishNotReady,
		},
	}
	if t.Origin.Global() {
		s.Labels[labelGlobal] = labelValue
		s.Annotations[annotClusters] = strings.Join(t.Clusters, ",")
		if len(t.Accepted) > 0 {
			s.Annotations[annotAccepted] = strings.Join(t.Accepted, ",")
		}
	} else {
		s.Annotations[annotCluster] = t.Origin.Cluster
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
	return s
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

// object returns the desired EndpointSlice of a service.
func (w *Slice) object(namespace, service string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: w.Name,
			Labels: map[string]string{
				discoveryv1.LabelManagedBy:   managedBy,
				discoveryv1.LabelServiceName: service,
			},
			Annotations: map[string]string{
				annotCluster: w.Cluster, annotNamespace: w.origin.Service.Namespace, annotName: w.origin.Name,
			},
		},
		AddressType: w.origin.Family,
		Ports:       w.origin.Ports,
	}
	if w.headless {
		// kube-proxy ignores slices with this label.
		s.Labels[corev1.IsHeadlessService] = ""
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
func (h summer) service(s *corev1.Service) sum { return h.of(ownService(s)) }

func ownService(s *corev1.Service) ownFields {
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
	return ownFields{spec, only(s.Labels, serviceLabels...), only(s.Annotations, serviceAnnotations...)}
}

// slice hashes an EndpointSlice: its ports and the rest, so that withPorts needs only the
// former.
func (h summer) slice(s *discoveryv1.EndpointSlice) sum {
	return h.sliceOf(s, ownSlice)
}

func (h summer) sliceOf(s *discoveryv1.EndpointSlice, own func(*discoveryv1.EndpointSlice) ownFields) sum {
	rest := *s
	rest.Ports = nil
	return max(1, h.of(own(&rest))^h.ports(s.Ports))
}

func (h summer) ports(ports []discoveryv1.EndpointPort) sum {
	return h.of(origin.Named(ports))
}

// withPorts returns the sum of a slice with other ports.
func (h summer) withPorts(o *ObservedSlice, ports []discoveryv1.EndpointPort) sum {
	return max(1, o.sum^h.ports(o.Ports)^h.ports(ports))
}

func ownSlice(s *discoveryv1.EndpointSlice) ownFields {
	// Empty and nil lists are equal in the API.
	endpoints, ports := s.Endpoints, s.Ports
	if len(endpoints) == 0 {
		endpoints = nil
	}
	if len(ports) == 0 {
		ports = nil
	}
	return ownFields{
		struct {
			Endpoints   []discoveryv1.Endpoint     `json:"endpoints"`
			Ports       []discoveryv1.EndpointPort `json:"ports"`
			AddressType discoveryv1.AddressType    `json:"addressType"`
		}{endpoints, ports, s.AddressType},
		only(s.Labels, sliceLabels...), only(s.Annotations, sliceAnnotations...),
	}
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

// differing returns the names of the fields in which a response differs from a request, such
// as spec.ports; none if their sums are equal.
func differing(want, got sum, request, response ownFields) []string {
	if want == got {
		return nil
	}
	var differs []string
	a, b := flat(request), flat(response)
	for field := range b {
		if _, known := a[field]; !known {
			a[field] = nil
		}
	}
	for _, field := range slices.Sorted(maps.Keys(a)) {
		if !bytes.Equal(a[field], b[field]) {
			differs = append(differs, field)
		}
	}
	return differs
}

// flat returns the fields of an object as JSON, by name.
func flat(own ownFields) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	// Neither fails for these types.
	add := func(name string, value any) {
		fields := map[string]json.RawMessage{}
		if text, err := json.Marshal(value); err == nil && json.Unmarshal(text, &fields) == nil {
			for field, of := range fields {
				all[name+"."+field] = of
			}
		}
	}
	add("spec", own.Spec)
	add("metadata.labels", own.Labels)
	add("metadata.annotations", own.Annotations)
	return all
}

// exposed returns what a desired slice exposes.
func (w *Slice) exposed() exposed.Set {
	e := exposed.Set{Ports: w.origin.Ports}
	for i := range w.Endpoints {
		e.Add(w.Endpoints[i].Address, w.Endpoints[i].Ready != origin.False)
	}
	return e
}
