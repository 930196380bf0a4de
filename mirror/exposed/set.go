// Package exposed has what clients use of services: addresses, ports, and the frontends that
// kube-proxy balances. All is pure.
package exposed

import (
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Set are addresses and ports that clients use.
type Set struct {
	Ports     []discoveryv1.EndpointPort // with names and protocols
	Addresses []netip.Addr               // the ready ones first
	Ready     int                        // their number
}

// Parse adds an address, if it is one.
func (e *Set) Parse(text string, ready bool) {
	if address, err := netip.ParseAddr(text); err == nil {
		e.Add(address, ready)
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

// Loses reports whether something must go for b: an address, a port of one, or that it is ready.
func (e *Set) Loses(b *Set) bool {
	ready := make(map[netip.Addr]bool, len(b.Addresses))
	for i, address := range b.Addresses {
		ready[address] = ready[address] || i < b.Ready
	}
	for i, address := range e.Addresses {
		if is, has := ready[address]; !has || i < e.Ready && !is {
			return true
		}
	}
	return len(e.Addresses) > 0 && lacks(b.Ports, e.Ports)
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
