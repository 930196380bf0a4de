package mirror

import (
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// clusterConfig is what a plan needs to know of a cluster before it has heard
// of it.
type clusterConfig struct {
	name    string
	local   bool
	prefix  string         // of its mirrors; empty for the local cluster
	subnets []netip.Prefix // of its pods; none: any address
}

// setKind says which of a cluster's services a set holds.
type setKind int

const (
	mirrorSet setKind = iota
	globalSet
)

// setID names the services of one kind of one cluster.
type setID struct {
	cluster string
	kind    setKind
}

// setView is what is known of a set at one moment.
type setView struct {
	// known is whether everything has been read since start.
	known bool
	// stale is whether the cluster has been out of contact for too long.
	stale    bool
	services []*Service
	slices   []*Slice
}

// set is what a plan remembers of a set.
type set struct {
	cluster  clusterConfig
	kind     setKind
	known    bool
	stale    bool
	services *tracker[Key, Service]
	slices   *tracker[sliceKey, Slice]
	of       map[Key]map[string]*Slice // by service and name
}

type sliceKey struct{ namespace, name string }

func (s *set) id(k Key) ID {
	if s.kind == globalSet {
		return ID{Key: k}
	}
	return ID{s.cluster.name, k}
}

// plan keeps what must be here for what is there. It computes anew only what
// an update may have changed; the outcome is that of computing everything.
type plan struct {
	sets    map[setID]*set
	order   []setID // of configuration
	zones   []string
	own     *holdings
	targets map[ID]*target
	names   map[string]*target
	claims  map[string][]claim // by full name, sorted
	claimed map[ID]claim
}

func newPlan(clusters []clusterConfig, kinds func(clusterConfig) []setKind, own *holdings) *plan {
	p := &plan{
		sets: map[setID]*set{}, own: own,
		targets: map[ID]*target{}, names: map[string]*target{},
		claims: map[string][]claim{}, claimed: map[ID]claim{},
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

// update takes in a view of the set, and notes which origins it concerns.
func (s *set) update(v setView, dirty map[ID]struct{}, everything *bool) {
	if v.known != s.known || v.stale != s.stale {
		// Whether the others' endpoints count depends on it.
		*everything = true
	}
	s.known, s.stale = v.known, v.stale
	s.services.update(v.services, func(before, now *Service) {
		if before != nil && now != nil && before.Equal(now) {
			return
		}
		dirty[s.id(either(before, now).Key)] = struct{}{}
	})
	s.slices.update(v.slices, func(before, now *Slice) {
		if before != nil && now != nil && before.Equal(now) {
			s.of[now.Service][now.Name] = now
			return
		}
		if before != nil && (now == nil || now.Service != before.Service) {
			delete(s.of[before.Service], before.Name)
			if len(s.of[before.Service]) == 0 {
				delete(s.of, before.Service)
			}
			dirty[s.id(before.Service)] = struct{}{}
		}
		if now != nil {
			if s.of[now.Service] == nil {
				s.of[now.Service] = map[string]*Slice{}
			}
			s.of[now.Service][now.Name] = now
			dirty[s.id(now.Service)] = struct{}{}
		}
	})
}

func either[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
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
			full := before.full()
			p.claims[full] = slices.DeleteFunc(p.claims[full], func(c claim) bool { return c.id == id })
			if len(p.claims[full]) == 0 {
				delete(p.claims, full)
			}
			delete(p.claimed, id)
			touched[full] = struct{}{}
		}
		if has {
			full := now.full()
			p.claims[full] = append(p.claims[full], now)
			p.claimed[id] = now
			touched[full] = struct{}{}
		}
	}
	for full := range touched {
		slices.SortFunc(p.claims[full], compareClaims)
		if len(p.claims[full]) > 1 {
			for _, c := range p.claims[full] {
				dirty[c.id] = struct{}{}
			}
			continue
		}
		for _, c := range p.claims[full] {
			// It may have been one of several until now.
			dirty[c.id] = struct{}{}
		}
	}
}

// claimOf returns the wish of an origin for a name, if it is one to be copied.
func (p *plan) claimOf(id ID) (claim, bool) {
	if id.Global() {
		return claim{id: id, prefix: globalPrefix}, len(p.parts(id.Key)) > 0
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

// name returns what an origin is called here, and whose wish for the same name
// was granted instead of its own. Empty: it is not copied.
func (p *plan) name(id ID) (name string, instead *ID) {
	c, ok := p.claimed[id]
	if !ok {
		return "", nil
	}
	rivals := p.claims[c.full()]
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

// parts returns what each cluster adds to a global service, the oldest first.
func (p *plan) parts(k Key) []*part {
	var parts []*part
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

// add adds the copy of a slice.
func (t *target) add(c clusterConfig, sl *Slice, zones []string) {
	if t.tallies == nil {
		t.tallies = map[string]tally{}
	}
	sum := t.tallies[c.name]
	defer func() { t.tallies[c.name] = sum }()
	refuse := func(count int, example string) {
		sum.refused += count
		if sum.example == "" || example < sum.example {
			sum.example = example
		}
	}
	if sl.Family != discoveryv1.AddressTypeIPv4 && sl.Family != discoveryv1.AddressTypeIPv6 {
		refuse(len(sl.Endpoints)+len(sl.Unreadable), "slice "+sl.Name+" has addresses of type "+string(sl.Family))
		return
	}
	w := wantSlice{name: sliceName(t.name, c.name, sl), cluster: c.name, source: sl, subnets: c.subnets, zones: zones}
	for _, text := range sl.Unreadable {
		refuse(1, text+": not an address")
	}
	for i := range sl.Endpoints {
		if why := refusal(sl.Endpoints[i].Address, sl.Family, c.subnets); why != "" {
			refuse(1, sl.Endpoints[i].Address.String()+": "+why)
			w.refuse = true
			continue
		}
		sum.taken++
	}
	t.slices = append(t.slices, w)
}

// wants reports whether a slice is one that any target must have.
func (p *plan) wants(slice string) bool {
	const suffix = len("-") + hashLength
	if len(slice) <= suffix {
		return false
	}
	t := p.names[slice[:len(slice)-suffix]]
	return t != nil && slices.ContainsFunc(t.slices, func(w wantSlice) bool { return w.name == slice })
}

// sort puts the slices into an order that doesn't depend on that of a map.
func (t *target) sort() {
	slices.SortFunc(t.slices, func(a, b wantSlice) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
}
