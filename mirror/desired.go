package mirror

import (
	"maps"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// Memo caches the results of Desired between snapshots, so that it only recomputes what may
// have changed. The result is that of computing everything, as long as what was desired
// before has been written.
type Memo struct {
	services map[string]*Service // by name
	byOrigin map[origin.ID]*Service
	claims   map[string][]claim // by claimed name, sorted
	claimed  map[origin.ID]claim
	ranks    map[origin.Key][]string // remotes of global services, the first accepted first
	quotas   map[string]*quota       // by remote
	// more: another pass may find quota for further services.
	more bool
}

// NewMemo returns an empty memo.
func NewMemo() *Memo { return &Memo{} }

// Desired returns the desired state of all local services that may have changed since the
// memo's last snapshot, sorted by name; with a new memo, all of them.
func Desired(s *Snapshot, m *Memo) []Service {
	origins, names, all := maps.Clone(s.origins), maps.Clone(s.names), s.all
	if m.services == nil {
		*m = Memo{
			services: map[string]*Service{}, byOrigin: map[origin.ID]*Service{}, claims: map[string][]claim{},
			claimed: map[origin.ID]claim{}, ranks: map[origin.Key][]string{}, quotas: newQuotas(s),
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
			origins[origin.ID{Key: k}] = struct{}{}
		}
		for k := range s.local.imported.keys() {
			origins[origin.ID{Cluster: origin.ClusterSet, Key: k}], names[k.String()] = struct{}{}, struct{}{}
		}
		maps.Copy(names, s.local.names())
	}
	for name := range names {
		if rivals := m.claims[name]; len(rivals) > 1 {
			// The name may have another holder by now.
			for _, c := range rivals {
				origins[c.id] = struct{}{}
			}
		}
	}
	m.update(s, origins, names)
	// There may be quota for omitted services by now.
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

// update recomputes origins, and adds the names of local services that change.
func (m *Memo) update(s *Snapshot, origins map[origin.ID]struct{}, names map[string]struct{}) {
	m.admit(s, origins)
	m.reclaim(s, origins)
	m.compute(s, origins, names)
}

// reclaim updates the claims of origins, and adds origins whose names change by that.
func (m *Memo) reclaim(s *Snapshot, origins map[origin.ID]struct{}) {
	touched := map[string]struct{}{}
	for id := range origins {
		if id.Import() {
			continue // it has the name of its exports
		}
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
		// A single claim may have been one of several before.
		for _, c := range m.claims[name] {
			origins[c.id] = struct{}{}
		}
	}
}

// claimOf returns the claim of an origin to a name, if the origin is copied.
func (m *Memo) claimOf(s *Snapshot, id origin.ID) (claim, bool) {
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

// copied returns an origin, or nil if it doesn't exist, isn't synced, or is rejected.
func (m *Memo) copied(s *Snapshot, id setID, k origin.Key) *origin.Service {
	set := s.sets[id]
	if set == nil || !set.synced {
		return nil
	}
	if o := set.origins[k]; o != nil && o.Reject == "" && !m.waits(id, k) {
		return o
	}
	return nil
}

// holds reports whether an origin has the name that it claims: by the local object, or
// without one by the last decision.
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

// name returns the local name of an origin, and the origin that has the claimed name
// instead, if any. Empty: it is not copied.
func (m *Memo) name(s *Snapshot, id origin.ID) (name string, instead *origin.ID) {
	if id.Import() {
		return s.importName(m, id.Key), nil
	}
	c, ok := m.claimed[id]
	if !ok {
		return "", nil
	}
	rivals := m.claims[c.name()]
	rank := slices.IndexFunc(rivals, func(o claim) bool { return o.id == id })
	if rank > 0 {
		first := rivals[0].id // a copy: rivals is modified, a Service must not be
		instead = &first
	}
	return c.nameOf(rank), instead
}

// compute recomputes the services of origins, and adds their new and previous names.
func (m *Memo) compute(s *Snapshot, origins map[origin.ID]struct{}, names map[string]struct{}) {
	ids := slices.SortedFunc(maps.Keys(origins), origin.CompareIDs)
	before := map[origin.ID]*Service{}
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
		name, instead := m.name(s, id)
		if name == "" {
			switch {
			case id.Global():
				delete(m.ranks, id.Key)
			case id.Import() && s.importsKnown:
				s.leaveImport(id.Key)
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
		switch {
		case w.Origin.Global():
			b.global(w)
		case w.Origin.Import():
			b.imported(w)
		default:
			b.mirror(w)
		}
		b.end(w)
	}
}

// mirror fills in the mirror of one origin.
func (b *builder) mirror(w *Service) {
	set := b.s.sets[setID{w.Origin.Cluster, mirrored}]
	w.prefix, w.Spec = set.cluster.prefix, set.origins[w.Origin.Key].Spec
	for _, sl := range set.slices[w.Origin.Key] {
		b.add(w, &set.cluster, sl, nil)
	}
}

// parts returns the parts of a global service by cluster, in the order of compareParts.
func (m *Memo) parts(s *Snapshot, k origin.Key) []*part {
	var parts []*part
	accepted := m.accepted(s, k)
	for _, id := range s.order {
		if id.kind != merged {
			continue
		}
		if o := m.copied(s, id, k); o != nil {
			set := s.sets[id]
			parts = append(parts, &part{
				set: set, cluster: id.cluster, origin: o, local: set.cluster.local, stale: set.stale, drained: s.drained[id.cluster],
				rank: slices.Index(accepted, id.cluster) + 1, slices: set.slices[k],
			})
		}
	}
	if own, missing, configured := remembered(s, k); len(missing) > 0 {
		parts = append(parts, &part{
			origin:     &origin.Service{Key: k, Spec: own.spec, LocalFirst: own.localFirst},
			remembered: true, unconfigured: !configured,
		})
	}
	slices.SortFunc(parts, compareParts)
	return parts
}

// remembered returns the local object of a global service, its clusters whose state is
// unknown, and whether any of those is still configured.
func remembered(s *Snapshot, k origin.Key) (own *ObservedService, missing []string, configured bool) {
	if own = s.local.global(k); own == nil {
		return nil, nil, false
	}
	for _, c := range own.clusters {
		if why, until := s.unknown(c, merged); why != "" {
			missing = append(missing, c)
			configured = configured || until.IsZero()
		}
	}
	return own, missing, configured
}

// accepted returns the remotes of a global service in the order of their acceptance: those
// in the local object, which survives this process, and then those of the last decision,
// which may not be written yet.
func (m *Memo) accepted(s *Snapshot, k origin.Key) []string {
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

// accept updates the order of acceptance: a cluster without the service loses its position;
// one that hasn't synced since start keeps it. Older versions didn't store the order: then
// there is none until all clusters have synced.
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

// global fills in a global service.
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

	// Clusters that are only remembered may be stale as well.
	candidates := slices.DeleteFunc(slices.Clone(parts), func(pt *part) bool { return pt.remembered })
	for _, c := range missing {
		set := s.sets[setID{c, merged}]
		if set == nil {
			w.Former = append(w.Former, c)
		}
		candidates = append(candidates, &part{cluster: c, remembered: true, stale: set == nil || set.stale, drained: s.drained[c]})
	}
	b.use(w, candidates)
}

// running returns whether the existing global service is headless; nil: it doesn't exist.
func running(own *ObservedService, before *Service) *bool {
	switch {
	case own != nil:
		return &own.spec.Headless
	case before != nil:
		return &before.Spec.Headless
	}
	return nil
}
