package mirror

import "slices"

// plan keeps what must be here for what is there. It computes anew only what
// an update may have changed; the outcome is that of computing everything.
type plan struct {
	sets    map[setID]*set
	order   []setID // of configuration
	zones   []string
	own     *holdings
	targets map[ID]*target
	names   map[string]*target
	claims  map[string][]claim // by the name that they are for, sorted
	claimed map[ID]claim
	ranks   map[Key][]string // remotes of global services, the first accepted first
}

func newPlan(clusters []clusterConfig, kinds func(clusterConfig) []setKind, own *holdings) *plan {
	p := &plan{
		sets: map[setID]*set{}, own: own,
		targets: map[ID]*target{}, names: map[string]*target{},
		claims: map[string][]claim{}, claimed: map[ID]claim{}, ranks: map[Key][]string{},
	}
	for _, c := range clusters {
		for _, k := range kinds(c) {
			id := setID{c.name, k}
			p.order = append(p.order, id)
			p.sets[id] = &set{
				cluster: c, kind: k,
				services: newTracker(func(s *Service) Key { return s.Key }),
				slices:   newTracker(func(s *Slice) sliceKey { return sliceKey{s.Service.Namespace, s.Name} }),
				of:       map[Key]map[string]*Slice{},
			}
		}
	}
	return p
}

// update takes in the views of all sets, the zones of local nodes (the empty
// one stands for nodes without), and the global services among the local ones
// that changed. It returns the names of targets that may differ from before,
// and whether anything else may as well: what was held may be so no more.
func (p *plan) update(views map[setID]setView, zones []string, changed map[Key]struct{}) (names map[string]struct{}, everything bool) {
	dirty := map[ID]struct{}{}
	for k := range changed {
		dirty[ID{Key: k}] = struct{}{}
	}
	everything = !slices.Equal(zones, p.zones)
	p.zones = zones
	for _, id := range p.order {
		p.sets[id].update(views[id], dirty, &everything)
	}
	if everything {
		for _, s := range p.sets {
			for k := range s.services.seen {
				dirty[s.id(k)] = struct{}{}
			}
		}
		for _, k := range p.own.globals() {
			dirty[ID{Key: k}] = struct{}{}
		}
	}
	p.reclaim(dirty)
	return p.compute(dirty), everything
}

// reclaim brings the claims for names up to date, and adds those to dirty
// whose name changes with it.
func (p *plan) reclaim(dirty map[ID]struct{}) {
	touched := map[string]struct{}{}
	for id := range dirty {
		before, had := p.claimed[id]
		now, has := p.claimOf(id)
		if had == has && before == now {
			continue
		}
		if had {
			name := before.name()
			p.claims[name] = slices.DeleteFunc(p.claims[name], func(c claim) bool { return c.id == id })
			if len(p.claims[name]) == 0 {
				delete(p.claims, name)
			}
			delete(p.claimed, id)
			touched[name] = struct{}{}
		}
		if has {
			name := now.name()
			p.claims[name] = append(p.claims[name], now)
			p.claimed[id] = now
			touched[name] = struct{}{}
		}
	}
	for name := range touched {
		for i, c := range p.claims[name] {
			if c.id.Global() {
				c.holds = p.hasName(c)
				p.claims[name][i], p.claimed[c.id] = c, c
			}
		}
		slices.SortFunc(p.claims[name], compareClaims)
		// One that is alone may have been one of several until now.
		for _, c := range p.claims[name] {
			dirty[c.id] = struct{}{}
		}
	}
}

// claimOf returns the wish of an origin for a name, if it is one to be copied.
func (p *plan) claimOf(id ID) (claim, bool) {
	if id.Global() {
		c := claim{id: id, prefix: globalPrefix}
		parts := p.parts(id.Key)
		c.local = slices.ContainsFunc(parts, func(pt *part) bool { return pt.local })
		c.holds = p.hasName(c)
		return c, len(parts) > 0
	}
	s := p.sets[setID{id.Cluster, mirrorSet}]
	if s == nil || !s.known {
		return claim{}, false
	}
	svc := s.services.seen[id.Key]
	if svc == nil || svc.Reject != "" {
		return claim{}, false
	}
	return claim{id: id, prefix: s.cluster.prefix, svc: svc}, true
}

// hasName reports whether a global service has the name that it is for: the local
// object says so, and while there is none, what was decided before.
func (p *plan) hasName(c claim) bool {
	name := c.name()
	if own := p.own.services.get(name); own != nil {
		return own.ours && own.global && own.id.Key == c.id.Key
	}
	before := p.names[name]
	return before != nil && before.id == c.id
}

// name returns what an origin is called here, and whose wish for the same name
// was granted instead of its own. Empty: it is not copied.
func (p *plan) name(id ID) (name string, instead *ID) {
	c, ok := p.claimed[id]
	if !ok {
		return "", nil
	}
	rivals := p.claims[c.name()]
	rank := slices.IndexFunc(rivals, func(o claim) bool { return o.id == id })
	if rank > 0 {
		instead = &rivals[0].id
	}
	return c.nameOf(rank), instead
}

// compute makes the targets of origins anew and returns their names, those
// that they had before included.
func (p *plan) compute(dirty map[ID]struct{}) map[string]struct{} {
	changed := map[string]struct{}{}
	for id := range dirty {
		if before := p.targets[id]; before != nil {
			changed[before.name] = struct{}{}
			delete(p.targets, id)
			if p.names[before.name] == before {
				delete(p.names, before.name)
			}
		}
	}
	for id := range dirty {
		name, instead := p.name(id)
		if name == "" {
			if id.Global() {
				delete(p.ranks, id.Key)
			}
			continue
		}
		t := &target{name: name, id: id, instead: instead}
		if id.Global() {
			p.fillGlobal(t)
		} else {
			p.fillMirror(t)
		}
		changed[name] = struct{}{}
		p.targets[id], p.names[name] = t, t
	}
	return changed
}

func (p *plan) fillMirror(t *target) {
	s := p.sets[setID{t.id.Cluster, mirrorSet}]
	svc := s.services.seen[t.id.Key]
	t.prefix, t.spec = s.cluster.prefix, svc.Spec
	for _, sl := range s.of[t.id.Key] {
		t.add(s.cluster, sl, nil)
	}
	t.sort()
}

// parts returns what each cluster adds to a global service, in the order of
// compareParts.
func (p *plan) parts(k Key) []*part {
	var parts []*part
	accepted := p.accepted(k)
	for _, id := range p.order {
		s := p.sets[id]
		if id.kind != globalSet || !s.known {
			continue
		}
		svc := s.services.seen[k]
		if svc == nil || svc.Reject != "" {
			continue
		}
		pt := &part{cluster: id.cluster, svc: svc, local: s.cluster.local, stale: s.stale}
		pt.rank = slices.Index(accepted, id.cluster) + 1
		for _, sl := range s.of[k] {
			pt.slices = append(pt.slices, sl)
		}
		parts = append(parts, pt)
	}
	if own, missing := p.remembered(k); len(missing) > 0 {
		parts = append(parts, &part{
			svc:        &Service{Key: k, Spec: own.spec, LocalFirst: own.localFirst},
			remembered: true,
		})
	}
	slices.SortFunc(parts, compareParts)
	return parts
}

// remembered returns the local service of a global one, and which of its
// clusters have not been heard of since start.
func (p *plan) remembered(k Key) (own *ownService, missing []string) {
	own = p.own.global(k)
	if own == nil {
		return nil, nil
	}
	for _, c := range own.clusters {
		if s := p.sets[setID{c, globalSet}]; s != nil && !s.known {
			missing = append(missing, c)
		}
	}
	return own, missing
}

// accepted returns the remotes of a global service in the order in which they
// were accepted: as the local object says, which outlives this process, and then
// as was decided before, which that may not say yet, or for a moment not be there.
func (p *plan) accepted(k Key) []string {
	before := p.ranks[k]
	own := p.own.global(k)
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

// accept returns the order of acceptance with those that a target has now. Who
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

func (p *plan) fillGlobal(t *target) {
	parts := p.parts(t.id.Key)
	_, missing := p.remembered(t.id.Key)
	t.prefix = globalPrefix
	t.spec, t.localFirst, t.conflicts = merge(parts)
	t.clusters = append(t.clusters, missing...)
	for _, pt := range parts {
		if !pt.remembered {
			t.clusters = append(t.clusters, pt.cluster)
		}
	}
	slices.Sort(t.clusters)
	away := slices.DeleteFunc(slices.Clone(missing), func(c string) bool { return p.sets[setID{c, globalSet}].cluster.local })
	if t.accepted = accept(p.accepted(t.id.Key), parts, away); len(t.accepted) > 0 {
		p.ranks[t.id.Key] = t.accepted
	} else {
		delete(p.ranks, t.id.Key)
	}

	// Those that are only remembered may be stale as well.
	candidates := slices.DeleteFunc(slices.Clone(parts), func(pt *part) bool { return pt.remembered })
	for _, c := range missing {
		candidates = append(candidates, &part{cluster: c, remembered: true, stale: p.sets[setID{c, globalSet}].stale})
	}
	counting, outdated := withoutStale(candidates, p.ready)
	t.outdated = outdated
	for _, pt := range counting {
		if pt.remembered {
			t.keeps = append(t.keeps, pt.cluster)
			continue
		}
		var zones []string
		switch {
		case t.localFirst && pt.local:
			zones = p.zones
		case t.localFirst:
			zones = []string{remoteZone}
		}
		for _, sl := range pt.slices {
			t.add(p.sets[setID{pt.cluster, globalSet}].cluster, sl, zones)
		}
	}
	t.sort()
}

// ready reports whether a part has an endpoint that takes requests.
func (p *plan) ready(pt *part) bool {
	if pt.remembered {
		return false
	}
	subnets := p.sets[setID{pt.cluster, globalSet}].cluster.subnets
	for _, sl := range pt.slices {
		for i := range sl.Endpoints {
			e := &sl.Endpoints[i]
			if e.Ready != False && refusal(e.Address, sl.Family, subnets) == "" {
				return true
			}
		}
	}
	return false
}

// wants reports whether a slice is one that any target must have.
func (p *plan) wants(slice string) bool {
	const suffix = len("-") + longHash
	if len(slice) <= suffix {
		return false
	}
	t := p.names[slice[:len(slice)-suffix]]
	return t != nil && slices.ContainsFunc(t.slices, func(w wantSlice) bool { return w.name == slice })
}
