package mirror

import (
	"cmp"
	"maps"
	"slices"
)

// Memo is what Desired remembers from one snapshot to the next, so that it computes
// anew only what may have changed. The outcome is that of computing everything, as
// long as what was desired before has been written.
type Memo struct {
	services map[string]*Service // by name
	byOrigin map[ID]*Service
	claims   map[string][]claim // by the name that they are for, sorted
	claimed  map[ID]claim
	ranks    map[Key][]string // remotes of global services, the first accepted first
	rooms    map[string]*room // by remote
	// more says that there may be room for more than was taken in this time.
	more bool
}

// NewMemo returns a memo that knows nothing.
func NewMemo() *Memo { return &Memo{} }

// Desired returns what each local service must be of which that may not be what it
// was with the memo's last snapshot, sorted by name; with a new memo, all of them.
func Desired(s *Snapshot, m *Memo) []Service {
	origins, names, all := maps.Clone(s.origins), maps.Clone(s.names), s.all
	if m.services == nil {
		*m = Memo{
			services: map[string]*Service{}, byOrigin: map[ID]*Service{}, claims: map[string][]claim{},
			claimed: map[ID]claim{}, ranks: map[Key][]string{}, rooms: newRooms(s),
		}
		all = true
	}
	if all {
		for _, set := range s.sets {
			for k := range set.origins {
				origins[set.id(k)] = struct{}{}
			}
		}
		for k := range s.local.globals {
			origins[ID{Key: k}] = struct{}{}
		}
		maps.Copy(names, s.local.names())
	}
	for name := range names {
		if rivals := m.claims[name]; len(rivals) > 1 {
			// Who has the name may be another one by now.
			for _, c := range rivals {
				origins[c.id] = struct{}{}
			}
		}
	}
	m.update(s, origins, names)
	// What was left out may have found room.
	if origins, m.more = m.refill(); len(origins) > 0 {
		m.update(s, origins, names)
	}
	changed := make([]Service, 0, len(names))
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w, _ := s.want(m, name)
		changed = append(changed, w)
	}
	return changed
}

// update computes origins anew, and adds the names of local services that this
// changes.
func (m *Memo) update(s *Snapshot, origins map[ID]struct{}, names map[string]struct{}) {
	m.admit(s, origins)
	m.reclaim(s, origins)
	m.compute(s, origins, names)
}

// reclaim brings the claims for names up to date, and adds those to origins whose
// name changes with it.
func (m *Memo) reclaim(s *Snapshot, origins map[ID]struct{}) {
	touched := map[string]struct{}{}
	for id := range origins {
		before, had := m.claimed[id]
		now, has := m.claimOf(s, id)
		if had == has && before == now {
			continue
		}
		if had {
			name := before.name()
			m.claims[name] = slices.DeleteFunc(m.claims[name], func(c claim) bool { return c.id == id })
			if len(m.claims[name]) == 0 {
				delete(m.claims, name)
			}
			delete(m.claimed, id)
			touched[name] = struct{}{}
		}
		if has {
			name := now.name()
			m.claims[name] = append(m.claims[name], now)
			m.claimed[id] = now
			touched[name] = struct{}{}
		}
	}
	for name := range touched {
		for i, c := range m.claims[name] {
			c.holds = m.holds(s, c)
			m.claims[name][i], m.claimed[c.id] = c, c
		}
		slices.SortFunc(m.claims[name], compareClaims)
		// One that is alone may have been one of several until now.
		for _, c := range m.claims[name] {
			origins[c.id] = struct{}{}
		}
	}
}

// claimOf returns the claim of an origin to a name, if it is one to be copied.
func (m *Memo) claimOf(s *Snapshot, id ID) (claim, bool) {
	c := claim{id: id, prefix: globalPrefix}
	if id.Global() {
		parts := m.parts(s, id.Key)
		if len(parts) == 0 {
			return claim{}, false
		}
		c.local = slices.ContainsFunc(parts, func(pt *part) bool { return pt.local })
	} else {
		svc := m.copied(s, setID{id.Cluster, mirrored}, id.Key)
		if svc == nil {
			return claim{}, false
		}
		c.prefix, c.created = s.sets[setID{id.Cluster, mirrored}].cluster.prefix, svc.Created
	}
	c.holds = m.holds(s, c)
	return c, true
}

// copied returns an origin, unless it isn't there, not known, or rejected.
func (m *Memo) copied(s *Snapshot, id setID, k Key) *Origin {
	set := s.sets[id]
	if set == nil || !set.synced {
		return nil
	}
	if o := set.origins[k]; o != nil && o.Reject == "" && !m.waits(id, k) {
		return o
	}
	return nil
}

// holds reports whether an origin has the name that it claims: the local object
// says so, and while there is none, what was decided before.
func (m *Memo) holds(s *Snapshot, c claim) bool {
	name := c.name()
	if o := s.local.services.Get(name); o != nil {
		if o.global || c.id.Global() {
			return o.ours && o.global && c.id.Global() && o.id.Key == c.id.Key
		}
		return o.ours && o.id.Key == c.id.Key && s.clusterOf(o) == c.id.Cluster
	}
	before := m.services[name]
	return before != nil && before.Origin == c.id
}

// name returns what an origin is called here, and who has the name that it claims
// instead of it. Empty: it is not copied.
func (m *Memo) name(id ID) (name string, instead *ID) {
	c, ok := m.claimed[id]
	if !ok {
		return "", nil
	}
	rivals := m.claims[c.name()]
	rank := slices.IndexFunc(rivals, func(o claim) bool { return o.id == id })
	if rank > 0 {
		first := rivals[0].id // rivals change, and a Service doesn't
		instead = &first
	}
	return c.nameOf(rank), instead
}

// compute makes the services of origins anew, and adds their names, those that they
// had before included.
func (m *Memo) compute(s *Snapshot, origins map[ID]struct{}, names map[string]struct{}) {
	ids := slices.SortedFunc(maps.Keys(origins), compareIDs)
	before := map[ID]*Service{}
	for _, id := range ids {
		if b := m.byOrigin[id]; b != nil {
			before[id] = b
			names[b.Name] = struct{}{}
			delete(m.byOrigin, id)
			if m.services[b.Name] == b {
				delete(m.services, b.Name)
			}
		}
	}
	var now []*Service
	for _, id := range ids {
		name, instead := m.name(id)
		if name == "" {
			if id.Global() {
				delete(m.ranks, id.Key)
			}
			continue
		}
		w := &Service{Name: name, Origin: id, Instead: instead}
		now = append(now, w)
		names[name] = struct{}{}
		m.services[name], m.byOrigin[id] = w, w
	}
	b := m.builder(s, now, before)
	for _, w := range now {
		b.begin(w, before[w.Origin])
		if w.Origin.Global() {
			b.global(w)
		} else {
			b.mirror(w)
		}
		b.end(w)
	}
}

func compareIDs(a, b ID) int {
	return cmp.Or(
		cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name),
	)
}

// mirror fills in a service that is the mirror of one origin.
func (b *builder) mirror(w *Service) {
	set := b.s.sets[setID{w.Origin.Cluster, mirrored}]
	w.prefix, w.Spec = set.cluster.prefix, set.origins[w.Origin.Key].Spec
	for _, sl := range set.slices[w.Origin.Key] {
		b.add(w, &set.cluster, sl, nil)
	}
}

// parts returns what each cluster adds to a global service, in the order of
// compareParts.
func (m *Memo) parts(s *Snapshot, k Key) []*part {
	var parts []*part
	accepted := m.accepted(s, k)
	for _, id := range s.order {
		if id.kind != merged {
			continue
		}
		if o := m.copied(s, id, k); o != nil {
			set := s.sets[id]
			parts = append(parts, &part{
				cluster: id.cluster, origin: o, local: set.cluster.local, stale: set.stale, drained: s.drained[id.cluster],
				rank: slices.Index(accepted, id.cluster) + 1, slices: set.slices[k],
			})
		}
	}
	if own, missing, unheard := remembered(s, k); len(missing) > 0 {
		parts = append(parts, &part{
			origin:     &Origin{Key: k, Spec: own.spec, LocalFirst: own.localFirst},
			remembered: true, lingers: !unheard,
		})
	}
	slices.SortFunc(parts, compareParts)
	return parts
}

// remembered returns the local service of a global one, which of its clusters are
// away, and whether any of those is still configured.
func remembered(s *Snapshot, k Key) (own *ObservedService, missing []string, unheard bool) {
	if own = s.local.global(k); own == nil {
		return nil, nil, false
	}
	for _, c := range own.clusters {
		if why, until := s.away(c, merged); why != "" {
			missing = append(missing, c)
			unheard = unheard || until.IsZero()
		}
	}
	return own, missing, unheard
}

// accepted returns the remotes of a global service in the order in which they
// were accepted: as the local object says, which outlives this process, and then
// as was decided before, which that may not say yet, or for a moment not be there.
func (m *Memo) accepted(s *Snapshot, k Key) []string {
	before := m.ranks[k]
	own := s.local.global(k)
	if own == nil || len(own.accepted) == 0 {
		return before
	}
	all := slices.Clone(own.accepted)
	for _, cluster := range before {
		if !slices.Contains(all, cluster) {
			all = append(all, cluster)
		}
	}
	return all
}

// accept returns the order of acceptance with those that a service has now. Who
// isn't there any more has lost its place; a cluster that has not been heard of
// since start keeps it. Versions before left no order: then there is none until
// all have been heard of.
func accept(before []string, parts []*part, missing []string) []string {
	if len(before) == 0 && len(missing) > 0 {
		return nil
	}
	there := func(cluster string) bool {
		return slices.Contains(missing, cluster) ||
			slices.ContainsFunc(parts, func(pt *part) bool { return pt.cluster == cluster && !pt.remembered && !pt.local })
	}
	var now []string
	add := func(cluster string) {
		if there(cluster) && !slices.Contains(now, cluster) {
			now = append(now, cluster)
		}
	}
	for _, cluster := range before {
		add(cluster)
	}
	for _, cluster := range missing {
		add(cluster)
	}
	for _, pt := range parts {
		add(pt.cluster)
	}
	return now
}

// global fills in a service that is merged.
func (b *builder) global(w *Service) {
	m, s, k := b.m, b.s, w.Origin.Key
	parts := m.parts(s, k)
	own, missing, _ := remembered(s, k)
	w.prefix = globalPrefix
	w.Spec, w.LocalFirst, w.Conflicts = merge(parts, running(own, b.before))
	w.Clusters = append(w.Clusters, missing...)
	for _, pt := range parts {
		if !pt.remembered {
			w.Clusters = append(w.Clusters, pt.cluster)
		}
	}
	slices.Sort(w.Clusters)
	remote := slices.DeleteFunc(slices.Clone(missing), func(c string) bool {
		set := s.sets[setID{c, merged}]
		return set != nil && set.cluster.local
	})
	if w.Accepted = accept(m.accepted(s, k), parts, remote); len(w.Accepted) > 0 {
		m.ranks[k] = w.Accepted
	} else {
		delete(m.ranks, k)
	}

	// Those that are only remembered may be stale as well.
	candidates := slices.DeleteFunc(slices.Clone(parts), func(pt *part) bool { return pt.remembered })
	for _, c := range missing {
		set := s.sets[setID{c, merged}]
		candidates = append(candidates, &part{cluster: c, remembered: true, stale: set != nil && set.stale, drained: s.drained[c]})
	}
	counting, others := counting(candidates, func(pt *part) bool { return ready(s, pt) > 0 })
	for _, pt := range others {
		if w.Outdated = w.Outdated || pt.stale; pt.drained {
			w.Drained = append(w.Drained, pt.cluster)
		}
	}
	slices.Sort(w.Drained)
	for _, pt := range counting {
		if pt.remembered {
			w.keeps = append(w.keeps, pt.cluster)
			continue
		}
		var zones []string
		switch {
		case w.LocalFirst && pt.local && ready(s, pt) < cmp.Or(pt.origin.LocalMinimum, s.localMinimum):
			// An endpoint that is ready without hints has kube-proxy use them all.
		case w.LocalFirst && pt.local:
			zones = s.zones
		case w.LocalFirst:
			zones = []string{remoteZone}
		}
		for _, sl := range pt.slices {
			b.add(w, &s.sets[setID{pt.cluster, merged}].cluster, sl, zones)
		}
	}
}

// running returns whether a global service that there is has no address; nil: there
// is none.
func running(own *ObservedService, before *Service) *bool {
	switch {
	case own != nil:
		return &own.spec.Headless
	case before != nil:
		return &before.Spec.Headless
	}
	return nil
}

// ready returns how many endpoints of a part take requests.
func ready(s *Snapshot, pt *part) (n int) {
	if pt.remembered {
		return 0
	}
	c := &s.sets[setID{pt.cluster, merged}].cluster
	for _, sl := range pt.slices {
		for i := range sl.Endpoints {
			e := &sl.Endpoints[i]
			if e.Ready != False && rejection(e.Address, sl.Family, c.subnets) == "" && !s.withdrawn(c, e) {
				n++
			}
		}
	}
	return n
}
