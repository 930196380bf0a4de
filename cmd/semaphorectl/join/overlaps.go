package join

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// mostOverlaps is how many overlaps of two clusters are faults of their own, and how many
// of one with what another one has for clusters that aren't asked for.
const mostOverlaps = 10

// kind is what a range is.
type kind int

const (
	ofPods kind = iota
	ofServices
	ofNode // its address
	ofRoom // for nodes of a cluster that isn't asked for, and where its API server is
)

// span is a range with what it is.
type span struct {
	cluster string
	number  int // of the cluster that says it, and as many more as there are clusters if it says it of another one
	kind    kind
	what    string
	prefix  netip.Prefix
	by      string // the cluster in whose settings it is
	order   int    // in which clusters and ranges are shown
}

// apart says whether two ranges must have no address in common. ClusterIPs never leave
// their cluster. Nodes of several clusters may be in one network, so room for them is held
// against pods and services alone; and not against those of the cluster that has it in its
// settings, which came to have both when the nodes themselves were asked for.
func apart(a, b *span) bool {
	switch {
	case a.kind == ofServices && b.kind == ofServices:
		return false
	case a.kind == ofRoom:
		return b.kind < ofNode && a.by != b.cluster
	case b.kind == ofRoom:
		return a.kind < ofNode && b.by != a.cluster
	}
	return a.number != b.number
}

// remedy is what to do about two ranges that overlap.
func remedy(a, b *span) string {
	for _, s := range []*span{a, b} {
		if s.kind == ofRoom {
			return fmt.Sprintf("one of the clusters must get others; when %[2]s has no nodes there, semaphorectl join %[1]s %[2]s --node-subnets %[2]s=... says where it has some", s.by, s.cluster)
		}
	}
	if a.kind == ofNode && b.kind == ofNode {
		return "nodes must reach each other without address translation"
	}
	return "one of the clusters must get others; where a tool has found them wrong, --pod-subnets says what is right"
}

// spans returns the ranges of clusters, and what is configured in them for clusters that
// aren't asked for. Those of one cluster that are the same thing have no address in common.
func spans(all []*facts.Facts, w *Wishes) []span {
	var spans []span
	add := func(s span, prefixes []netip.Prefix) {
		for _, s.prefix = range facts.Compact(prefixes) {
			s.order = len(spans)
			spans = append(spans, s)
		}
	}
	asked := map[string]bool{}
	for i, f := range all {
		asked[f.Name] = true
		add(span{cluster: f.Name, number: i, kind: ofPods, what: "pods"}, w.side(f).pods)
		add(span{cluster: f.Name, number: i, kind: ofServices, what: "services"}, f.Services)
		// Addresses, as what there is room for may be anywhere around.
		seen := map[netip.Addr]bool{}
		for _, n := range f.Nodes {
			for _, a := range n.Addresses {
				if a = a.WithZone(""); !seen[a] {
					seen[a] = true
					add(span{cluster: f.Name, number: i, kind: ofNode, what: "node " + n.Name}, []netip.Prefix{netip.PrefixFrom(a, a.BitLen())})
				}
			}
		}
	}
	type view struct {
		remote cluster.Name
		prefix netip.Prefix
	}
	same := map[view]bool{}
	for i, f := range all {
		for _, remote := range f.Installed.Settings.Remotes() {
			if asked[string(remote)] {
				continue
			}
			settings := f.Installed.Settings
			of := func(kind kind, what string, prefixes []netip.Prefix) {
				add(span{cluster: string(remote), number: len(all) + i, kind: kind, what: what + " (as " + f.Name + " has it)", by: f.Name}, prefixes)
			}
			// What several clusters have is one fault.
			of(ofPods, "pods", slices.DeleteFunc(facts.Compact(settings.Prefixes(remote, facts.PodSubnets)), func(p netip.Prefix) bool {
				before := same[view{remote, p}]
				same[view{remote, p}] = true
				return before
			}))
			of(ofRoom, "nodes", settings.Prefixes(remote, facts.NodeSubnets))
			of(ofRoom, "API server", literal(settings[remote.Variables()+"_API_URL"]))
		}
	}
	return spans
}

// overlaps holds the ranges of clusters against each other, and against what is
// configured for clusters that aren't asked for.
func overlaps(all []*facts.Facts, w *Wishes) []fault {
	n := len(all)
	spans := spans(all, w)
	// By the numbers of two spans, of which the smaller one is of a cluster that is asked for.
	found, faults := make([]int, n*2*n), make([][]fault, n*2*n)
	meet := func(a, b *span) {
		if a.order > b.order {
			a, b = b, a
		}
		if !apart(a, b) {
			return
		}
		pair := min(a.number, b.number)*2*n + max(a.number, b.number)
		if found[pair]++; found[pair] > mostOverlaps {
			return
		}
		faults[pair] = append(faults[pair], fault{cluster: a.cluster + ", " + b.cluster,
			what: fmt.Sprintf("%s %s of %s overlap %s %s of %s", a.what, a.prefix, a.cluster, b.what, b.prefix, b.cluster), remedy: remedy(a, b)})
	}
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), a.prefix.Bits()-b.prefix.Bits(), a.order-b.order)
	})
	// Of two prefixes that overlap one holds the other. Sorted like this, all that hold one
	// come before it and hold each other: they are a stack, with one at most of each set of
	// ranges. Two clusters that aren't asked for are not held against each other.
	var outer, others []*span
	for i := range spans {
		s := &spans[i]
		for _, open := range []*[]*span{&outer, &others} {
			for last := len(*open) - 1; last >= 0 && !(*open)[last].prefix.Overlaps(s.prefix); last-- {
				*open = (*open)[:last]
			}
		}
		for _, o := range outer {
			meet(o, s)
		}
		if s.number >= n {
			others = append(others, s)
			continue
		}
		for _, o := range others {
			meet(o, s)
		}
		outer = append(outer, s)
	}
	var list []fault
	for pair, some := range faults {
		list = append(list, some...)
		if more := found[pair] - mostOverlaps; more > 0 {
			of, by := all[pair/(2*n)].Name, all[pair%n].Name
			what := fmt.Sprintf("and %d more of their ranges overlap", more)
			if pair%(2*n) >= n {
				what = fmt.Sprintf("and %d more of what %s has of clusters that aren't asked for", more, by)
			}
			list = append(list, fault{cluster: of + ", " + by, what: what, remedy: "see above"})
		}
	}
	return list
}
