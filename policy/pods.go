package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// podIndex has the pods of a remote by set. It isn't safe for concurrent use.
type podIndex struct {
	rules   Rules
	count   int
	sets    map[Identity]map[*Pod]struct{} // pods with an accepted address
	skipped map[Reason]map[*Pod]struct{}   // pods of which an address is rejected, or that have none
}

func newPodIndex(rules Rules) podIndex {
	return podIndex{rules: rules, sets: map[Identity]map[*Pod]struct{}{}, skipped: map[Reason]map[*Pod]struct{}{}}
}

// update replaces a pod; nil: none. It returns the sets that may have lost an address, and those
// that may have got one.
func (x *podIndex) update(before, after *Pod) (lost, got []Identity) {
	var had, has []netip.Addr
	if before != nil {
		x.count--
		had = x.remove(before)
	}
	if after != nil {
		x.count++
		has = x.add(after)
	}
	var from, to Identity
	if len(had) > 0 {
		from = x.identity(before)
	}
	if len(has) > 0 {
		to = x.identity(after)
	}
	if from == to && slices.Equal(had, has) {
		return nil, nil
	}
	if len(had) > 0 {
		lost = append(lost, from)
	}
	if len(has) > 0 && from != to {
		got = append(got, to)
	}
	return lost, got
}

// identity returns the set of a pod.
func (x *podIndex) identity(p *Pod) Identity {
	return Identity{Cluster: x.rules.Cluster, Namespace: p.Namespace, Name: p.Set}
}

func (x *podIndex) add(p *Pod) []netip.Addr {
	addrs, reason := x.rules.admit(p)
	if len(addrs) > 0 {
		put(x.sets, x.identity(p), p)
	}
	if reason != "" {
		put(x.skipped, reason, p)
	}
	return addrs
}

func (x *podIndex) remove(p *Pod) []netip.Addr {
	addrs, reason := x.rules.admit(p)
	if len(addrs) > 0 {
		drop(x.sets, x.identity(p), p)
	}
	if reason != "" {
		drop(x.skipped, reason, p)
	}
	return addrs
}

func put[K, V comparable](index map[K]map[V]struct{}, key K, value V) {
	if index[key] == nil {
		index[key] = map[V]struct{}{}
	}
	index[key][value] = struct{}{}
}

func drop[K, V comparable](index map[K]map[V]struct{}, key K, value V) {
	delete(index[key], value)
	if len(index[key]) == 0 {
		delete(index, key)
	}
}

// addresses returns the addresses of a set's pods, sorted and without duplicates.
func (x *podIndex) addresses(id Identity) []netip.Addr {
	pods := x.sets[id]
	if len(pods) == 0 {
		return nil
	}
	all := make([]netip.Addr, 0, len(pods))
	for p := range pods {
		addrs, _ := x.rules.admit(p)
		all = append(all, addrs...)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return slices.Compact(all)
}

// maxExamples is the maximum number of examples per reason.
const maxExamples = 10

// skip counts a pod, and keeps the first ones by namespace and name as examples.
func skip(s *statuspage.SkippedPods, p *Pod) {
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
