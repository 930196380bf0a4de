package mirror

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// exposed are addresses and ports that clients use.
type exposed struct {
	ports     []discoveryv1.EndpointPort // with names and protocols
	addresses []netip.Addr               // the ready ones first
	ready     int                        // their number
	hostnames map[netip.Addr]string
}

// parse adds an address, if it is one.
func (e *exposed) parse(text string, ready bool, hostname *string) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return
	}
	e.add(address, ready)
	if hostname != nil {
		if e.hostnames == nil {
			e.hostnames = map[netip.Addr]string{}
		}
		e.hostnames[address] = *hostname
	}
}

func (e *exposed) add(address netip.Addr, ready bool) {
	e.addresses = append(e.addresses, address)
	if last := len(e.addresses) - 1; ready {
		e.addresses[e.ready], e.addresses[last] = address, e.addresses[e.ready]
		e.ready++
	}
}

// endpoints returns the addresses as endpoints.
func (e *exposed) endpoints() []origin.Endpoint {
	all := make([]origin.Endpoint, len(e.addresses))
	for i, address := range e.addresses {
		all[i] = origin.Endpoint{Address: address, Hostname: e.hostnames[address], Ready: origin.True}
		if i >= e.ready {
			all[i].Ready = origin.False
		}
	}
	return all
}

// loses reports whether something in a must go for b: an address, a port of one, or that it is
// ready.
func loses(a, b []exposed) bool {
	type place struct {
		in    int // b
		ready bool
	}
	places := map[netip.Addr][]place{}
	for i := range b {
		for j, address := range b[i].addresses {
			places[address] = append(places[address], place{i, j < b[i].ready})
		}
	}
	for i := range a {
		covers := make([]bool, len(b)) // whether those have all ports
		for j := range b {
			covers[j] = !lacks(b[j].ports, a[i].ports)
		}
		for j, address := range a[i].addresses {
			if !slices.ContainsFunc(places[address], func(p place) bool { return covers[p.in] && (p.ready || j >= a[i].ready) }) {
				return true
			}
		}
	}
	return false
}

// lacks reports whether one of the ports isn't among have.
func lacks(have, ports []discoveryv1.EndpointPort) bool {
	type port struct {
		portName
		number int32
	}
	id := func(p *discoveryv1.EndpointPort) port {
		id := port{portName{*p.Name, *p.Protocol}, 0}
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

// subsets returns what an Endpoints object exposes.
func subsets(e *corev1.Endpoints) []exposed { //nolint:staticcheck // See observedEndpoints.
	all := make([]exposed, len(e.Subsets))
	for i := range e.Subsets {
		s := &e.Subsets[i]
		for _, p := range s.Ports {
			all[i].ports = append(all[i].ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &p.Port})
		}
		for j := range s.Addresses {
			all[i].parse(s.Addresses[j].IP, true, nil)
		}
		for j := range s.NotReadyAddresses {
			all[i].parse(s.NotReadyAddresses[j].IP, false, nil)
		}
	}
	return all
}

// exposed returns what a desired slice exposes.
func (w *Slice) exposed() exposed {
	e := exposed{ports: w.origin.Ports}
	for i := range w.Endpoints {
		e.add(w.Endpoints[i].Address, w.Endpoints[i].Ready != origin.False)
	}
	return e
}
