package origin

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
)

// LabelLocalMinimum of a local service is the minimum number of its ready endpoints for
// a global service to prefer them.
const LabelLocalMinimum = mcs.Prefix + "global-service-local-minimum"

// Service is a trimmed Service of a cluster. It is immutable.
type Service struct {
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

// What a copy of a Service has, and what clusters offer for an import.
type (
	// Spec is mcs.Spec.
	Spec = mcs.Spec
	// Traits is mcs.Traits.
	Traits = mcs.Traits
	// Port is mcs.Port.
	Port = mcs.Port
)

// maxDistribution is the maximum length of a trafficDistribution. The longest one of Kubernetes
// 1.37 has 14 characters.
const maxDistribution = 63

// MaxShown is the maximum length of an invalid value in messages, in characters.
const MaxShown = 80

// TrimService trims a Service. The selector selects those that prefer local endpoints; nil
// selects none.
func TrimService(s *corev1.Service, localFirst labels.Selector) *Service {
	trimmed := &Service{
		Key:        Key{s.Namespace, s.Name},
		Created:    s.CreationTimestamp.UTC(),
		LocalFirst: localFirst != nil && localFirst.Matches(labels.Set(s.Labels)),
		Spec:       TrimSpec(&s.Spec),
	}
	if p := s.Spec.InternalTrafficPolicy; p != nil && (*p == corev1.ServiceInternalTrafficPolicyCluster || *p == corev1.ServiceInternalTrafficPolicyLocal) {
		trimmed.InternalTrafficPolicy = *p
	}
	if p := s.Spec.TrafficDistribution; p != nil {
		// Whether this cluster knows the value shows when it is written.
		if len(*p) <= maxDistribution && len(validation.IsQualifiedName(*p)) == 0 {
			trimmed.TrafficDistribution = *p
		}
	}
	if n, err := strconv.Atoi(s.Labels[LabelLocalMinimum]); err == nil && n > 0 {
		trimmed.LocalMinimum = n
	}
	trimmed.Reject = specFault(&trimmed.Spec)
	switch {
	case !isLabel(s.Name) || !isLabel(s.Namespace):
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

// TrimSpec returns what a copy has of a spec.
func TrimSpec(s *corev1.ServiceSpec) Spec {
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

// Equal reports whether two services are equal.
func (s *Service) Equal(o *Service) bool {
	return s.Key == o.Key && s.Created.Equal(o.Created) && s.LocalFirst == o.LocalFirst &&
		s.LocalMinimum == o.LocalMinimum && s.Reject == o.Reject && s.Spec.Equal(&o.Spec) &&
		s.InternalTrafficPolicy == o.InternalTrafficPolicy && s.TrafficDistribution == o.TrafficDistribution &&
		(s.Export == o.Export || s.Export != nil && o.Export != nil && s.Export.Equal(o.Export))
}

// Offer returns what a cluster exports, or has of a global service.
func (s *Service) Offer(cluster string) mcs.Offer {
	offer := mcs.Offer{
		Cluster: cluster, Export: s.Export, Spec: s.Spec, LocalFirst: s.LocalFirst,
		InternalTrafficPolicy: s.InternalTrafficPolicy, TrafficDistribution: s.TrafficDistribution,
	}
	if offer.Export == nil { // it is published by a label
		offer.Export = &mcs.Export{Created: s.Created}
	}
	return offer
}
