package mirror

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// counting returns the parts whose endpoints are used for one frontend, and the others:
//
//	| part             | used                                               |
//	| ---------------- | -------------------------------------------------- |
//	| drained          | if no other part has a ready endpoint              |
//	| stale            | if neither fresh nor drained parts have one        |
//	| any other        | always                                             |
//
// An outdated or drained service is better than an empty one.
func counting(parts []*part, ready func(p *part) bool) (counting, others []*part) {
	for _, out := range []func(p *part) bool{
		func(p *part) bool { return p.stale || p.drained },
		func(p *part) bool { return p.stale },
	} {
		counting, others = nil, nil
		for _, p := range parts {
			if out(p) {
				others = append(others, p)
			} else {
				counting = append(counting, p)
			}
		}
		if len(others) == 0 || slices.ContainsFunc(counting, ready) {
			return counting, others
		}
	}
	return parts, nil
}

// frontend is what kube-proxy balances by itself: one port of a service, at its addresses of
// one family. A part may be the last one with endpoints for a frontend, and one of several for
// another.
type frontend struct {
	family discoveryv1.AddressType
	port   portName
}

// portName identifies a port of a service. Clusters may give one name to ports of different
// protocols; in a service it is that of one port.
type portName struct {
	name     string
	protocol corev1.Protocol
}

// frontendOf returns the frontend of a port of a slice.
func frontendOf(family discoveryv1.AddressType, p *discoveryv1.EndpointPort) frontend {
	return frontend{family, portName{*p.Name, *p.Protocol}}
}

// allPorts returns the frontend of all ports, which names of headless services resolve for.
func allPorts(family discoveryv1.AddressType) frontend {
	return frontend{family: family}
}

// String returns the frontend as in IPv6 or IPv6 http.
func (f frontend) String() string {
	if f.port.name == "" {
		return string(f.family)
	}
	return string(f.family) + " " + f.port.name
}

// maxNeeded is the maximum number of frontends listed per cluster of a service.
const maxNeeded = 5

// use adds the slices of the parts of a global service. Those of stale and drained parts are
// restricted to the frontends without another ready endpoint.
func (b *builder) use(w *Service, parts []*part) {
	u := newUsage(b.s, w, parts)
	near := map[discoveryv1.AddressType][]string{} // hints of local endpoints
	for _, pt := range parts {
		if !pt.local || !w.LocalFirst {
			continue
		}
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			// With a ready endpoint without hints, kube-proxy uses all of the family.
			if b.s.has(pt, family, cmp.Or(pt.origin.LocalMinimum, b.s.localMinimum)) {
				near[family] = b.s.zones
			}
		}
	}
	for _, pt := range parts {
		if pt.remembered {
			u.remember(pt)
			continue
		}
		for _, sl := range pt.slices {
			if sl = u.restrict(pt, sl); sl == nil {
				continue
			}
			var zones []string
			switch {
			case w.LocalFirst && pt.local:
				zones = near[sl.Family]
			case w.LocalFirst:
				zones = []string{remoteZone}
			}
			b.add(w, &pt.set.cluster, sl, zones)
		}
	}
	u.report()
}

// usage is which parts of a global service are used for which frontends.
type usage struct {
	s     *Snapshot
	w     *Service
	parts []*part
	ports map[portName]bool // of the service
	// ready and used are computed on demand.
	ready map[*part]map[frontend]bool
	used  map[use][]*part
	// needed are frontends that a stale or drained part is used for, omitted such parts that
	// are not used for some.
	needed  map[*part]map[frontend]bool
	omitted map[*part]bool
}

func newUsage(s *Snapshot, w *Service, parts []*part) *usage {
	u := &usage{
		s: s, w: w, parts: parts, ports: map[portName]bool{}, ready: map[*part]map[frontend]bool{}, used: map[use][]*part{},
		needed: map[*part]map[frontend]bool{}, omitted: map[*part]bool{},
	}
	for i := range w.Spec.Ports {
		u.ports[portName{w.Spec.Ports[i].Name, w.Spec.Ports[i].Protocol}] = true
	}
	return u
}

// frontends returns those of the service that a slice has endpoints for.
func (u *usage) frontends(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) []frontend {
	if u.w.Spec.Headless || len(ports) == 0 {
		return []frontend{allPorts(family)}
	}
	var all []frontend
	for i := range ports {
		if f := frontendOf(family, &ports[i]); u.ports[f.port] {
			all = append(all, f)
		}
	}
	return all
}

// use is which parts are used for a frontend: those that are only remembered count as they were
// before, but nothing remembered is removed for their sake.
type use struct {
	frontend
	memory bool
}

// needs reports whether a part is used for a frontend.
func (u *usage) needs(pt *part, f frontend) bool {
	of := use{f, !pt.remembered}
	used, known := u.used[of]
	if !known {
		used, _ = counting(u.parts, func(p *part) bool { return (of.memory || !p.remembered) && u.isReady(p, f) })
		u.used[of] = used
	}
	return slices.Contains(used, pt)
}

// isReady reports whether a part has a ready endpoint for a frontend.
func (u *usage) isReady(pt *part, f frontend) bool {
	ready, known := u.ready[pt]
	if !known {
		ready = map[frontend]bool{}
		u.ready[pt] = ready
		note := func(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) {
			ready[allPorts(family)] = true
			for _, f := range u.frontends(family, ports) {
				ready[f] = true
			}
		}
		for _, sl := range pt.slices {
			if slices.ContainsFunc(sl.Endpoints, u.s.usable(pt, sl.Family)) {
				note(sl.Family, sl.Ports)
			}
		}
		if pt.remembered {
			for _, o := range u.s.local.slicesOf(u.w.Name) {
				if o.cluster == pt.cluster && o.ready > 0 {
					note(o.family, o.ports)
				}
			}
		}
	}
	return ready[f]
}

// restrict returns a slice of a part with the ports that the part is used for; nil: none.
func (u *usage) restrict(pt *part, sl *origin.Slice) *origin.Slice {
	if !pt.stale && !pt.drained {
		return sl
	}
	all, needed := u.frontends(sl.Family, sl.Ports), map[frontend]bool{}
	for _, f := range all {
		if u.note(pt, f) {
			needed[f] = true
		}
	}
	switch {
	case len(needed) == 0:
		return nil
	case len(needed) == len(all):
		return sl
	}
	restricted := *sl
	restricted.Ports = slices.DeleteFunc(slices.Clone(sl.Ports), func(p discoveryv1.EndpointPort) bool {
		return !needed[frontendOf(sl.Family, &p)]
	})
	return &restricted
}

// remember retains the slices of a part that is only remembered, for the frontends that it is
// used for.
func (u *usage) remember(pt *part) {
	var keeps map[frontend]bool
	if pt.stale || pt.drained {
		keeps = map[frontend]bool{}
		for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
			keeps[allPorts(family)] = u.note(pt, allPorts(family))
			if u.w.Spec.Headless {
				continue
			}
			for port := range u.ports {
				keeps[frontend{family, port}] = u.note(pt, frontend{family, port})
			}
		}
	}
	if u.w.keeps == nil {
		u.w.keeps = map[string]map[frontend]bool{}
	}
	u.w.keeps[pt.cluster] = keeps
}

// retain returns what must stay of a slice that isn't desired, because the state of its cluster
// is unknown; false: nothing.
func (t *Service) retain(o *ObservedSlice, sums summer) (Retained, bool) {
	r := Retained{slice: o, Ports: o.ports, sum: o.sum}
	used := map[frontend]bool{}
	for cluster, keeps := range t.keeps {
		switch {
		case cluster != o.cluster && o.cluster != "":
		case keeps == nil:
			return r, true
		default:
			for f, is := range keeps {
				used[f] = used[f] || is
			}
		}
	}
	if t.Spec.Headless || len(o.ports) == 0 {
		return r, used[allPorts(o.family)]
	}
	some, all := false, true
	for i := range o.ports {
		is, known := used[frontendOf(o.family, &o.ports[i])]
		some, all = some || is, all && (is || !known)
	}
	if some && !all {
		r.Ports = slices.DeleteFunc(slices.Clone(o.ports), func(p discoveryv1.EndpointPort) bool {
			return !used[frontendOf(o.family, &p)]
		})
		r.sum = sums.withPorts(o, r.Ports)
	}
	return r, some
}

// note records whether a stale or drained part is used for a frontend, and returns it.
func (u *usage) note(pt *part, f frontend) bool {
	if !u.needs(pt, f) {
		u.omitted[pt] = true
		return false
	}
	if u.needed[pt] == nil {
		u.needed[pt] = map[frontend]bool{}
	}
	u.needed[pt][f] = true
	return true
}

// report fills in what the service has of stale and drained parts.
func (u *usage) report() {
	w := u.w
	for pt := range u.omitted {
		w.Outdated = w.Outdated || pt.stale
		if pt.drained {
			w.Drained = append(w.Drained, pt.cluster)
		}
	}
	slices.Sort(w.Drained)
	for pt, frontends := range u.needed {
		if pt.remembered {
			continue // it isn't known whether it has the family at all
		}
		var all []string
		for f := range frontends {
			all = append(all, f.String())
		}
		slices.Sort(all)
		if w.Needed == nil {
			w.Needed = map[string][]string{}
		}
		w.Needed[pt.cluster] = all[:min(len(all), maxNeeded)]
	}
}

// usable returns whether an endpoint of a part is ready and used.
func (s *Snapshot) usable(pt *part, family discoveryv1.AddressType) func(origin.Endpoint) bool {
	c := &pt.set.cluster
	return func(e origin.Endpoint) bool {
		return e.Ready != origin.False && origin.Rejection(e.Address, family, c.subnets) == "" && !s.withdrawn(c, &e)
	}
}

// has reports whether a part has at least n ready endpoints with addresses of a family. An
// endpoint is what its address belongs to, such as a pod, or the address itself if that is
// unknown: the same one may be in several slices.
func (s *Snapshot) has(pt *part, family discoveryv1.AddressType, n int) bool {
	type endpoint struct {
		target  uint64
		address netip.Addr
	}
	usable, seen := s.usable(pt, family), map[endpoint]struct{}{}
	for _, sl := range pt.slices {
		for i := range sl.Endpoints {
			e := &sl.Endpoints[i]
			if !usable(*e) {
				continue // nor are those of the other family
			}
			if e.Target != 0 {
				seen[endpoint{target: e.Target}] = struct{}{}
			} else {
				seen[endpoint{address: e.Address}] = struct{}{}
			}
			if len(seen) >= n {
				return true
			}
		}
	}
	return false
}
