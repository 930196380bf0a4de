package mcs

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Option is a field of an object that other clusters decide, and without which the rest of the
// object still serves. The local API server may be older than theirs and not know its value, or
// an admission policy may refuse it.
type Option[T any] struct {
	// Name has the desired value, as in "trafficDistribution PreferSameZone".
	Name string
	// Older are what is written instead, the most similar one first. The last one leaves it out.
	Older []Form[T]
}

// Form changes an Option to another value. Text is empty if it leaves it out.
type Form[T any] struct {
	Text string
	set  func(T)
}

// Accepted returns the variant of a refused object with as few options as possible in another
// form than the desired one, and what these are; false: no variant is accepted. try reports
// whether one is. It is called for each form once, at most, and for all of the last ones.
func Accepted[T interface{ DeepCopy() T }](object T, options []Option[T], try func(T) bool) (accepted T, instead []string, ok bool) {
	forms := make([]int, len(options)) // 0: as desired
	variant := func() T {
		o := object.DeepCopy()
		for i, form := range forms {
			if form > 0 {
				options[i].Older[form-1].set(o)
			}
		}
		return o
	}
	for i := range options {
		forms[i] = len(options[i].Older)
	}
	if len(options) == 0 || !try(variant()) {
		return object, nil, false // something else is refused
	}
	for i := range options {
		last := forms[i]
		for forms[i] = 0; forms[i] < last; forms[i]++ {
			desired := !slices.ContainsFunc(forms, func(form int) bool { return form > 0 })
			if !desired && try(variant()) {
				break
			}
		}
		switch form := forms[i]; {
		case form == 0:
		case options[i].Older[form-1].Text == "":
			instead = append(instead, "no "+options[i].Name)
		default:
			instead = append(instead, options[i].Name+" as "+options[i].Older[form-1].Text)
		}
	}
	return variant(), instead, true
}

// without is an option that has no older form.
func without[T any](name string, set func(T)) Option[T] {
	return Option[T]{name, []Form[T]{{"", set}}}
}

// ServiceOptions returns the options of a Service.
func ServiceOptions(s *corev1.Service) (all []Option[*corev1.Service]) {
	if d := s.Spec.TrafficDistribution; d != nil {
		o := without("trafficDistribution "+*d, func(s *corev1.Service) { s.Spec.TrafficDistribution = nil })
		switch near := corev1.ServiceTrafficDistributionPreferClose; *d {
		case corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferSameNode:
			// Since Kubernetes 1.34. It is the older name of the former, and next to the latter.
			o.Older = slices.Insert(o.Older, 0, Form[*corev1.Service]{near, func(s *corev1.Service) { s.Spec.TrafficDistribution = &near }})
		}
		all = append(all, o)
	}
	if cluster := corev1.ServiceInternalTrafficPolicyCluster; s.Spec.InternalTrafficPolicy != nil && *s.Spec.InternalTrafficPolicy != cluster {
		all = append(all, without("internalTrafficPolicy "+string(*s.Spec.InternalTrafficPolicy), func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &cluster }))
	}
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		all = append(all, without(affinityName(s.Spec.SessionAffinityConfig), func(s *corev1.Service) {
			s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
		}))
	}
	if slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.AppProtocol != nil }) {
		all = append(all, without("appProtocol of ports", func(s *corev1.Service) {
			for i := range s.Spec.Ports {
				s.Spec.Ports[i].AppProtocol = nil
			}
		}))
	}
	sctp := func(p corev1.ServicePort) bool { return p.Protocol == corev1.ProtocolSCTP }
	if some := slices.DeleteFunc(slices.Clone(s.Spec.Ports), sctp); 0 < len(some) && len(some) < len(s.Spec.Ports) {
		all = append(all, without("SCTP ports", func(s *corev1.Service) { s.Spec.Ports = slices.DeleteFunc(s.Spec.Ports, sctp) }))
	}
	return all
}

// ImportOptions returns the options of a ServiceImport.
func ImportOptions(i *v1beta1.ServiceImport) (all []Option[*v1beta1.ServiceImport]) {
	if own := ownOf(i.Labels); len(own) < len(i.Labels) {
		all = append(all, without("exported labels", func(i *v1beta1.ServiceImport) { i.Labels = own }))
	}
	if own := ownOf(i.Annotations); len(own) < len(i.Annotations) {
		all = append(all, without("exported annotations", func(i *v1beta1.ServiceImport) { i.Annotations = own }))
	}
	if d := i.Spec.TrafficDistribution; d != nil {
		all = append(all, without("trafficDistribution "+*d, func(i *v1beta1.ServiceImport) { i.Spec.TrafficDistribution = nil }))
	}
	if p := i.Spec.InternalTrafficPolicy; p != nil {
		all = append(all, without("internalTrafficPolicy "+string(*p), func(i *v1beta1.ServiceImport) { i.Spec.InternalTrafficPolicy = nil }))
	}
	if i.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		all = append(all, without(affinityName(i.Spec.SessionAffinityConfig), func(i *v1beta1.ServiceImport) {
			i.Spec.SessionAffinity, i.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
		}))
	}
	if slices.ContainsFunc(i.Spec.Ports, func(p v1beta1.ServicePort) bool { return p.AppProtocol != nil }) {
		all = append(all, without("appProtocol of ports", func(i *v1beta1.ServiceImport) {
			for n := range i.Spec.Ports {
				i.Spec.Ports[n].AppProtocol = nil
			}
		}))
	}
	return all
}

// SliceOptions returns the options of an EndpointSlice.
func SliceOptions(s *discoveryv1.EndpointSlice) (all []Option[*discoveryv1.EndpointSlice]) {
	if slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool { return p.AppProtocol != nil }) {
		all = append(all, without("appProtocol of ports", func(s *discoveryv1.EndpointSlice) {
			for i := range s.Ports {
				s.Ports[i].AppProtocol = nil
			}
		}))
	}
	sctp := func(p discoveryv1.EndpointPort) bool { return p.Protocol != nil && *p.Protocol == corev1.ProtocolSCTP }
	if some := slices.DeleteFunc(slices.Clone(s.Ports), sctp); 0 < len(some) && len(some) < len(s.Ports) {
		all = append(all, without("SCTP ports", func(s *discoveryv1.EndpointSlice) { s.Ports = slices.DeleteFunc(s.Ports, sctp) }))
	}
	add := func(name string, has func(discoveryv1.Endpoint) bool, remove func(*discoveryv1.Endpoint)) {
		if slices.ContainsFunc(s.Endpoints, has) {
			all = append(all, without(name, func(s *discoveryv1.EndpointSlice) {
				for i := range s.Endpoints {
					remove(&s.Endpoints[i])
				}
			}))
		}
	}
	add("hints", func(e discoveryv1.Endpoint) bool { return e.Hints != nil }, func(e *discoveryv1.Endpoint) { e.Hints = nil })
	add("host names", func(e discoveryv1.Endpoint) bool { return e.Hostname != nil }, func(e *discoveryv1.Endpoint) { e.Hostname = nil })
	add("nodes", func(e discoveryv1.Endpoint) bool { return e.NodeName != nil }, func(e *discoveryv1.Endpoint) { e.NodeName = nil })
	return all
}

// ownOf returns labels or annotations of an import without the exported ones.
func ownOf(all map[string]string) map[string]string {
	own := map[string]string{}
	for key, value := range all {
		if !copied(key) {
			own[key] = value
		}
	}
	return own
}

func affinityName(c *corev1.SessionAffinityConfig) string {
	if c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
		return "sessionAffinity"
	}
	return fmt.Sprintf("sessionAffinity of %d s", *c.ClientIP.TimeoutSeconds)
}
