package policy

import (
	"cmp"
	"container/list"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Bounds of a remote where Rules doesn't say. Every set and address costs each node
// of the local cluster memory and time.
const (
	DefaultMaxSets      = 2000
	DefaultMaxAddresses = 100_000
)

// holdLimit is how long an address may stay in a set for the sake of another one
// that can't be written.
const holdLimit = 5 * time.Second

// Rules are the bounds within which a remote is trusted.
type Rules struct {
	// Cluster is the remote's name.
	Cluster string
	// Subnets are where its pods have their addresses; none: anywhere.
	Subnets []netip.Prefix
	// IncludeHostNetwork lets the addresses of pods on the host network in.
	IncludeHostNetwork bool
	// MaxSets bounds how many sets the remote may have, MaxAddresses how many
	// addresses in all of them; 0: the defaults.
	MaxSets, MaxAddresses int
}

// admit returns the addresses with which a pod is in its set, and why others are
// not; empty: nothing is wrong.
func (r *Rules) admit(p *Pod) (addrs []netip.Addr, reason Reason) {
	switch {
	case p.Fault == ReasonBadName:
		return nil, ReasonBadName
	case p.Finished:
		return nil, ReasonFinished
	case p.HostNetwork && !r.IncludeHostNetwork:
		return nil, ReasonHostNetwork
	}
	reason = p.Fault
	for _, addr := range [...]netip.Addr{p.V4, p.V6} {
		switch {
		case !addr.IsValid():
		case !r.inside(addr):
			reason = ReasonOutside
		default:
			addrs = append(addrs, addr)
		}
	}
	if reason == "" && len(addrs) == 0 {
		reason = ReasonNoAddress
	}
	return addrs, reason
}

func (r *Rules) inside(addr netip.Addr) bool {
	return len(r.Subnets) == 0 || slices.ContainsFunc(r.Subnets, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Members knows which addresses each set of a remote must hold. It is told of pods
// one by one, and says which sets that concerns. It isn't safe for concurrent use.
//
// An address is in a set as long as a pod of the set has it. Where there are more
// sets or addresses than the rules allow, those that came first are in; the others
// wait, in their order, until one that is in has gone.
//
// A pod whose label changes is moving: its addresses are held in the set that it
// leaves until the other one has them, for holdLimit at most. Only the same pod, by
// its UID, is: an address that another pod has by now isn't held anywhere.
type Members struct {
	rules   Rules
	pods    int
	sets    map[Identity]*memberSet
	moves   map[*Pod][]*move                // by the pod as it is now
	leaving map[Identity]map[*move]struct{} // by what is left
	coming  map[Identity]map[*move]struct{} // by where to
	skipped map[Reason]map[*Pod]struct{}
	touched map[Identity]struct{}

	admitted, addresses         int // how many are in
	waitingSets, waitingEntries list.List
}

// memberSet is what pods make of a set.
type memberSet struct {
	id      Identity
	entries map[netip.Addr]*entry
	waits   *list.Element // nil: it is in
}

// entry is an address of a set.
type entry struct {
	set   *memberSet
	addr  netip.Addr
	pod   *Pod              // one that has it; nil: none
	more  map[*Pod]struct{} // the others
	in    bool
	waits *list.Element // nil: it is in, or its set isn't
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

// drop reports whether there are others. It takes no longer when there are many.
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

// move is an address on its way from one set to another.
type move struct {
	addr     netip.Addr
	from, to Identity
	until    time.Time
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

// Update takes in what became of a pod; nil: it wasn't there, or is gone.
func (m *Members) Update(before, after *Pod, now time.Time) {
	var had, has []netip.Addr
	if before != nil {
		had, _ = m.rules.admit(before)
	}
	if after != nil {
		m.pods++
		has, _ = m.rules.admit(after)
		m.add(after, has)
	}
	m.move(before, after, had, has, now)
	if before != nil {
		m.pods--
		m.remove(before, had)
	}
}

// Touched returns the sets that may have to hold something else than when it was
// last called, in order.
func (m *Members) Touched() []Identity {
	ids := make([]Identity, 0, len(m.touched))
	for id := range m.touched {
		ids = append(ids, id)
	}
	clear(m.touched)
	slices.SortFunc(ids, Identity.compare)
	return ids
}

// Addrs returns what a set must hold, sorted; none: it must not be.
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

// Held returns what may stay in a set, sorted, because it is on its way to another one
// that doesn't hold it yet, and when that ends for the first of it.
func (m *Members) Held(id Identity, now time.Time, holds func(Identity, netip.Addr) bool) (addrs []netip.Addr, until time.Time) {
	for v := range m.leaving[id] {
		if !now.Before(v.until) || holds(v.to, v.addr) {
			continue
		}
		addrs = append(addrs, v.addr)
		if until.IsZero() || v.until.Before(until) {
			until = v.until
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs), until
}

// Arrived ends the moves of addresses to a set that holds them by now.
func (m *Members) Arrived(id Identity, holds func(netip.Addr) bool) {
	for v := range m.coming[id] {
		if holds(v.addr) {
			m.end(v)
		}
	}
}

// move begins, continues and ends the moves of a pod's addresses.
func (m *Members) move(before, after *Pod, had, has []netip.Addr, now time.Time) {
	if before == nil {
		return
	}
	moves := m.moves[before]
	delete(m.moves, before)
	same := after != nil && before.UID == after.UID && before.UID != 0
	to := Identity{}
	if same {
		to = m.identity(after)
		if from := m.identity(before); from != to {
			for _, addr := range had {
				moves = append(moves, &move{addr: addr, from: from, until: now.Add(holdLimit)})
			}
		}
	}
	var on []*move
	for _, v := range moves {
		m.end(v)
		if !same || v.from == to || !slices.Contains(has, v.addr) || !now.Before(v.until) {
			continue
		}
		v.to = to
		put(m.leaving, v.from, v)
		put(m.coming, v.to, v)
		on = append(on, v)
	}
	if len(on) > 0 {
		m.moves[after] = on
	}
}

func put(index map[Identity]map[*move]struct{}, id Identity, v *move) {
	if index[id] == nil {
		index[id] = map[*move]struct{}{}
	}
	index[id][v] = struct{}{}
}

func take(index map[Identity]map[*move]struct{}, id Identity, v *move) {
	delete(index[id], v)
	if len(index[id]) == 0 {
		delete(index, id)
	}
}

// end ends a move, if it goes on.
func (m *Members) end(v *move) {
	take(m.leaving, v.from, v)
	take(m.coming, v.to, v)
	m.touch(v.from)
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

// admit lets an address in, or has it wait.
func (m *Members) admit(e *entry) {
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

// fill lets in who waits first, as long as there is room.
func (m *Members) fill() {
	for m.admitted < m.rules.MaxSets && m.waitingSets.Len() > 0 {
		s, _ := m.waitingSets.Remove(m.waitingSets.Front()).(*memberSet)
		s.waits = nil
		m.admitted++
		for _, e := range s.entries {
			m.admit(e)
			m.judgeAll(e)
		}
	}
	for m.addresses < m.rules.MaxAddresses && m.waitingEntries.Len() > 0 {
		e, _ := m.waitingEntries.Remove(m.waitingEntries.Front()).(*entry)
		e.waits = nil
		m.admit(e)
		m.judgeAll(e)
	}
}

func (m *Members) judgeAll(e *entry) {
	m.judge(e.pod)
	for p := range e.more {
		m.judge(p)
	}
}

// judge notes why a pod is in no set, or not with all of its addresses.
func (m *Members) judge(p *Pod) {
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

// maxExamples is how many pods a report names for one reason.
const maxExamples = 10

// Skipped counts pods by the reason for which they are skipped.
type Skipped map[Reason]*SkippedPods

// SkippedPods are the pods that are skipped for one reason.
type SkippedPods struct {
	// Pods is how many there are.
	Pods int `json:"pods"`
	// Examples names some, as namespace/name; the first ones in that order.
	Examples []string `json:"examples"`
}

// Skipped returns the pods that are in no set, or not with all of their addresses.
func (m *Members) Skipped() Skipped {
	all := Skipped{}
	for reason, pods := range m.skipped {
		s := &SkippedPods{}
		for p := range pods {
			s.add(p)
		}
		all[reason] = s
	}
	return all
}

func (s *SkippedPods) add(p *Pod) {
	s.Pods++
	at, found := slices.BinarySearchFunc(s.Examples, p, func(example string, p *Pod) int {
		namespace, name, _ := strings.Cut(example, "/")
		return cmp.Or(cmp.Compare(namespace, p.Namespace), cmp.Compare(name, p.Name))
	})
	if found || at == maxExamples {
		return
	}
	s.Examples = slices.Insert(s.Examples, at, p.Namespace+"/"+p.Name)
	s.Examples = s.Examples[:min(len(s.Examples), maxExamples)]
}
