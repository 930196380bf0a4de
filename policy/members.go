package policy

import (
	"cmp"
	"container/list"
	"net/netip"
	"slices"
	"time"
)

// Members has the desired addresses of each set of a remote. It is updated pod by pod, and
// returns the changed sets. It isn't safe for concurrent use.
//
// An address is in a set as long as a pod of the set has it. Sets and addresses are admitted
// in the order of arrival; those beyond the rules wait, in order, until an admitted one is
// removed.
//
// When a pod's label changes, its addresses move: they are held in the old set until the new
// one has them, for at most holdLimit. This applies to the same pod by UID only: an address
// that another pod has by now isn't held.
type Members struct {
	rules   Rules
	pods    int
	sets    map[Identity]*memberSet
	moves   map[*Pod][]*move                // by the current pod
	leaving map[Identity]map[*move]struct{} // by old set
	coming  map[Identity]map[*move]struct{} // by new set
	skipped map[Reason]map[*Pod]struct{}
	touched map[Identity]struct{}

	admitted, addresses         int // numbers of admitted sets and addresses
	waitingSets, waitingEntries list.List
}

// memberSet is a set of pods.
type memberSet struct {
	id      Identity
	entries map[netip.Addr]*entry
	waits   *list.Element // nil: admitted
}

// entry is an address of a set.
type entry struct {
	set   *memberSet
	addr  netip.Addr
	pod   *Pod              // a pod with the address; nil: none
	more  map[*Pod]struct{} // further pods
	in    bool
	waits *list.Element // nil: admitted, or its set isn't
}

func (e *entry) put(p *Pod) {
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
func (e *entry) drop(p *Pod) bool {
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

// NewMembers returns the members of a remote without pods.
func NewMembers(rules Rules) *Members {
	rules.MaxSets = cmp.Or(rules.MaxSets, DefaultMaxSets)
	rules.MaxAddresses = cmp.Or(rules.MaxAddresses, DefaultMaxAddresses)
	return &Members{
		rules: rules, sets: map[Identity]*memberSet{}, moves: map[*Pod][]*move{},
		leaving: map[Identity]map[*move]struct{}{}, coming: map[Identity]map[*move]struct{}{},
		skipped: map[Reason]map[*Pod]struct{}{}, touched: map[Identity]struct{}{},
	}
}

// identity returns the set of a pod.
func (m *Members) identity(p *Pod) Identity {
	return Identity{Cluster: m.rules.Cluster, Namespace: p.Namespace, Name: p.Set}
}

// Update replaces a pod; nil: none.
func (m *Members) Update(before, after *Pod, now time.Time) {
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
	m.move(before, after, had, has, now)
	if before != nil {
		m.pods--
		m.remove(before, had)
	}
}

// leave returns the number of a pod's addresses that will be in its set no more.
func (m *Members) leave(p *Pod, had, has []netip.Addr) (n int) {
	for _, addr := range had {
		if e := m.sets[m.identity(p)].entries[addr]; e.in && e.pod == p && len(e.more) == 0 && !slices.Contains(has, addr) {
			n++
		}
	}
	return n
}

// Touched returns the sets that may have changed since the last call, in order.
func (m *Members) Touched() []Identity {
	ids := make([]Identity, 0, len(m.touched))
	for id := range m.touched {
		ids = append(ids, id)
	}
	clear(m.touched)
	slices.SortFunc(ids, Identity.compare)
	return ids
}

// Addrs returns the desired addresses of a set, sorted; none: it must not exist.
func (m *Members) Addrs(id Identity) []netip.Addr {
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

func (m *Members) touch(id Identity) { m.touched[id] = struct{}{} }

func (m *Members) add(p *Pod, addrs []netip.Addr) {
	if len(addrs) > 0 {
		id := m.identity(p)
		s := m.sets[id]
		if s == nil {
			s = &memberSet{id: id, entries: map[netip.Addr]*entry{}}
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
				e = &entry{set: s, addr: addr}
				s.entries[addr] = e
				m.admit(e)
			}
			e.put(p)
		}
	}
	m.judge(p)
}

func (m *Members) remove(p *Pod, addrs []netip.Addr) {
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
