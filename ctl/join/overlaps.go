package join

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// maxOverlaps bounds the reported overlaps of two clusters, and those of a cluster with
// another one's settings for clusters that aren't among the arguments.
const maxOverlaps = 10

// kind is the use of a range.
type kind int

const (
	ofPods kind = iota
	ofServices
	ofRealPods // which other clusters know by virtual subnets
	ofNode     // its address
	ofSettings // node subnets and API server of a cluster that isn't among the arguments
)

// span is a range with its use.
type span struct {
	cluster string
	number  int // index of the cluster; plus the number of clusters for ranges in its settings
	kind    kind
	what    string
	prefix  netip.Prefix
	by      string // the cluster in whose settings it is
	virtual bool   // other clusters know pods by it
	order   int    // of output
}

// disjoint reports whether two ranges must not overlap. ClusterIPs never leave their
// cluster. Nodes of several clusters may share a network, so node subnets in settings are
// compared with pods and services only; and not with those of the cluster that has them in
// its settings, where they were checked when the remote was joined. Only its own nodes and
// remotes meet real addresses of a cluster with virtual subnets.
func disjoint(a, b *span) bool {
	switch {
	case a.kind == ofServices && b.kind == ofServices:
		return false
	case a.kind == ofRealPods && (b.kind == ofServices || b.kind == ofRealPods || b.by != "" && b.by != a.cluster):
		return false
	case b.kind == ofRealPods && (a.kind == ofServices || a.by != "" && a.by != b.cluster):
		return false
	case a.kind == ofSettings:
		return b.kind < ofRealPods && a.by != b.cluster
	case b.kind == ofSettings:
		return a.kind < ofRealPods && b.by != a.cluster
	}
	return a.number != b.number
}

// remedy returns the remedy for two ranges that overlap.
func remedy(a, b *span) string {
	for _, s := range []*span{a, b} {
		if s.kind == ofSettings {
			return fmt.Sprintf("move one of the clusters to other addresses; if %[2]s has no nodes there, narrow its subnets: semaphorectl join %[1]s %[2]s --node-subnets %[2]s=...", s.by, s.cluster)
		}
	}
	if a.kind == ofNode && b.kind == ofNode {
		return "nodes must reach each other without address translation"
	}
	for _, pair := range [][2]*span{{a, b}, {b, a}} {
		pods, other := pair[0], pair[1]
		switch {
		case pods.virtual:
			return fmt.Sprintf("choose another one: --virtual-subnets %s=...", pods.cluster)
		case resolvable(pods, other):
			return fmt.Sprintf("choose virtual subnets, see docs/overlapping-subnets.md: --virtual-subnets %s=...; if the detected ones are wrong, use --pod-subnets", pods.cluster)
		}
	}
	return "move one of the clusters to other addresses; if the detected ones are wrong, use --pod-subnets"
}

// spans returns the ranges of clusters, and those in their settings for clusters that
// aren't among the arguments. Ranges of one cluster and kind are disjoint.
func spans(all []*inspect.Facts, w *InstallOptions) []span {
	var spans []span
	add := func(s span, prefixes []netip.Prefix) {
		for _, s.prefix = range inspect.Compact(prefixes) {
			s.order = len(spans)
			spans = append(spans, s)
		}
	}
	asked := map[string]bool{}
	for i, f := range all {
		asked[f.Name] = true
		remote := w.remoteSettings(f)
		var inner []netip.Prefix
		for _, m := range remote.mapped.now {
			inner = append(inner, m.Real)
		}
		add(span{cluster: f.Name, number: i, kind: ofPods, what: "pods"}, slices.DeleteFunc(slices.Clone(remote.pods), func(p netip.Prefix) bool { return inspect.Cover(inner, []netip.Prefix{p}) }))
		add(span{cluster: f.Name, number: i, kind: ofPods, what: "virtual subnets", virtual: true}, remote.mapped.now.Virtuals())
		add(span{cluster: f.Name, number: i, kind: ofRealPods, what: "pods"}, inner)
		add(span{cluster: f.Name, number: i, kind: ofServices, what: "services"}, f.Services)
		// Single addresses: the node subnets are only an estimate.
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
				add(span{cluster: string(remote), number: len(all) + i, kind: kind, what: what + " (in the settings of " + f.Name + ")", by: f.Name}, prefixes)
			}
			// A range in the settings of several clusters is one fault.
			of(ofPods, "pods", slices.DeleteFunc(inspect.Compact(settings.Prefixes(remote, inspect.PodSubnets)), func(p netip.Prefix) bool {
				before := same[view{remote, p}]
				same[view{remote, p}] = true
				return before
			}))
			of(ofSettings, "nodes", settings.Prefixes(remote, inspect.NodeSubnets))
			of(ofSettings, "API server", literal(settings[remote.Variables()+"_API_URL"]))
		}
	}
	return spans
}

// overlaps compares the ranges of clusters with each other, and with those in the settings
// for clusters that aren't among the arguments.
func overlaps(all []*inspect.Facts, w *InstallOptions) []fault {
	n := len(all)
	spans := spans(all, w)
	// By the numbers of two spans; the smaller one is that of a cluster.
	found, faults := make([]int, n*2*n), make([][]fault, n*2*n)
	meet := func(a, b *span) {
		if a.order > b.order {
			a, b = b, a
		}
		if !disjoint(a, b) {
			return
		}
		pair := min(a.number, b.number)*2*n + max(a.number, b.number)
		if found[pair]++; found[pair] > maxOverlaps {
			return
		}
		faults[pair] = append(faults[pair], fault{cluster: a.cluster + ", " + b.cluster,
			what: fmt.Sprintf("%s %s of %s overlap %s %s of %s", a.what, a.prefix, a.cluster, b.what, b.prefix, b.cluster), remedy: remedy(a, b)})
	}
	eachOverlap(spans, n, meet)
	var list []fault
	for pair, some := range faults {
		list = append(list, some...)
		if more := found[pair] - maxOverlaps; more > 0 {
			of, by := all[pair/(2*n)].Name, all[pair%n].Name
			what := fmt.Sprintf("and %d more of their ranges overlap", more)
			if pair%(2*n) >= n {
				what = fmt.Sprintf("and %d more ranges in the settings of %s overlap", more, by)
			}
			list = append(list, fault{cluster: of + ", " + by, what: what, remedy: "see above"})
		}
	}
	return list
}

// eachOverlap sorts ranges, and calls meet for all that overlap, of n clusters.
func eachOverlap(spans []span, n int, meet func(a, b *span)) {
	slices.SortFunc(spans, func(a, b span) int {
		return cmp.Or(a.prefix.Addr().Compare(b.prefix.Addr()), a.prefix.Bits()-b.prefix.Bits(), a.order-b.order)
	})
	// Of two overlapping prefixes one contains the other. In this order all prefixes that
	// contain one come before it and contain each other: they are a stack, with at most one
	// of each set of disjoint ranges. Ranges in settings aren't compared with each other.
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
}
