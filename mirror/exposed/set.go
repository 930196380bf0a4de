// Package exposed has what clients use of services: addresses, ports, and the frontends that
// kube-proxy balances. All is pure.
package exposed

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// Set are addresses and ports that clients use.
type Set struct {
	Ports     []discoveryv1.EndpointPort // with names and protocols
	Addresses []netip.Addr               // the ready ones first
	Ready     int                        // their number
	hostnames map[netip.Addr]string
}

// Parse adds an address, if it is one.
func (e *Set) Parse(text string, ready bool, hostname *string) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return
	}
	e.Add(address, ready)
	if hostname != nil {
		if e.hostnames == nil {
			e.hostnames = map[netip.Addr]string{}
		}
		e.hostnames[address] = *hostname
	}
}

// Add adds an address.
func (e *Set) Add(address netip.Addr, ready bool) {
	e.Addresses = append(e.Addresses, address)
	if last := len(e.Addresses) - 1; ready {
		e.Addresses[e.Ready], e.Addresses[last] = address, e.Addresses[e.Ready]
		e.Ready++
	}
}

// Endpoints returns the addresses as endpoints.
func (e *Set) Endpoints() []origin.Endpoint {
	all := make([]origin.Endpoint, len(e.Addresses))
	for i, address := range e.Addresses {
		all[i] = origin.Endpoint{Address: address, Hostname: e.hostnames[address], Ready: origin.True}
		if i >= e.Ready {
			all[i].Ready = origin.False
		}
	}
	return all
}

// Loses reports whether something in a must go for b: an address, a port of one, or that it is
// ready.
func Loses(a, b []Set) bool {
	type place struct {
		in    int // b
		ready bool
	}
	places := map[netip.Addr][]place{}
	for i := range b {
		for j, address := range b[i].Addresses {
			places[address] = append(places[address], place{i, j < b[i].Ready})
		}
	}
	for i := range a {
		covers := make([]bool, len(b)) // whether those have all ports
		for j := range b {
			covers[j] = !lacks(b[j].Ports, a[i].Ports)
		}
		for j, address := range a[i].Addresses {
			if !slices.ContainsFunc(places[address], func(p place) bool { return covers[p.in] && (p.ready || j >= a[i].Ready) }) {
				return true
			}
		}
	}
	return false
}

// lacks reports whether one of the ports isn't among have.
func lacks(have, ports []discoveryv1.EndpointPort) bool {
	type port struct {
		PortName
		number int32
	}
	id := func(p *discoveryv1.EndpointPort) port {
		id := port{PortName{*p.Name, *p.Protocol}, 0}
		if p.Port != nil {
			id.number = *p.Port
		}
		return id
	}
	all := map[port]bool{}
	for i := range have {
		all[id(&have[i])] = true
	}
	return slices.ContainsFunc(ports, func(p discoveryv1.EndpointPort) bool { return !all[id(&p)] })
}

// Subsets returns what an Endpoints object exposes.
func Subsets(e *corev1.Endpoints) []Set { //nolint:staticcheck // See mirror.observedEndpoints.
	all := make([]Set, len(e.Subsets))
	for i := range e.Subsets {
		s := &e.Subsets[i]
		for _, p := range s.Ports {
			all[i].Ports = append(all[i].Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
		}
		for j := range s.Addresses {
			all[i].Parse(s.Addresses[j].IP, true, nil)
		}
		for j := range s.NotReadyAddresses {
			all[i].Parse(s.NotReadyAddresses[j].IP, false, nil)
		}
	}
	return all
}
