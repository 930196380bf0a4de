package mirror

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/mirror/exposed"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// part is the service of one cluster in a service of several clusters.
type part struct {
	cluster *cluster // nil for what is remembered
	name    string   // of the cluster
	origin  *origin.Service
	slices  map[string]*origin.Slice
	local   bool
	stale   bool // no contact for StaleAfter, or no longer configured
	drained bool
	// remembered: the state of the cluster is unknown, and slices are its existing ones.
	remembered bool
	existing   map[string]*ObservedSlice
	// names are those of the ports that a remembered part serves, by the names in its slices;
	// nil: it serves all of them.
	names map[string]string
}

// rank orders the parts for one frontend: the endpoints of one are used if none of a lower rank has a
// ready one.
//
//	| part             | rank |
//	| ---------------- | ---- |
//	| stale            | 2    |
//	| drained          | 1    |
//	| any other        | 0    |
//
// An outdated or drained service is better than an empty one.
func (p *part) rank() int {
	switch {
	case p.stale:
		return 2
	case p.drained:
		return 1
	}
	return 0
}

// maxNeeded is the maximum number of frontends listed per cluster of a service.
const maxNeeded = 5

// use adds the slices of all parts. Those of stale and drained parts are restricted to the
// frontends without another ready endpoint, so that others must have been granted theirs.
func (b *builder) use() {
	b.remember()
	u := newUsage(b)
	for _, pt := range slices.SortedStableFunc(slices.Values(b.parts), func(x, y *part) int { return cmp.Compare(x.rank(), y.rank()) }) {
		if pt.remembered && (pt.stale || pt.drained) {
			u.noteAll(pt)
		}
		for name, sl := range pt.slices {
			if sl = u.restrict(pt, sl); sl == nil {
				continue
			}
			if pt.remembered {
				b.keep(pt.existing[name], sl)
			} else {
				b.add(pt.cluster, sl)
			}
		}
		b.grant()
	}
	if b.w.LocalFirst {
		b.zone()
	}
	u.report()
}

// zone gives slices the zones that prefer endpoints near by.
func (b *builder) zone() {
	near := b.near()
	for i := range b.w.Slices {
		w := &b.w.Slices[i]
		c := b.s.clusters[w.Cluster]
		switch tier, some := near[w.origin.Family]; {
		case some && c.tier <= tier:
			w.zones = b.s.zones
		case !c.local: // With a ready endpoint without hints, kube-proxy uses all of the family.
			w.zones = []string{remoteZone}
		}
	}
}

// remember gives existing slices to the parts that are only remembered. One whose cluster isn't
// known is that of a fresh one, if there is one.
func (b *builder) remember() {
	for o := range b.objects.of(b.w.Name) {
		var of *part
		for _, pt := range b.parts {
			if pt.remembered && (pt.name == o.cluster || o.cluster == "" && (of == nil || of.stale || of.drained)) {
				of = pt
			}
		}
		if of == nil {
			continue
		}
		sl := o.slice(b.w.Origin.Key)
		if of.names != nil && len(sl.Ports) > 0 {
			if sl.Ports = renamed(sl.Ports, of.names); len(sl.Ports) == 0 {
				continue
			}
		}
		if of.slices == nil {
			of.slices, of.existing = map[string]*origin.Slice{}, map[string]*ObservedSlice{}
		}
		of.slices[o.Name], of.existing[o.Name] = sl, o
	}
}

// near returns, for each family, the last tier of which endpoints are preferred: tiers are taken
// in order until they have enough ready endpoints. A family isn't in the result if that takes all
// tiers.
func (b *builder) near() map[discoveryv1.AddressType]int {
	tiers, minimum := map[int][]*part{}, b.s.localMinimum
	for _, pt := range b.parts {
		if pt.local && !pt.remembered {
			minimum = cmp.Or(pt.origin.LocalMinimum, minimum)
		}
		if !pt.remembered && !pt.stale && !pt.drained {
			tiers[pt.cluster.tier] = append(tiers[pt.cluster.tier], pt)
		}
	}
	near, order := map[discoveryv1.AddressType]int{}, slices.Sorted(maps.Keys(tiers))
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		left := max(1, minimum)
		for i, tier := range order {
			for _, pt := range tiers[tier] {
				left -= b.w.count(pt, family, left)
			}
			if left <= 0 && (i < len(order)-1 || tier == 0) {
				near[family] = tier
			}
			if left <= 0 {
				break
			}
		}
	}
	return near
}

// usage is which parts of a global service are used for which frontends.
type usage struct {
	*builder
	ports map[exposed.PortName]bool // of the service
	// ready is computed on demand, when a part was granted its slices.
	ready map[*part]map[exposed.Frontend]bool
	// needed are frontends that a stale or drained part is used for, omitted such parts that
	// are not used for some.
	needed  map[*part]map[exposed.Frontend]bool
	omitted map[*part]bool
}

func newUsage(b *builder) *usage {
	u := &usage{
		builder: b, ports: map[exposed.PortName]bool{}, ready: map[*part]map[exposed.Frontend]bool{},
		needed: map[*part]map[exposed.Frontend]bool{}, omitted: map[*part]bool{},
	}
	for _, p := range b.w.Spec.Ports {
		u.ports[exposed.PortName{Name: p.Name, Protocol: p.Protocol}] = true
	}
	return u
}

// frontends returns those of the service that a slice has endpoints for.
func (u *usage) frontends(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) []exposed.Frontend {
	if u.w.Spec.Headless || len(ports) == 0 {
		return []exposed.Frontend{exposed.AllPorts(family)}
	}
	var all []exposed.Frontend
	for i := range ports {
		if f := exposed.FrontendOf(family, &ports[i]); u.ports[f.Port] {
			all = append(all, f)
		}
	}
	return all
}

// needs reports whether a part is used for a frontend. Those that are only remembered count as they
// were before, but nothing remembered is removed for their sake.
func (u *usage) needs(pt *part, f exposed.Frontend) bool {
	return !slices.ContainsFunc(u.parts, func(p *part) bool {
		return p.rank() < pt.rank() && (!p.remembered || !pt.remembered) && u.isReady(p, f)
	})
}

// isReady reports whether a part has a ready endpoint for a frontend.
func (u *usage) isReady(pt *part, f exposed.Frontend) bool {
	ready, known := u.ready[pt]
	if !known {
		ready = map[exposed.Frontend]bool{}
		u.ready[pt] = ready
		add := func(sl *origin.Slice, endpoints []origin.Endpoint) {
			if slices.ContainsFunc(endpoints, usable) {
				ready[exposed.AllPorts(sl.Family)] = true
				for _, f := range u.frontends(sl.Family, sl.Ports) {
					ready[f] = true
				}
			}
		}
		if pt.remembered {
			for _, sl := range pt.slices {
				add(sl, sl.Endpoints)
			}
		}
		for sl := range u.w.of(pt) {
			add(sl.origin, sl.Endpoints)
		}
	}
	return ready[f]
}

// usable reports whether an endpoint is ready, also if that is unset.
func usable(e origin.Endpoint) bool { return e.Ready != origin.False }

// restrict returns a slice of a part with the ports that the part is used for; nil: none.
func (u *usage) restrict(pt *part, sl *origin.Slice) *origin.Slice {
	if !pt.stale && !pt.drained {
		return sl
	}
	all, needed := u.frontends(sl.Family, sl.Ports), map[exposed.Frontend]bool{}
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
		return !needed[exposed.FrontendOf(sl.Family, &p)]
	})
	return &restricted
}

// note records whether a stale or drained part is used for a frontend, and returns it.
func (u *usage) note(pt *part, f exposed.Frontend) bool {
	if !u.needs(pt, f) {
		u.omitted[pt] = true
		return false
	}
	if u.needed[pt] == nil {
		u.needed[pt] = map[exposed.Frontend]bool{}
	}
	u.needed[pt][f] = true
	return true
}

// noteAll records which frontends of the service a part is used for of which it isn't known what it
// has.
func (u *usage) noteAll(pt *part) {
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		u.note(pt, exposed.AllPorts(family))
		for port := range u.ports {
			if !u.w.Spec.Headless {
				u.note(pt, exposed.Frontend{Family: family, Port: port})
			}
		}
	}
}

// report fills in what the service has of stale and drained parts.
func (u *usage) report() {
	w := u.w
	for pt := range u.omitted {
		w.Outdated = w.Outdated || pt.stale
		if pt.drained {
			w.Drained = append(w.Drained, pt.name)
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
		w.Needed[pt.name] = all[:min(len(all), maxNeeded)]
	}
}

// of returns the slices that a part was granted.
func (t *Service) of(pt *part) iter.Seq[*Slice] {
	return func(yield func(*Slice) bool) {
		for i := range t.Slices {
			if sl := &t.Slices[i]; sl.Cluster == pt.name && !yield(sl) {
				return
			}
		}
	}
}

// count returns the number of ready endpoints of a part with addresses of a family, or n if there
// are more. An endpoint is what its address belongs to, such as a pod, or the address itself if
// that is unknown: the same one may be in several slices.
func (t *Service) count(pt *part, family discoveryv1.AddressType, n int) int {
	type endpoint struct {
		target  uint64
		address netip.Addr
	}
	seen := map[endpoint]struct{}{}
	for sl := range t.of(pt) {
		for i := range sl.Endpoints {
			e := &sl.Endpoints[i]
			if len(seen) >= n {
				return n
			}
			switch {
			case sl.origin.Family != family || !usable(*e):
			case e.Target != 0:
				seen[endpoint{target: e.Target}] = struct{}{}
			default:
				seen[endpoint{address: e.Address}] = struct{}{}
			}
		}
	}
	return len(seen)
}
