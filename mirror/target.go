package mirror

import (
	"encoding/json"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Marks of what is ours. Labels and annotations of Services are those of the
// original tool, so that each takes over what the other left.
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

// remoteZone is a zone that no node is in. kube-proxy honours the hints of a
// service only where each ready endpoint has one, and one of them is for the
// zone of its node.
const remoteZone = "remote.mirror.semaphore.uw.io"

// maxZones is how many zones the hints of one endpoint may name.
const maxZones = 8

// target is what one local service must be. It is not changed once made.
type target struct {
	name       string
	id         ID
	instead    *ID    // who has the name that it would have; nil: it has it
	prefix     string // of the remote; "gl" for a global service
	spec       Spec
	clusters   []string // of a global service, sorted
	accepted   []string // those of them that are remote, the first accepted first
	localFirst bool
	slices     []wantSlice
	// keeps are the clusters whose slices stay as they are: they have not
	// been heard of since start.
	keeps     []string
	conflicts []Conflict
	tallies   map[string]tally // by cluster
	// outdated says that endpoints of clusters out of contact are left out.
	outdated bool
}

// tally counts the endpoints of a cluster that a target takes, and those that
// it doesn't, with an example.
type tally struct {
	taken, refused int
	example        string
}

// wantSlice is what one local EndpointSlice must be.
type wantSlice struct {
	name    string
	cluster string
	source  *Slice
	refuse  bool // some endpoints are left out
	subnets []netip.Prefix
	zones   []string // hints; nil: none
}

// service returns the object that a target must be.
func (t *target) service(namespace string) *corev1.Service {
	s := &corev1.Service{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: t.name,
			Labels: map[string]string{labelMirrored: labelValue, labelPrefix: t.prefix},
			Annotations: map[string]string{
				annotNamespace: t.id.Namespace, annotName: t.id.Name,
			},
		},
		Spec: corev1.ServiceSpec{
			Type:                     corev1.ServiceTypeClusterIP,
			SessionAffinity:          corev1.ServiceAffinityNone,
			PublishNotReadyAddresses: t.spec.PublishNotReady,
		},
	}
	if t.id.Global() {
		s.Labels[labelGlobal] = labelValue
		s.Annotations[annotClusters] = strings.Join(t.clusters, ",")
		if len(t.accepted) > 0 {
			s.Annotations[annotAccepted] = strings.Join(t.accepted, ",")
		}
	} else {
		s.Annotations[annotCluster] = t.id.Cluster
	}
	if t.spec.Headless {
		s.Spec.ClusterIP = corev1.ClusterIPNone
	}
	if t.spec.AffinityTimeout > 0 {
		timeout := t.spec.AffinityTimeout
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
	if t.localFirst {
		distribution := corev1.ServiceTrafficDistributionPreferClose
		s.Spec.TrafficDistribution = &distribution
	}
	s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = families(t.spec.Traits)
	for _, p := range t.spec.Ports {
		port := corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port, TargetPort: p.Target}
		if p.AppProtocol != "" {
			port.AppProtocol = &p.AppProtocol
		}
		s.Spec.Ports = append(s.Spec.Ports, port)
	}
	return s
}

// families asks for the families of the origin. With both, this cluster
// decides on the order, and a cluster that has only one gives that.
func families(t Traits) (*corev1.IPFamilyPolicy, []corev1.IPFamily) {
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

// object returns the EndpointSlice that w says, for a target.
func (w *wantSlice) object(namespace string, t *target) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: w.name,
			Labels: map[string]string{
				discoveryv1.LabelManagedBy:   managedBy,
				discoveryv1.LabelServiceName: t.name,
			},
			Annotations: map[string]string{
				annotCluster: w.cluster, annotNamespace: w.source.Service.Namespace, annotName: w.source.Name,
			},
		},
		AddressType: w.source.Family,
		Ports:       w.source.Ports,
	}
	if t.spec.Headless {
		// kube-proxy needs nothing of it.
		s.Labels[corev1.IsHeadlessService] = ""
	}
	for i := range w.source.Endpoints {
		e := &w.source.Endpoints[i]
		if w.refuse && refusal(e.Address, w.source.Family, w.subnets) != "" {
			continue
		}
		endpoint := discoveryv1.Endpoint{
			Addresses: []string{e.Address.String()},
			Conditions: discoveryv1.EndpointConditions{
				Ready: e.Ready.pointer(), Serving: e.Serving.pointer(), Terminating: e.Terminating.pointer(),
			},
			Hints: hints(w.zones, len(s.Endpoints)),
		}
		if e.Hostname != "" {
			endpoint.Hostname = &e.Hostname
		}
		s.Endpoints = append(s.Endpoints, endpoint)
	}
	return s
}

// hints returns those for the endpoint at an index. Where there are more zones
// than one endpoint may name, the endpoints share them out.
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

// summer compares objects by a hash of all that we care about in them, which
// is a tenth of what the objects are. It is good for one process.
type summer struct{ seed maphash.Seed }

func newSummer() summer { return summer{maphash.MakeSeed()} }

// sum is a hash of an object; zero is no object's.
type sum uint64

func (h summer) of(parts ...any) sum {
	var m maphash.Hash
	m.SetSeed(h.seed)
	// Of these types, none can't be encoded, and a hash can't fail.
	if err := json.NewEncoder(&m).Encode(parts); err != nil {
		return 0
	}
	return max(1, sum(m.Sum64()))
}

// service hashes what a target sets of a Service, and what it leaves unset and
// somebody else may not set either.
func (h summer) service(s *corev1.Service) sum {
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
	return h.of(spec, only(s.Labels, labelMirrored, labelGlobal, labelPrefix),
		only(s.Annotations, annotCluster, annotNamespace, annotName, annotClusters, annotAccepted))
}

// slice hashes all of an EndpointSlice but other people's labels and
// annotations.
func (h summer) slice(s *discoveryv1.EndpointSlice) sum {
	// An empty list and none are the same to the API.
	endpoints, ports := s.Endpoints, s.Ports
	if len(endpoints) == 0 {
		endpoints = nil
	}
	if len(ports) == 0 {
		ports = nil
	}
	return h.of(endpoints, ports, s.AddressType,
		only(s.Labels, discoveryv1.LabelManagedBy, discoveryv1.LabelServiceName, corev1.IsHeadlessService),
		only(s.Annotations, annotCluster, annotNamespace, annotName))
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

// add adds the copy of a slice.
func (t *target) add(c clusterConfig, sl *Slice, zones []string) {
	if t.tallies == nil {
		t.tallies = map[string]tally{}
	}
	sum := t.tallies[c.name]
	defer func() { t.tallies[c.name] = sum }()
	refuse := func(count int, example string) {
		sum.refused += count
		if sum.example == "" || example < sum.example {
			sum.example = example
		}
	}
	if sl.Family != discoveryv1.AddressTypeIPv4 && sl.Family != discoveryv1.AddressTypeIPv6 {
		refuse(len(sl.Endpoints)+len(sl.Unreadable), "slice "+sl.Name+" has addresses of type "+string(sl.Family))
		return
	}
	w := wantSlice{name: sliceName(t.name, c.name, sl), cluster: c.name, source: sl, subnets: c.subnets, zones: zones}
	for _, text := range sl.Unreadable {
		refuse(1, text+": not an address")
	}
	for i := range sl.Endpoints {
		if why := refusal(sl.Endpoints[i].Address, sl.Family, c.subnets); why != "" {
			refuse(1, sl.Endpoints[i].Address.String()+": "+why)
			w.refuse = true
			continue
		}
		sum.taken++
	}
	t.slices = append(t.slices, w)
}

// sort puts the slices into an order that doesn't depend on that of a map.
func (t *target) sort() {
	slices.SortFunc(t.slices, func(a, b wantSlice) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
}
