package origin

import (
	"cmp"
	"hash/fnv"
	"io"
	"net/netip"
	"slices"
	"unique"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
)

// Slice is a trimmed EndpointSlice. It is immutable.
type Slice struct {
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

// Endpoint is one endpoint of a Slice. Its zone and target have no meaning in another
// cluster.
type Endpoint struct {
	Address  netip.Addr // by which it is reached from this cluster
	Hostname string
	// Node is its node; empty: unknown. It is for path reports, and copied within the cluster only:
	// kube-proxy would treat a remote endpoint as local if a local node has the same name.
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

// Pointer returns nil if the condition is unset.
func (c Condition) Pointer() *bool {
	if c == Unset {
		return nil
	}
	value := c == True
	return &value
}

// TrimSlice trims an EndpointSlice of a cluster whose pods are known here by a map: its endpoints
// have the addresses by which they are reached. It returns false if it has no service, a name that
// no API server accepts, or was deleted: Kubernetes' controller replaces a slice that a finalizer
// holds, and no longer updates it.
func TrimSlice(s *discoveryv1.EndpointSlice, pods config.SubnetMap) (*Slice, bool) {
	service := s.Labels[discoveryv1.LabelServiceName]
	if s.DeletionTimestamp != nil || !isLabel(service) || !isLabel(s.Namespace) || len(validation.IsDNS1123Subdomain(s.Name)) > 0 {
		return nil, false
	}
	trimmed := &Slice{Name: s.Name, Service: Key{s.Namespace, service}, Family: s.AddressType}
	trimmed.Ports = Named(s.Ports)
	trimmed.Endpoints = make([]Endpoint, 0, len(s.Endpoints)) // growing takes up to twice the memory
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		// Further addresses have no meaning (API reference of Endpoint).
		address, err := netip.ParseAddr(e.Addresses[0])
		if err != nil {
			trimmed.Unreadable = append(trimmed.Unreadable, printable.Text(e.Addresses[0], MaxShown))
			continue
		}
		endpoint := Endpoint{
			Address: pods.Virtual(address), Target: TargetOf(e.TargetRef),
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
	slices.SortFunc(trimmed.Endpoints, CompareEndpoints)
	trimmed.Endpoints = slices.Compact(trimmed.Endpoints)
	if trimmed.Reject = trimmed.fault(); trimmed.Reject != "" {
		trimmed.Ports, trimmed.Endpoints, trimmed.Unreadable = nil, nil, nil
	}
	return trimmed, true
}

func isLabel(name string) bool { return len(validation.IsDNS1123Label(name)) == 0 }

// Named returns ports with the defaults of names and protocols.
func Named(ports []discoveryv1.EndpointPort) (all []discoveryv1.EndpointPort) {
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

// CompareEndpoints orders by address first.
func CompareEndpoints(a, b Endpoint) int {
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

// Equal reports whether two slices are equal.
func (s *Slice) Equal(o *Slice) bool {
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

// Rejection returns why an address of a cluster with these pod subnets, which may be empty,
// is rejected; empty: it is accepted.
func Rejection(a netip.Addr, family discoveryv1.AddressType, subnets []netip.Prefix) string {
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

// TargetOf returns a hash of what an endpoint's address belongs to; zero: unknown.
func TargetOf(r *corev1.ObjectReference) uint64 {
	if r == nil || r.Name == "" && r.UID == "" {
		return 0
	}
	h := fnv.New64a()
	for _, text := range []string{r.Kind, r.Namespace, r.Name, string(r.UID)} {
		_, _ = io.WriteString(h, text+"\x00") // it never fails
	}
	return max(1, h.Sum64())
}
