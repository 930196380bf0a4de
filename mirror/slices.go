package mirror

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// builder plans one local service, within the bounds of its clusters.
type builder struct {
	s          *state
	w          *Service
	objects    *objects // existing ones
	parts      []*part  // of a service of several clusters
	kept       []Slice
	candidates []candidate
	shares     map[*cluster]*taken
}

// taken is what a service has of a remote, and lacks.
type taken struct {
	has, lacks share
	room       Bounds
}

// candidate is a slice that may be copied.
type candidate struct {
	cluster *cluster
	origin  *origin.Slice
	name    string
	now     *ObservedSlice // nil: there is no local copy
	// endpoints are the accepted ones.
	endpoints []origin.Endpoint
}

// admit reports whether the service may be made for a service of a namespace of a remote.
func (b *builder) admit(c *cluster, namespace string) bool {
	of := &taken{room: c.quota.room(b.w.Name, namespace), has: share{namespace: namespace}, lacks: share{namespace: namespace, of: b.w.Origin.Key}}
	b.shares[c] = of
	if of.room.Services <= 0 {
		of.lacks.Services = 1
		return false
	}
	of.has.Services = 1
	return true
}

// add adds a slice without rejected addresses.
func (b *builder) add(c *cluster, sl *origin.Slice) {
	tally := b.w.tally(c.name)
	switch {
	case sl.Reject != "":
		tally.reject(1, "slice "+sl.Name+": "+sl.Reject)
		return
	case sl.Family != discoveryv1.AddressTypeIPv4 && sl.Family != discoveryv1.AddressTypeIPv6:
		tally.reject(len(sl.Endpoints)+len(sl.Unreadable), "slice "+sl.Name+" has addresses of type "+printable.Text(string(sl.Family), origin.MaxShown))
		return
	}
	for _, text := range sl.Unreadable {
		tally.reject(1, text+": not an address")
	}
	e := candidate{cluster: c, origin: sl, name: sliceName(b.w.Name, c.name, sl)}
	e.endpoints = c.accepted(sl, func(a netip.Addr, why string) { tally.reject(1, a.String()+": "+why) })
	e.endpoints = b.withdraw(e.endpoints, c)
	if o := b.objects.slices.Get(e.name); o != nil && o.ours {
		e.now = o
	}
	b.candidates = append(b.candidates, e)
}

// accepted returns the endpoints of a slice that are used, and calls reject for the others.
func (c *cluster) accepted(sl *origin.Slice, reject func(a netip.Addr, why string)) []origin.Endpoint {
	rejected := func(e origin.Endpoint) bool { return origin.Rejection(e.Address, sl.Family, c.subnets) != "" }
	if !slices.ContainsFunc(sl.Endpoints, rejected) {
		return sl.Endpoints
	}
	accepted := make([]origin.Endpoint, 0, len(sl.Endpoints))
	for _, e := range sl.Endpoints {
		if why := origin.Rejection(e.Address, sl.Family, c.subnets); why != "" {
			reject(e.Address, why)
			continue
		}
		accepted = append(accepted, e)
	}
	return accepted
}

// withdraw marks endpoints on nodes with broken paths as neither ready nor serving, which
// kube-proxy treats like removed ones; a serving endpoint would keep its UDP flows. They stay
// in the slice, so that the quota doesn't depend on paths.
func (b *builder) withdraw(endpoints []origin.Endpoint, c *cluster) []origin.Endpoint {
	cloned := false
	for i := range endpoints {
		if !b.s.withdrawn(c, &endpoints[i]) {
			continue
		}
		if !cloned {
			endpoints, cloned = slices.Clone(endpoints), true
		}
		endpoints[i].Ready, endpoints[i].Serving = origin.False, origin.False
		b.w.tally(c.name).Withdrawn++
	}
	return endpoints
}

// keep adds an existing slice that stays, with the ports of sl.
func (b *builder) keep(o *ObservedSlice, sl *origin.Slice) {
	b.kept = append(b.kept, Slice{Name: o.Name, Cluster: o.cluster, Endpoints: sl.Endpoints, origin: sl, kept: o})
}

// grant adds the candidates within the quotas, first those that exist.
func (b *builder) grant() {
	slices.SortFunc(b.candidates, func(x, y candidate) int {
		if c := boolCompare(x.now == nil, y.now == nil); c != 0 {
			return c
		}
		return strings.Compare(x.name, y.name)
	})
	for i := range b.candidates {
		e := &b.candidates[i]
		tally := b.w.tally(e.cluster.name)
		if of := b.shares[e.cluster]; of != nil && !of.grant(e, tally) {
			continue
		}
		tally.Taken += len(e.endpoints)
		b.w.Slices = append(b.w.Slices, Slice{
			Name: e.name, Cluster: e.cluster.name, Endpoints: e.endpoints, origin: e.origin, headless: b.w.Spec.Headless,
			nodes: e.cluster.local && b.w.Imported != nil && b.w.Imported.NodeLocal(),
		})
	}
	b.candidates = nil
}

// end sorts the slices of the service, and adds others that stay.
func (b *builder) end() {
	byName := func(x, y Slice) int { return strings.Compare(x.Name, y.Name) }
	slices.SortFunc(b.w.Slices, byName)
	for o := range b.objects.of(b.w.Name) {
		if b.s.keeps(b.w, o) {
			b.keep(o, o.slice(b.w.Origin.Key))
		}
	}
	others := slices.DeleteFunc(b.kept, func(k Slice) bool { return b.w.slice(k.Name) != nil })
	b.w.Slices = append(b.w.Slices, others...)
	slices.SortFunc(b.w.Slices, byName)
}

// settle grants the service what it has of each remote, including what is retained of it. It
// returns other services for which there may be room now.
func (b *builder) settle(have *Observed) (next []string) {
	w := b.w
	retain := func(cluster, namespace string, more Bounds) {
		c := b.s.clusters[cluster]
		if c == nil || c.local {
			return
		}
		of := b.shares[c]
		if of == nil {
			of = &taken{}
			b.shares[c] = of
		}
		of.has.namespace = cmp.Or(of.has.namespace, namespace)
		of.has.Services = max(of.has.Services, more.Services)
		of.has.Slices += more.Slices
		of.has.Addresses += more.Addresses
	}
	for i := range w.Slices {
		if o := w.Slices[i].kept; o != nil {
			retain(o.cluster, "", Bounds{Slices: 1, Addresses: len(o.Addresses) * cost(len(o.Ports))})
		}
	}
	for _, pt := range b.parts {
		if pt.remembered {
			retain(pt.name, w.Origin.Namespace, Bounds{Services: 1})
		}
	}
	if o := have.Service; o != nil && o.ours && w.Hold != "" && w.Absent {
		for _, cluster := range slices.Concat(o.clusters, []string{b.s.clusterOf(o)}) { // a mirror has one, a global service several
			retain(cluster, o.id.Namespace, Bounds{Services: 1})
		}
	}
	for _, c := range b.s.clusters {
		if of := b.shares[c]; of != nil {
			next = append(next, c.quota.grant(w.Name, of.has, of.lacks)...)
		} else if !c.local {
			next = append(next, c.quota.grant(w.Name, share{}, share{})...)
		}
	}
	return next
}

// cost returns as how many addresses one with these ports counts: kube-proxies have an entry for each
// of them.
func cost(ports int) int { return max(1, (ports+9)/10) }

// grant restricts a slice to the room for it, existing addresses first. It reports whether there is
// any.
func (t *taken) grant(e *candidate, tally *Tally) bool {
	if t.has.Slices >= maxSlices {
		t.lacks.beyond++
		tally.reject(len(e.endpoints), fmt.Sprintf("slice %s: there are %d slices of the service already", e.origin.Name, maxSlices))
		return false
	}
	if t.has.Slices >= t.room.Slices {
		t.lacks.Slices++
		tally.reject(len(e.endpoints), fmt.Sprintf("slice %s: there are %d slices of the cluster already, or half of them in its namespace", e.origin.Name, e.cluster.quota.bounds.Slices))
		return false
	}
	each, left := cost(len(e.origin.Ports)), max(0, t.room.Addresses-t.has.Addresses)
	all, free := len(e.endpoints), left/each
	if all > free {
		t.has.Addresses += left % each // too little for one more, for which it must not be computed again
		exists := map[netip.Addr]bool{}
		if e.now != nil {
			for _, address := range e.now.Addresses {
				exists[address] = true
			}
		}
		some := slices.Clone(e.endpoints)
		slices.SortStableFunc(some, func(a, b origin.Endpoint) int { return boolCompare(exists[b.Address], exists[a.Address]) })
		e.endpoints = some[:free]
		slices.SortFunc(e.endpoints, origin.CompareEndpoints)
		t.lacks.Addresses += (all - free) * each
		tally.reject(all-free, fmt.Sprintf("slice %s: there are %d addresses of the cluster already, or half of them in its namespace", e.origin.Name, e.cluster.quota.bounds.Addresses))
		if free == 0 && e.now == nil {
			return false
		}
	}
	t.has.Slices++
	t.has.Addresses += len(e.endpoints) * each
	return true
}

// served returns the slices of a part with the ports that it serves, by their names in the
// import. A slice that loses all its ports is dropped: to some consumers a slice without ports
// has all of them.
func served(i *mcs.Import, pt *part) map[string]*origin.Slice {
	offer := pt.origin.Offer(pt.name)
	names := map[string]string{}
	same := true
	for _, p := range offer.Ports {
		name, serves := i.Name(&offer, p.Name)
		if same = same && serves && name == p.Name; serves {
			names[p.Name] = name
		}
	}
	if same {
		return pt.slices
	}
	some := map[string]*origin.Slice{}
	for name, sl := range pt.slices {
		if slices.ContainsFunc(sl.Ports, func(p discoveryv1.EndpointPort) bool {
			name, serves := names[*p.Name] // unnamed ports, too
			return !serves || name != *p.Name
		}) {
			with := *sl
			if with.Ports = renamed(sl.Ports, names); len(with.Ports) == 0 {
				continue
			}
			sl = &with
		}
		some[name] = sl
	}
	return some
}

// renamed returns ports with other names, without those that have none.
func renamed(ports []discoveryv1.EndpointPort, names map[string]string) []discoveryv1.EndpointPort {
	var all []discoveryv1.EndpointPort
	for _, p := range ports {
		if name, has := names[*p.Name]; has {
			p.Name = &name
			all = append(all, p)
		}
	}
	return all
}
