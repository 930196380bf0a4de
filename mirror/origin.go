package mirror

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"
	"time"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
)

// Origin is a trimmed Service of a cluster. It is immutable.
type Origin struct {
	Key
	Created time.Time
	// LocalFirst is whether a global service prefers local endpoints.
	LocalFirst bool
	// LocalMinimum is the minimum number of ready local endpoints; 0: as configured.
	LocalMinimum int
	Spec         Spec
	// InternalTrafficPolicy and TrafficDistribution are empty if unset. Only imports have them.
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy
	TrafficDistribution   string
	// Export is that of an exported service.
	Export *mcs.Export
	// Reject is the reason for which the service can't be copied; empty: it can.
	Reject string
}

// Spec is the part of a spec that is copied from the origin.
type Spec struct {
	Traits
	Ports []Port
}

// Traits are the fields of a Spec except ports.
type Traits struct {
	Headless        bool
	PublishNotReady bool
	// AffinityTimeout is in seconds; 0: sessions have no affinity.
	AffinityTimeout int32
	IPv4, IPv6      bool
}

// Port is one port of a Spec. Node ports aren't copied.
type Port struct {
	Name        string
	Protocol    corev1.Protocol
	Port        int32
	Target      intstr.IntOrString
	AppProtocol string
}

// OriginSlice is a trimmed EndpointSlice. It is immutable.
type OriginSlice struct {
	Name    string
	Service Key
	Family  discoveryv1.AddressType
	Ports   []discoveryv1.EndpointPort
	// Endpoints are sorted by address.
	Endpoints []Endpoint
	// Unreadable are invalid addresses.
	Unreadable []string
	// Reject is the reason for which the slice can't be copied; empty: it can.
	Reject string
}

// Endpoint is one endpoint of an OriginSlice. Its zone and target have no meaning in another
// cluster.
type Endpoint struct {
	Address  netip.Addr
	Hostname string
	// Node is its node; empty: unknown. It is for path reports and isn't copied: kube-proxy
	// would treat the endpoint as local if a local node has the same name.
	Node string
	// Target is a hash of what the address belongs to, such as a pod; zero: unknown. It is for
	// counting endpoints and isn't copied.
	Target                      uint64
	Ready, Serving, Terminating Condition
}

// Condition is an optional boolean.
type Condition int8

// Values of a Condition.
const (
	Unset Condition = iota
	False
	True
)

func condition(b *bool) Condition {
	switch {
	case b == nil:
		return Unset
	case *b:
		return True
	default:
		return False
	}
}

func (c Condition) pointer() *bool {
	if c == Unset {
		return nil
	}
	value := c == True
	return &value
}

// maxShown is the maximum length of an invalid value in messages, in characters.
const maxShown = 80

// trimOrigin trims a Service. The selector selects those that prefer local endpoints; nil
// selects none.
func trimOrigin(s *corev1.Service, localFirst labels.Selector) *Origin {
	trimmed := &Origin{
		Key:        Key{s.Namespace, s.Name},
		Created:    s.CreationTimestamp.UTC(),
		LocalFirst: localFirst != nil && localFirst.Matches(labels.Set(s.Labels)),
		Spec:       trimSpec(&s.Spec),
	}
	if p := s.Spec.InternalTrafficPolicy; p != nil && (*p == corev1.ServiceInternalTrafficPolicyCluster || *p == corev1.ServiceInternalTrafficPolicyLocal) {
		trimmed.InternalTrafficPolicy = *p
	}
	if p := s.Spec.TrafficDistribution; p != nil {
		switch *p {
		case corev1.ServiceTrafficDistributionPreferClose, corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode:
			trimmed.TrafficDistribution = *p
		}
	}
	if n, err := strconv.Atoi(s.Labels[labelLocalMinimum]); err == nil && n > 0 {
		trimmed.LocalMinimum = n
	}
	trimmed.Reject = trimmed.Spec.fault()
	switch {
	case len(validation.IsDNS1123Label(s.Name)) > 0 || len(validation.IsDNS1123Label(s.Namespace)) > 0:
		trimmed.Reject = "invalid name or namespace"
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		trimmed.Reject = "type ExternalName: it has a name elsewhere, and no endpoints"
	case !trimmed.Spec.Headless && len(s.Spec.Ports) == 0:
		trimmed.Reject = "no ports"
	}
	if trimmed.Reject != "" {
		trimmed.Spec = Spec{} // it may be of any size
	}
	return trimmed
}

func trimSpec(s *corev1.ServiceSpec) Spec {
	spec := Spec{Traits: Traits{
		Headless:        s.ClusterIP == corev1.ClusterIPNone,
		PublishNotReady: s.PublishNotReadyAddresses,
		IPv4:            slices.Contains(s.IPFamilies, corev1.IPv4Protocol),
		IPv6:            slices.Contains(s.IPFamilies, corev1.IPv6Protocol),
	}}
	if !spec.IPv4 && !spec.IPv6 {
		spec.IPv4, spec.IPv6 = true, true // let this cluster decide
	}
	if s.SessionAffinity == corev1.ServiceAffinityClientIP {
		spec.AffinityTimeout = corev1.DefaultClientIPServiceAffinitySeconds
		if c := s.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
			spec.AffinityTimeout = *c.ClientIP.TimeoutSeconds
		}
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		port := Port{Name: p.Name, Protocol: cmp.Or(p.Protocol, corev1.ProtocolTCP), Port: p.Port, Target: p.TargetPort}
		if port.Target == (intstr.IntOrString{}) {
			port.Target = intstr.FromInt32(p.Port)
		}
		if p.AppProtocol != nil {
			port.AppProtocol = *p.AppProtocol
		}
		spec.Ports = append(spec.Ports, port)
	}
	return spec
}

// trimSlice trims an EndpointSlice. It returns false if it has no service.
func trimSlice(s *discoveryv1.EndpointSlice) (*OriginSlice, bool) {
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" {
		return nil, false
	}
	trimmed := &OriginSlice{Name: s.Name, Service: Key{s.Namespace, service}, Family: s.AddressType}
	trimmed.Ports = named(s.Ports)
	trimmed.Endpoints = make([]Endpoint, 0, len(s.Endpoints)) // growing takes up to twice the memory
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		// Further addresses have no meaning (API reference of Endpoint).
		address, err := netip.ParseAddr(e.Addresses[0])
		if err != nil {
			trimmed.Unreadable = append(trimmed.Unreadable, printable.Text(e.Addresses[0], maxShown))
			continue
		}
		endpoint := Endpoint{
			Address: address, Target: targetOf(e.TargetRef),
			Ready: condition(e.Conditions.Ready), Serving: condition(e.Conditions.Serving),
			Terminating: condition(e.Conditions.Terminating),
		}
		if e.Hostname != nil && len(validation.IsDNS1123Label(*e.Hostname)) == 0 {
			endpoint.Hostname = *e.Hostname
		}
		if e.NodeName != nil && len(*e.NodeName) <= validation.DNS1123SubdomainMaxLength {
			endpoint.Node = unique.Make(*e.NodeName).Value() // shared by many endpoints
		}
		trimmed.Endpoints = append(trimmed.Endpoints, endpoint)
	}
	slices.SortFunc(trimmed.Endpoints, compareEndpoints)
	trimmed.Endpoints = slices.Compact(trimmed.Endpoints)
	if trimmed.Reject = trimmed.fault(); trimmed.Reject != "" {
		trimmed.Ports, trimmed.Endpoints, trimmed.Unreadable = nil, nil, nil
	}
	return trimmed, true
}

// named returns ports with the defaults of names and protocols.
func named(ports []discoveryv1.EndpointPort) (all []discoveryv1.EndpointPort) {
	for _, p := range ports {
		name, protocol := "", corev1.ProtocolTCP
		if p.Name != nil {
			name = *p.Name
		}
		if p.Protocol != nil {
			protocol = *p.Protocol
		}
		all = append(all, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: p.Port, AppProtocol: p.AppProtocol})
	}
	return all
}

func compareEndpoints(a, b Endpoint) int {
	return cmp.Or(
		a.Address.Compare(b.Address),
		cmp.Compare(a.Hostname, b.Hostname),
		cmp.Compare(a.Terminating, b.Terminating),
		cmp.Compare(a.Ready, b.Ready),
		cmp.Compare(a.Serving, b.Serving),
		cmp.Compare(a.Node, b.Node),
		cmp.Compare(a.Target, b.Target),
	)
}

// Equal reports whether two origins are equal.
func (s *Origin) Equal(o *Origin) bool {
	return s.Key == o.Key && s.Created.Equal(o.Created) && s.LocalFirst == o.LocalFirst &&
		s.LocalMinimum == o.LocalMinimum && s.Reject == o.Reject && s.Spec.Equal(&o.Spec) &&
		s.InternalTrafficPolicy == o.InternalTrafficPolicy && s.TrafficDistribution == o.TrafficDistribution &&
		(s.Export == o.Export || s.Export != nil && o.Export != nil && s.Export.Equal(o.Export))
}

// Equal reports whether two specs are equal.
func (s *Spec) Equal(o *Spec) bool {
	return s.Traits == o.Traits && slices.Equal(s.Ports, o.Ports)
}

// Equal reports whether two slices are equal.
func (s *OriginSlice) Equal(o *OriginSlice) bool {
	return s.Name == o.Name && s.Service == o.Service && s.Family == o.Family && s.Reject == o.Reject &&
		slices.EqualFunc(s.Ports, o.Ports, equalPorts) &&
		slices.Equal(s.Endpoints, o.Endpoints) && slices.Equal(s.Unreadable, o.Unreadable)
}

func equalPorts(a, b discoveryv1.EndpointPort) bool {
	return *a.Name == *b.Name && *a.Protocol == *b.Protocol &&
		equalPointers(a.Port, b.Port) && equalPointers(a.AppProtocol, b.AppProtocol)
}

func equalPointers[T comparable](a, b *T) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// rejection returns why an address of a cluster with these pod subnets, which may be empty,
// is rejected; empty: it is accepted.
func rejection(a netip.Addr, family discoveryv1.AddressType, subnets []netip.Prefix) string {
	switch {
	case a.Zone() != "" || a.Is4In6() || a.Is4() != (family == discoveryv1.AddressTypeIPv4):
		return "not an address of its slice's family"
	case a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast():
		return "not the address of a pod"
	case len(subnets) > 0 && !slices.ContainsFunc(subnets, func(p netip.Prefix) bool { return p.Contains(a) }):
		return "outside of the pod subnets"
	}
	return ""
}
