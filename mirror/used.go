package mirror

import (
	"cmp"
	"hash/fnv"
	"io"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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
	port   string // its name, or anyPort
}

// anyPort stands for all ports: names of headless services resolve for all of them, and of
// slices that are only remembered they are unknown. No port has that name.
const anyPort = "*"

// String returns the frontend as in IPv6 or IPv6 http.
func (f frontend) String() string {
	if f.port == "" || f.port == anyPort {
		return string(f.family)
	}
	return string(f.family) + " " + f.port
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
			b.add(w, &b.s.sets[setID{pt.cluster, merged}].cluster, sl, zones)
		}
	}
	u.report()
}

// usage is which parts of a global service are used for which frontends.
type usage struct {
	s     *Snapshot
	w     *Service
	parts []*part
	ports map[string]bool // of the service, by name
	// ready and used are computed on demand.
	ready map[*part]map[frontend]bool
	used  map[frontend][]*part
	// needed are frontends that a stale or drained part is used for, omitted such parts that
	// are not used for some.
	needed  map[*part]map[frontend]bool
	omitted map[*part]bool
}

func newUsage(s *Snapshot, w *Service, parts []*part) *usage {
	u := &usage{
		s: s, w: w, parts: parts, ports: map[string]bool{}, ready: map[*part]map[frontend]bool{}, used: map[frontend][]*part{},
		needed: map[*part]map[frontend]bool{}, omitted: map[*part]bool{},
	}
	for i := range w.Spec.Ports {
		u.ports[w.Spec.Ports[i].Name] = true
	}
	return u
}

// frontends returns those of the service that a slice has endpoints for.
func (u *usage) frontends(sl *OriginSlice) []frontend {
	if u.w.Spec.Headless || len(sl.Ports) == 0 {
		return []frontend{{sl.Family, anyPort}}
	}
	var all []frontend
	for i := range sl.Ports {
		if name := *sl.Ports[i].Name; u.ports[name] {
			all = append(all, frontend{sl.Family, name})
		}
	}
	return all
}

// needs reports whether a part is used for a frontend.
func (u *usage) needs(pt *part, f frontend) bool {
	used, known := u.used[f]
	if !known {
		used, _ = counting(u.parts, func(p *part) bool { return u.isReady(p, f) })
		u.used[f] = used
	}
	return slices.Contains(used, pt)
}

// isReady reports whether a part has a ready endpoint for a frontend.
func (u *usage) isReady(pt *part, f frontend) bool {
	ready, known := u.ready[pt]
	if !known {
		ready = map[frontend]bool{}
		u.ready[pt] = ready
		for _, sl := range pt.slices {
			if slices.ContainsFunc(sl.Endpoints, u.s.usable(pt, sl.Family)) {
				ready[frontend{sl.Family, anyPort}] = true
				for _, f := range u.frontends(sl) {
					ready[f] = true
				}
			}
		}
	}
	return ready[f]
}

// restrict returns a slice of a part with the ports that the part is used for; nil: none.
func (u *usage) restrict(pt *part, sl *OriginSlice) *OriginSlice {
	if !pt.stale && !pt.drained {
		return sl
	}
	all, needed := u.frontends(sl), map[frontend]bool{}
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
		return !needed[frontend{sl.Family, *p.Name}]
	})
	return &restricted
}

// remember retains the slices of a part that is only remembered, of the families that it is
// used for.
func (u *usage) remember(pt *part) {
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		if !pt.stale && !pt.drained || u.note(pt, frontend{family, anyPort}) {
			u.w.keeps = append(u.w.keeps, kept{pt.cluster, family})
		}
	}
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
func (s *Snapshot) usable(pt *part, family discoveryv1.AddressType) func(Endpoint) bool {
	c := &s.sets[setID{pt.cluster, merged}].cluster
	return func(e Endpoint) bool {
		return e.Ready != False && rejection(e.Address, family, c.subnets) == "" && !s.withdrawn(c, &e)
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

// targetOf returns a hash of what an endpoint's address belongs to; zero: unknown.
func targetOf(r *corev1.ObjectReference) uint64 {
	if r == nil || r.Name == "" && r.UID == "" {
		return 0
	}
	h := fnv.New64a()
	for _, text := range []string{r.Kind, r.Namespace, r.Name, string(r.UID)} {
		_, _ = io.WriteString(h, text+"\x00") // it never fails
	}
	return max(1, h.Sum64())
}
