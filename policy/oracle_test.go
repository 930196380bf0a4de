package policy

// The computation of the release before, as an oracle for the one of today.

import (
	"cmp"
	"container/list"
	"fmt"
	"maps"
	"net/netip"
	"slices"
)

// oldMembers has the desired addresses of each set of a remote, as the release before computed them.
type oldMembers struct {
	rules   Rules
	pods    int
	sets    map[Identity]*oldSet
	skipped map[Reason]map[*Pod]struct{}
	touched map[Identity]struct{}

	admitted, addresses         int
	waitingSets, waitingEntries list.List
}

// oldSet is a set of pods.
type oldSet struct {
	id      Identity
	entries map[netip.Addr]*oldEntry
	waits   *list.Element // nil: admitted
}

// oldEntry is an address of a set.
type oldEntry struct {
	set   *oldSet
	addr  netip.Addr
	pod   *Pod              // a pod with the address; nil: none
	more  map[*Pod]struct{} // further pods
	in    bool
	waits *list.Element // nil: admitted, or its set isn't
}

func (e *oldEntry) put(p *Pod) {
	switch {
	case e.pod == nil:
		e.pod = p
	case e.more == nil:
		e.more = map[*Pod]struct{}{p: {}}
	default:
		e.more[p] = struct{}{}
	}
}

// drop removes a pod in constant time, and reports whether there are others.
func (e *oldEntry) drop(p *Pod) bool {
	delete(e.more, p)
	if e.pod == p {
		e.pod = nil
		for other := range e.more {
			e.pod = other
			delete(e.more, other)
			break
		}
	}
	return e.pod != nil
}

// newOldMembers returns the members of a remote without pods.
func newOldMembers(rules Rules) *oldMembers {
	rules.MaxSets = cmp.Or(rules.MaxSets, DefaultMaxSets)
	rules.MaxAddresses = cmp.Or(rules.MaxAddresses, DefaultMaxAddresses)
	return &oldMembers{
		rules: rules, sets: map[Identity]*oldSet{},
		skipped: map[Reason]map[*Pod]struct{}{}, touched: map[Identity]struct{}{},
	}
}

// identity returns the set of a pod.
func (m *oldMembers) identity(p *Pod) Identity {
	return Identity{Cluster: m.rules.Cluster, Namespace: p.Namespace, Name: p.Set}
}

// Update replaces a pod; nil: none.
func (m *oldMembers) Update(before, after *Pod) {
	var had, has []netip.Addr
	if before != nil {
		had, _ = m.rules.admit(before)
	}
	if after != nil {
		m.pods++
		has, _ = m.rules.admit(after)
		// A pod whose addresses change keeps their room, which others may wait for.
		leaving := m.leave(before, had, has)
		m.addresses -= leaving
		m.add(after, has)
		m.addresses += leaving
	}
	if before != nil {
		m.pods--
		m.remove(before, had)
	}
}

// leave returns the number of a pod's addresses that will be in its set no more.
func (m *oldMembers) leave(p *Pod, had, has []netip.Addr) (n int) {
	for _, addr := range had {
		if e := m.sets[m.identity(p)].entries[addr]; e.in && e.pod == p && len(e.more) == 0 && !slices.Contains(has, addr) {
			n++
		}
	}
	return n
}

// Touched returns the sets that may have changed since the last call, in order.
func (m *oldMembers) Touched() []Identity {
	ids := make([]Identity, 0, len(m.touched))
	for id := range m.touched {
		ids = append(ids, id)
	}
	clear(m.touched)
	slices.SortFunc(ids, Identity.compare)
	return ids
}

// Addrs returns the desired addresses of a set, sorted; none: it must not exist.
func (m *oldMembers) Addrs(id Identity) []netip.Addr {
	s := m.sets[id]
	if s == nil {
		return nil
	}
	addrs := make([]netip.Addr, 0, len(s.entries))
	for addr, e := range s.entries {
		if e.in {
			addrs = append(addrs, addr)
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return addrs
}

func (m *oldMembers) touch(id Identity) { m.touched[id] = struct{}{} }

func (m *oldMembers) add(p *Pod, addrs []netip.Addr) {
	if len(addrs) > 0 {
		id := m.identity(p)
		s := m.sets[id]
		if s == nil {
			s = &oldSet{id: id, entries: map[netip.Addr]*oldEntry{}}
			m.sets[id] = s
			if m.admitted < m.rules.MaxSets {
				m.admitted++
			} else {
				s.waits = m.waitingSets.PushBack(s)
			}
		}
		for _, addr := range addrs {
			e := s.entries[addr]
			if e == nil {
				e = &oldEntry{set: s, addr: addr}
				s.entries[addr] = e
				m.admit(e)
			}
			e.put(p)
		}
	}
	m.judge(p)
}

func (m *oldMembers) remove(p *Pod, addrs []netip.Addr) {
	for reason, pods := range m.skipped {
		delete(pods, p)
		if len(pods) == 0 {
			delete(m.skipped, reason)
		}
	}
	s := m.sets[m.identity(p)]
	for _, addr := range addrs {
		e := s.entries[addr]
		if e.drop(p) {
			continue
		}
		delete(s.entries, addr)
		switch {
		case e.in:
			m.addresses--
			m.touch(s.id)
		case e.waits != nil:
			m.waitingEntries.Remove(e.waits)
		}
	}
	if s != nil && len(s.entries) == 0 {
		delete(m.sets, s.id)
		if s.waits != nil {
			m.waitingSets.Remove(s.waits)
		} else {
			m.admitted--
		}
	}
	m.fill()
}

// admit adds an address to its set, or to the waiting ones beyond the bounds.
func (m *oldMembers) admit(e *oldEntry) {
	switch {
	case e.set.waits != nil:
	case m.addresses < m.rules.MaxAddresses:
		m.addresses++
		e.in = true
		m.touch(e.set.id)
	default:
		e.waits = m.waitingEntries.PushBack(e)
	}
}

// fill admits waiting sets and addresses in order, within the bounds.
func (m *oldMembers) fill() {
	for m.admitted < m.rules.MaxSets && m.waitingSets.Len() > 0 {
		s, _ := m.waitingSets.Remove(m.waitingSets.Front()).(*oldSet)
		s.waits = nil
		m.admitted++
		for _, e := range s.entries {
			m.admit(e)
			m.judgeAll(e)
		}
	}
	for m.addresses < m.rules.MaxAddresses && m.waitingEntries.Len() > 0 {
		e, _ := m.waitingEntries.Remove(m.waitingEntries.Front()).(*oldEntry)
		e.waits = nil
		m.admit(e)
		m.judgeAll(e)
	}
}

func (m *oldMembers) judgeAll(e *oldEntry) {
	m.judge(e.pod)
	for p := range e.more {
		m.judge(p)
	}
}

// judge records why a pod is in no set, or not with all of its addresses.
func (m *oldMembers) judge(p *Pod) {
	addrs, reason := m.rules.admit(p)
	if s := m.sets[m.identity(p)]; s != nil && len(addrs) > 0 && reason == "" {
		switch {
		case s.waits != nil:
			reason = ReasonTooManySets
		case slices.ContainsFunc(addrs, func(addr netip.Addr) bool { return !s.entries[addr].in }):
			reason = ReasonTooManyAddresses
		}
	}
	for other, skipped := range m.skipped {
		if other != reason {
			delete(skipped, p)
		}
		if len(skipped) == 0 {
			delete(m.skipped, other)
		}
	}
	if reason == "" {
		return
	}
	if m.skipped[reason] == nil {
		m.skipped[reason] = map[*Pod]struct{}{}
	}
	m.skipped[reason][p] = struct{}{}
}

// oldView is the observed state of one set of a remote.
type oldView struct {
	ID Identity
	// Addrs are those of its pods, Held those that may stay because they are moving to
	// another set; both sorted and without duplicates.
	Addrs, Held []netip.Addr
	// Stale: existing objects become empty.
	Stale bool
	// Have are the objects of the set, by name.
	Have map[string]*Observed
	// Names are those of objects that don't exist yet, by shard.
	Names map[int]string
	// Taken reports whether another set or a foreign object has a name.
	Taken func(name string) bool
	// Size is the maximum number of nets per object; 0: DefaultShardSize.
	Size int
}

// oldDesired returns the desired objects of a set, by shard. It stores the names of new ones in
// v.Names.
//
// A set retains its objects. A new one gets its natural name, or one with a hash if another
// object has that name. Sets are never merged, and foreign objects never overwritten. It
// returns an error if all names for an object are taken.
func oldDesired(v *oldView) ([]Object, error) {
	var objects []Object
	if v.Stale {
		for _, name := range slices.Sorted(maps.Keys(v.Have)) {
			objects = append(objects, Object{Name: name, Identity: v.ID})
		}
		return objects, nil
	}
	addrs := v.Addrs
	for _, o := range v.Have {
		// Hold only addresses that an object still has.
		for _, addr := range v.Held {
			if _, there := slices.BinarySearchFunc(o.Addrs, addr, netip.Addr.Compare); there {
				if at, in := slices.BinarySearchFunc(addrs, addr, netip.Addr.Compare); !in {
					addrs = slices.Insert(slices.Clone(addrs), at, addr)
				}
			}
		}
	}
	if len(addrs) == 0 {
		clear(v.Names)
		return nil, nil
	}
	size := cmp.Or(v.Size, DefaultShardSize)
	names := v.keep(ceilDiv(len(addrs), size))
	var err error
	given := map[int]string{}
	for i, part := range shard(addrs, v.current(names), size) {
		if len(part) == 0 {
			continue
		}
		name, there := names[i+1]
		if !there {
			if name = v.name(i + 1); name == "" {
				err = fmt.Errorf("all names are taken for the set %v", v.ID)
				continue
			}
			given[i+1] = name
		}
		objects = append(objects, Object{Name: name, Identity: v.ID, Addrs: part})
	}
	clear(v.Names)
	maps.Copy(v.Names, given)
	return objects, err
}

// keep returns the names of the set's objects by shard. It ignores objects with a name that
// the set never uses.
func (v *oldView) keep(needed int) map[int]string {
	shards := map[int]string{}
	for _, name := range slices.Sorted(maps.Keys(v.Have)) {
		shard := v.ID.shardOf(name, max(2*needed, manyShards))
		if shard == 0 {
			continue
		}
		// Of two objects for one shard, the one with the natural name stays.
		if other, doubled := shards[shard]; doubled && other == v.ID.Natural(shard) {
			continue
		}
		shards[shard] = name
	}
	return shards
}

// current returns the addresses of the objects by shard.
func (v *oldView) current(names map[int]string) [][]netip.Addr {
	last := 0
	for shard := range names {
		last = max(last, shard)
	}
	current := make([][]netip.Addr, last)
	for shard, name := range names {
		current[shard-1] = v.Have[name].Addrs
	}
	return current
}

// name returns the name of a new object; empty: all are taken. A name that was chosen before
// stays unless another object has it.
func (v *oldView) name(shard int) string {
	if name, given := v.Names[shard]; given && !v.Taken(name) {
		return name
	}
	for try := range maxCandidates {
		if name := v.ID.candidate(shard, try); !v.Taken(name) {
			return name
		}
	}
	return ""
}
