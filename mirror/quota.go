package mirror

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// originRef identifies an origin in a set.
type originRef struct {
	set setID
	key origin.Key
}

// quota counts the objects created for one remote, and what is omitted because of its
// bounds.
//
// A ResourceQuota of the namespace would count the objects of all remotes together, so that
// one could take what another needs, and no addresses. A bound of the cached objects, as
// kube.Bounds has, would keep those that are listed first after a restart instead of those
// that exist.
type quota struct {
	bounds, used, last Bounds
	admitted           map[originRef]struct{}
	waiting            map[originRef]struct{} // origins beyond the quota
	namespaces         map[string]int         // admitted origins
	// short and tried are services without all of their slices or addresses: tried ones had
	// no quota since some was released. again is whether more was released since then.
	short, tried map[origin.ID]struct{}
	again        bool
}

// refillings is the number of incomplete services that are recomputed per pass.
const refillings = 64

func newQuotas(s *Snapshot) map[string]*quota {
	quotas := map[string]*quota{}
	for _, set := range s.sets {
		if !set.cluster.local {
			quotas[set.cluster.name] = &quota{
				bounds:   set.cluster.bounds,
				admitted: map[originRef]struct{}{}, waiting: map[originRef]struct{}{}, namespaces: map[string]int{},
				short: map[origin.ID]struct{}{}, tried: map[origin.ID]struct{}{},
			}
		}
	}
	return quotas
}

func within(used, bound int) bool { return bound <= 0 || used < bound }

// waits reports whether an origin waits for quota.
func (m *Memo) waits(id setID, k origin.Key) bool {
	r := m.quotas[id.cluster]
	if r == nil {
		return false
	}
	_, waits := r.waiting[originRef{id, k}]
	return waits
}

// admit admits origins within the quota: first those that exist in the local cluster.
func (m *Memo) admit(s *Snapshot, origins map[origin.ID]struct{}) {
	var others []originRef
	for id := range origins {
		for _, p := range s.originRefs(id) {
			r := m.quotas[p.set.cluster]
			if r == nil {
				continue
			}
			set := s.sets[p.set]
			o := set.origins[p.key]
			_, admitted := r.admitted[p]
			switch {
			case !set.synced || o == nil || o.Reject != "", p.set.kind == exported && !s.local.imported.usable(p.key.Namespace):
				r.leave(p)
			case admitted:
			case s.exists(p.set, p.key):
				r.enter(p)
			default:
				others = append(others, p)
			}
		}
	}
	slices.SortFunc(others, func(a, b originRef) int {
		return cmp.Or(cmp.Compare(a.set.kind, b.set.kind), origin.CompareIDs(origin.ID{Cluster: a.set.cluster, Key: a.key}, origin.ID{Cluster: b.set.cluster, Key: b.key}))
	})
	for _, p := range others {
		if r := m.quotas[p.set.cluster]; r.full(p.key.Namespace) == "" {
			r.enter(p)
		} else {
			r.waiting[p] = struct{}{}
		}
	}
}

func (r *quota) enter(p originRef) {
	delete(r.waiting, p)
	r.admitted[p] = struct{}{}
	r.used.Services++
	r.namespaces[p.key.Namespace]++
}

// full returns why there is no room for another Service of a namespace; empty: there is. A
// namespace has half of its remote's Services at most, so that a tenant doesn't take all of them,
// and all cluster IPs that may be theirs.
func (r *quota) full(namespace string) string {
	switch {
	case !within(r.used.Services, r.bounds.Services):
		return fmt.Sprintf("the maximum of %d services", r.bounds.Services)
	case r.bounds.Services > 0 && r.namespaces[namespace] >= (r.bounds.Services+1)/2:
		return fmt.Sprintf("the maximum of %d services of one namespace, half of all,", (r.bounds.Services+1)/2)
	}
	return ""
}

func (r *quota) leave(p originRef) {
	delete(r.waiting, p)
	if _, admitted := r.admitted[p]; admitted {
		delete(r.admitted, p)
		r.used.Services--
		if r.namespaces[p.key.Namespace]--; r.namespaces[p.key.Namespace] == 0 {
			delete(r.namespaces, p.key.Namespace)
		}
	}
}

// originRefs returns the sets in which an origin may be.
func (s *Snapshot) originRefs(id origin.ID) []originRef {
	if !id.Global() && !id.Import() {
		return []originRef{{setID{id.Cluster, mirrored}, id.Key}}
	}
	var all []originRef
	for _, in := range s.order {
		if in.kind == merged && id.Global() || in.kind == exported && id.Import() {
			all = append(all, originRef{in, id.Key})
		}
	}
	return all
}

// missing returns the number of omitted or incomplete services.
func (r *quota) missing() int { return len(r.waiting) + len(r.short) + len(r.tried) }

// refill returns omitted origins for which there may be quota by now, in random order, so
// that a remote can't choose them. more: there are others.
func (m *Memo) refill() (again map[origin.ID]struct{}, more bool) {
	again = map[origin.ID]struct{}{}
	for _, r := range m.quotas {
		free := r.bounds.Services - r.used.Services
		for p := range r.waiting {
			if free <= 0 {
				break
			}
			if r.full(p.key.Namespace) != "" {
				continue
			}
			free--
			again[p.id()] = struct{}{}
		}
		r.again = r.again || r.used.Slices < r.last.Slices || r.used.Addresses < r.last.Addresses
		r.last = r.used
		if r.again && len(r.short) == 0 {
			r.short, r.tried, r.again = r.tried, r.short, false
		}
		if free := r.bounds.Slices > r.used.Slices || r.bounds.Addresses > r.used.Addresses; !free {
			continue
		}
		taken := 0
		for id := range r.short {
			if taken++; taken > refillings {
				more = true
				break
			}
			again[id] = struct{}{}
		}
	}
	return again, more
}

func (p originRef) id() origin.ID { return p.set.kind.id(p.set.cluster, p.key) }

// candidate is a slice that may be copied.
type candidate struct {
	cluster *clusterConfig
	origin  *origin.Slice
	zones   []string
	name    string
	exists  bool // there is a local copy
	// endpoints are the accepted ones.
	endpoints []origin.Endpoint
}

// builder builds services, one at a time, within the bounds of their clusters.
type builder struct {
	s          *Snapshot
	m          *Memo
	before     *Service                       // previous state of the service; nil: none
	prior      map[string]*Slice              // its slices
	here       map[origin.ID][]*ObservedSlice // existing slices of new services
	candidates []candidate
}

// builder returns a builder for the services now, which replace those before. Existing
// slices keep their quota.
func (m *Memo) builder(s *Snapshot, now []*Service, before map[origin.ID]*Service) *builder {
	b := &builder{s: s, m: m, here: map[origin.ID][]*ObservedSlice{}}
	gone := maps.Clone(before)
	for _, w := range now {
		if delete(gone, w.Origin); before[w.Origin] != nil {
			continue
		}
		for _, o := range s.local.slicesOf(w.Name) {
			b.here[w.Origin] = append(b.here[w.Origin], o)
			m.occupy(o.cluster, 1, len(o.Addresses))
		}
	}
	for id, w := range gone {
		m.vacate(id, w)
	}
	return b
}

// occupy counts slices and addresses of a cluster.
func (m *Memo) occupy(cluster string, slices, addresses int) {
	if r := m.quotas[cluster]; r != nil {
		r.used.Slices += slices
		r.used.Addresses += addresses
	}
}

// vacate releases the quota of a service.
func (m *Memo) vacate(id origin.ID, w *Service) {
	for i := range w.Slices {
		m.occupy(w.Slices[i].Cluster, -1, -len(w.Slices[i].Endpoints))
	}
	for cluster := range w.Tallies {
		if r := m.quotas[cluster]; r != nil {
			delete(r.short, id)
			delete(r.tried, id)
		}
	}
}

// begin begins a service.
func (b *builder) begin(w *Service, before *Service) {
	b.before, b.prior, b.candidates = before, map[string]*Slice{}, nil
	w.Tallies = map[string]*Tally{}
	if before != nil {
		b.m.vacate(w.Origin, before)
		for i := range before.Slices {
			b.prior[before.Slices[i].Name] = &before.Slices[i]
		}
	}
	for _, o := range b.here[w.Origin] {
		b.m.occupy(o.cluster, -1, -len(o.Addresses))
	}
}

// add adds a slice without rejected addresses.
func (b *builder) add(w *Service, c *clusterConfig, sl *origin.Slice, zones []string) {
	tally := w.Tallies[c.name]
	if tally == nil {
		tally = &Tally{}
		w.Tallies[c.name] = tally
	}
	switch {
	case sl.Reject != "":
		tally.reject(1, "slice "+sl.Name+": "+sl.Reject)
		return
	case sl.Family != "IPv4" && sl.Family != "IPv6":
		tally.reject(len(sl.Endpoints)+len(sl.Unreadable), "slice "+sl.Name+" has addresses of type "+printable.Text(string(sl.Family), origin.MaxShown))
		return
	}
	for _, text := range sl.Unreadable {
		tally.reject(1, text+": not an address")
	}
	e := candidate{cluster: c, origin: sl, zones: zones, name: sliceName(w.Name, c.name, sl)}
	e.endpoints = c.admit(sl, func(a netip.Addr, why string) { tally.reject(1, a.String()+": "+why) })
	e.endpoints = b.withdraw(e.endpoints, c)
	e.exists = b.prior[e.name] != nil ||
		slices.ContainsFunc(b.here[w.Origin], func(o *ObservedSlice) bool { return o.Name == e.name })
	b.candidates = append(b.candidates, e)
}

// admit returns the endpoints of a slice that are used, and calls reject for the others.
func (c *clusterConfig) admit(sl *origin.Slice, reject func(a netip.Addr, why string)) []origin.Endpoint {
	rejected := func(e origin.Endpoint) bool { return origin.Rejection(e.Address, sl.Family, c.subnets) != "" }
	if !slices.ContainsFunc(sl.Endpoints, rejected) {
		return sl.Endpoints
	}
	admitted := make([]origin.Endpoint, 0, len(sl.Endpoints))
	for _, e := range sl.Endpoints {
		if why := origin.Rejection(e.Address, sl.Family, c.subnets); why != "" {
			reject(e.Address, why)
			continue
		}
		admitted = append(admitted, e)
	}
	return admitted
}

// withdraw marks endpoints on nodes with broken paths as neither ready nor serving, which
// kube-proxy treats like removed ones; a serving endpoint would keep its UDP flows. They stay
// in the slice, so that the quota doesn't depend on paths.
func (b *builder) withdraw(endpoints []origin.Endpoint, c *clusterConfig) []origin.Endpoint {
	is := func(e origin.Endpoint) bool { return b.s.withdrawn(c, &e) }
	if !slices.ContainsFunc(endpoints, is) {
		return endpoints
	}
	endpoints = slices.Clone(endpoints)
	for i := range endpoints {
		if is(endpoints[i]) {
			endpoints[i].Ready, endpoints[i].Serving = origin.False, origin.False
		}
	}
	return endpoints
}

// end adds the slices of a service within the quota: first those that exist.
func (b *builder) end(w *Service) {
	slices.SortFunc(b.candidates, func(x, y candidate) int {
		if x.exists != y.exists {
			return boolCompare(y.exists, x.exists)
		}
		return strings.Compare(x.name, y.name)
	})
	for i := range b.candidates {
		e := &b.candidates[i]
		tally := w.Tallies[e.cluster.name]
		if !b.grant(w, e, tally) {
			continue
		}
		tally.Taken += len(e.endpoints)
		for j := range e.endpoints {
			if b.s.withdrawn(e.cluster, &e.endpoints[j]) {
				tally.Withdrawn++
			}
		}
		b.m.occupy(e.cluster.name, 1, len(e.endpoints))
		w.Slices = append(w.Slices, b.slice(w, e))
	}
	slices.SortFunc(w.Slices, func(x, y Slice) int { return strings.Compare(x.Name, y.Name) })
	switch {
	case w.Imported != nil:
		w.Imported.derivedSum = b.s.sums.derived(w.derived(w.Origin.Key, ""))
	case !w.Absent:
		w.sum = b.s.sums.service(w.service(""))
	}
}

// grant truncates a slice to the quota. Existing addresses stay.
func (b *builder) grant(w *Service, e *candidate, tally *Tally) bool {
	r := b.m.quotas[e.cluster.name]
	if r == nil {
		return true
	}
	if !e.exists && !within(r.used.Slices, r.bounds.Slices) {
		r.tried[w.Origin] = struct{}{}
		tally.reject(len(e.endpoints), fmt.Sprintf("slice %s: there are %d slices of the cluster already", e.origin.Name, r.used.Slices))
		return false
	}
	free := r.bounds.Addresses - r.used.Addresses
	if r.bounds.Addresses <= 0 || len(e.endpoints) <= free {
		return true
	}
	there := map[netip.Addr]bool{}
	if p := b.prior[e.name]; p != nil {
		for i := range p.Endpoints {
			there[p.Endpoints[i].Address] = true
		}
	}
	for _, o := range b.here[w.Origin] {
		for _, a := range o.Addresses {
			there[a] = there[a] || o.Name == e.name
		}
	}
	for i := range e.endpoints {
		if there[e.endpoints[i].Address] {
			free--
		}
	}
	all := len(e.endpoints)
	e.endpoints = slices.DeleteFunc(slices.Clone(e.endpoints), func(p origin.Endpoint) bool {
		if there[p.Address] {
			return false
		}
		free--
		return free < 0
	})
	if left := all - len(e.endpoints); left > 0 {
		r.tried[w.Origin] = struct{}{}
		tally.reject(left, fmt.Sprintf("slice %s: there are %d addresses of the cluster already", e.origin.Name, r.used.Addresses))
	}
	return e.exists || len(e.endpoints) > 0 || all == 0
}

// slice returns the desired slice: the previous one if nothing has changed.
func (b *builder) slice(w *Service, e *candidate) Slice {
	now := Slice{Name: e.name, Cluster: e.cluster.name, Endpoints: e.endpoints, origin: e.origin, zones: e.zones, headless: w.Spec.Headless}
	now.nodes = e.cluster.local && w.Imported != nil && w.Imported.NodeLocal()
	if p := b.prior[e.name]; p != nil && p.origin == now.origin && p.headless == now.headless && p.nodes == now.nodes &&
		slices.Equal(p.zones, now.zones) && slices.Equal(p.Endpoints, now.Endpoints) {
		return *p
	}
	object, hash := now.object("", w.Name), b.s.sums.slice
	if w.Origin.Import() {
		object, hash = now.importObject(w.Origin.Key, ""), b.s.sums.importSlice
	}
	now.sum, now.size = hash(object), object.Size()
	return now
}
