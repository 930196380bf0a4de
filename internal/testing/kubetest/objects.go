package kubetest

import (
	"maps"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Service returns a Service with one port, as a person writes it.
func Service(name string, labels map[string]string, adjust ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: maps.Clone(labels)},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, f := range adjust {
		f(s)
	}
	return s
}

// EndpointSlice returns a slice of a Service as Kubernetes' controller writes it: with the
// Service's labels, and node, zone, pod and hints of each endpoint.
func EndpointSlice(of *corev1.Service, name string, ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: maps.Clone(of.Labels)},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	s.Labels[discoveryv1.LabelServiceName] = of.Name
	s.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	for _, p := range of.Spec.Ports {
		port := p.Port + 8000
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &port, AppProtocol: p.AppProtocol})
	}
	s.Endpoints = Endpoints(ips...)
	if len(ips) > 0 && netip.MustParseAddr(ips[0]).Is6() {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

// Endpoints returns ready endpoints with these addresses.
func Endpoints(addresses ...string) []discoveryv1.Endpoint {
	var all []discoveryv1.Endpoint
	yes, no, node, zone := true, false, "node-1", "zone-1"
	for _, a := range addresses {
		all = append(all, discoveryv1.Endpoint{
			Addresses:  []string{a},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &zone,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "pod-" + strings.ReplaceAll(a, ":", "-")},
			Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	return all
}
