package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

// Default bounds of a remote. Every set and address uses memory and time on each node of the
// local cluster.
const (
	DefaultMaxSets      = 2000
	DefaultMaxAddresses = 100_000
)

// Rules are the bounds of a remote. No ResourceQuota counts network sets, which are in no
// namespace.
type Rules struct {
	// Cluster is the remote's name.
	Cluster string
	// Subnets must contain the addresses of its pods; none: any address.
	Subnets []netip.Prefix
	// IncludeHostNetwork includes pods on the host network.
	IncludeHostNetwork bool
	// MaxSets is the maximum number of sets, MaxAddresses that of addresses in all of them;
	// 0: the defaults.
	MaxSets, MaxAddresses int
}

// admit returns the accepted addresses of a pod, and why others are rejected; empty: none
// are.
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

// admit adds an address to its set, or to the waiting ones beyond the bounds.
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

// fill admits waiting sets and addresses in order, within the bounds.
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

// judge records why a pod is in no set, or not with all of its addresses.
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

// maxExamples is the maximum number of examples per reason.
const maxExamples = 10

// Skipped returns the pods that are in no set, or not with all of their addresses, by Reason.
func (m *Members) Skipped() map[string]*status.SkippedPods {
	all := map[string]*status.SkippedPods{}
	for reason, pods := range m.skipped {
		s := &status.SkippedPods{}
		for p := range pods {
			skip(s, p)
		}
		all[string(reason)] = s
	}
	return all
}

func skip(s *status.SkippedPods, p *Pod) {
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
