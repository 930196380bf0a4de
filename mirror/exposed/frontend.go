package exposed

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// Frontend is what kube-proxy balances by itself: one port of a service, at its addresses of
// one family. A cluster may be the last one with endpoints for a frontend, and one of several
// for another.
type Frontend struct {
	Family discoveryv1.AddressType
	Port   PortName
}

// PortName identifies a port of a service. Clusters may give one name to ports of different
// protocols; in a service it is that of one port.
type PortName struct {
	Name     string
	Protocol corev1.Protocol
}

// FrontendOf returns the frontend of a port of a slice.
func FrontendOf(family discoveryv1.AddressType, p *discoveryv1.EndpointPort) Frontend {
	return Frontend{family, PortName{*p.Name, *p.Protocol}}
}

// AllPorts returns the frontend of all ports, which names of headless services resolve for.
func AllPorts(family discoveryv1.AddressType) Frontend {
	return Frontend{Family: family}
}

// String returns the frontend as in IPv6 or IPv6 http.
func (f Frontend) String() string {
	if f.Port.Name == "" {
		return string(f.Family)
	}
	return string(f.Family) + " " + f.Port.Name
}
