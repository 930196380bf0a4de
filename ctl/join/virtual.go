package join

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
)

// mapped are the virtual subnets by which the other clusters know the pods of one. The first
// that applies:
//
//	--virtual-subnets names the cluster      these, and no others
//	the cluster has a map                    is kept
//	pods overlap those of another cluster    a proposal for these, beside the map
type mapped struct {
	before, now config.SubnetMap
	// chosen is whether the administrator has named them.
	chosen bool
	// proposed has the reason for each mapping that this program proposes.
	proposed map[config.Mapping]string
}

// changed reports whether other clusters must know other subnets than before.
func (s *mapped) changed() bool { return s.now.String() != s.before.String() }

// known returns the subnets by which other clusters know pods: whole virtual subnets, and what
// is outside of the map.
func (s *mapped) known(pods []netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range pods {
		if m := s.of(p); m != nil {
			p = m.Virtual
		}
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

// of returns the mapping of a subnet of pods, or nil.
func (s *mapped) of(pods netip.Prefix) *config.Mapping {
	at := slices.IndexFunc(s.now, func(m config.Mapping) bool { return m.Real.Overlaps(pods) && m.Real.Bits() <= pods.Bits() })
	if at < 0 {
		return nil
	}
	return &s.now[at]
}

// given reports whether the administrator has named the virtual subnets of all these pods.
func (s *mapped) given(pods []netip.Prefix) bool {
	return s.chosen && !slices.ContainsFunc(pods, func(p netip.Prefix) bool { return s.of(p) == nil })
}

// moved returns what becomes of subnets that another cluster accepts: the administrator has
// accepted these pods, whatever their addresses. What isn't moved is kept.
func (s *mapped) moved(accepted, pods []netip.Prefix) []netip.Prefix {
	var all []netip.Prefix
	for _, p := range accepted {
		v, err := s.now.VirtualPrefix(s.before.RealPrefix(p))
		if err == nil && !exceeds(p, s.before) && !exceeds(v, s.now) {
			all = append(all, v)
			continue
		}
		// More than a mapped subnet was accepted, or than a virtual one: its pods stay accepted.
		for _, of := range pods {
			before, _ := s.before.VirtualPrefix(of)
			now, _ := s.now.VirtualPrefix(of)
			if slices.ContainsFunc([]netip.Prefix{of, before, now}, func(q netip.Prefix) bool { return q.IsValid() && inspect.Cover([]netip.Prefix{p}, []netip.Prefix{q}) }) {
				all = append(all, slices.DeleteFunc(s.known([]netip.Prefix{of}), func(p netip.Prefix) bool { return slices.Contains(all, p) })...)
			}
		}
	}
	return all
}

// exceeds reports whether a prefix has more than one of the virtual subnets, and that one.
func exceeds(p netip.Prefix, m config.SubnetMap) bool {
	return slices.ContainsFunc(m.Virtuals(), func(v netip.Prefix) bool { return p.Overlaps(v) && p.Bits() < v.Bits() })
}

// accepted returns the mappings whose virtual subnets, or parts of them, another cluster accepts.
func (s *mapped) accepted(subnets []netip.Prefix) config.SubnetMap {
	return slices.DeleteFunc(slices.Clone(s.now), func(m config.Mapping) bool {
		return !slices.ContainsFunc(subnets, m.Virtual.Overlaps)
	})
}

// mappedOf returns the virtual subnets of a cluster, which virtualize decides.
func (w *InstallOptions) mappedOf(f *inspect.Facts) *mapped {
	if s := w.mapped[f.Name]; s != nil {
		return s
	}
	installed := f.Installed.Settings.SubnetMap()
	return &mapped{before: installed, now: installed}
}

// setMap sets the virtual subnets of a cluster in its settings.
func (w *InstallOptions) setMap(f *inspect.Facts, settings inspect.Settings) {
	if s := w.mappedOf(f); s.changed() {
		settings[inspect.PodSubnetsMap] = s.now.String()
		if len(s.now) == 0 {
			delete(settings, inspect.PodSubnetsMap)
		}
	}
}

// parseVirtual parses subnets for --virtual-subnets, each alone or as in the setting.
func parseVirtual(text string) ([]config.Mapping, error) {
	all := []config.Mapping{}
	for word := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ' ' || r == ',' }) {
		from, to, paired := strings.Cut(word, "=")
		if !paired {
			from, to = "", word
		}
		inner, errInner := inspect.Prefixes(from)
		outer, errOuter := inspect.Prefixes(to)
		if err := cmp.Or(errInner, errOuter); err != nil {
			return nil, err
		}
		var m config.Mapping
		if len(inner) > 0 {
			m.Real = inner[0]
		}
		if len(outer) != 1 || paired && len(inner) != 1 {
			return nil, fmt.Errorf("%.80q is neither a subnet nor a pair such as 10.0.0.0/16=100.64.0.0/16", word)
		}
		m.Virtual = outer[0]
		all = append(all, m)
	}
	return all, nil
}

// chosen returns the map that the administrator has chosen for a cluster.
func (w *InstallOptions) chosen(f *inspect.Facts) (config.SubnetMap, error) {
	var words []string
	for _, m := range w.Virtual[f.Name] {
		if !m.Real.IsValid() {
			pods := slices.DeleteFunc(inspect.Compact(w.remoteSettings(f).pods), func(p netip.Prefix) bool { return p.Addr().Is4() != m.Virtual.Addr().Is4() })
			alike := slices.DeleteFunc(slices.Clone(pods), func(p netip.Prefix) bool { return p.Bits() != m.Virtual.Bits() })
			if len(alike) != 1 {
				pair := "<subnet of pods>=" + m.Virtual.String()
				if len(pods) > 0 {
					whole, _ := pods[0].Addr().Prefix(m.Virtual.Bits()) // of the same family
					pair = config.Mapping{Real: whole, Virtual: m.Virtual}.String()
				}
				return nil, fmt.Errorf("its pods are in %s: name the subnet that becomes %s, which has the same length, as in --virtual-subnets %s=%s",
					cmp.Or(shortened(w.remoteSettings(f).pods), "unknown subnets"), m.Virtual, f.Name, pair)
			}
			m.Real = alike[0]
		}
		words = append(words, m.String())
	}
	var m config.SubnetMap
	if len(words) == 0 {
		return nil, nil
	}
	err := m.Decode(strings.Join(words, ","))
	return m, err
}

// virtualize decides the virtual subnets of all clusters, and returns faults.
func (w *InstallOptions) virtualize(all []*inspect.Facts) []fault {
	w.mapped = map[string]*mapped{}
	var faults []fault
	for _, f := range all {
		s := w.mappedOf(f)
		if _, s.chosen = w.Virtual[f.Name]; s.chosen {
			m, err := w.chosen(f)
			if err != nil {
				faults = append(faults, fault{cluster: f.Name, what: err.Error()})
				continue
			}
			s.now = m
		}
		w.mapped[f.Name] = s
	}
	if len(faults) > 0 {
		return faults
	}
	overlapping := w.overlapping(all)
	// The same proposals for any order of the arguments.
	for _, f := range slices.SortedFunc(slices.Values(all), func(a, b *inspect.Facts) int { return strings.Compare(a.Name, b.Name) }) {
		s := w.mappedOf(f)
		faults = append(faults, w.taken(f, s, all)...)
		faults = append(faults, w.propose(f, s, all, overlapping[f.Name])...)
		if s.changed() {
			faults = append(faults, w.unaware(f, s, all)...)
		}
		for _, p := range w.remoteSettings(f).pods {
			if _, err := s.now.VirtualPrefix(p); err != nil {
				faults = append(faults, fault{cluster: f.Name, what: err.Error(), remedy: fmt.Sprintf("map all of it, as in --virtual-subnets %s=%s=<a subnet of the same length>", f.Name, p)})
			}
		}
	}
	return faults
}

// overlapping returns the pod subnets that need virtual ones, by cluster: those that overlap
// pods or services of other clusters, each with the reason.
func (w *InstallOptions) overlapping(all []*inspect.Facts) map[string]map[netip.Prefix]string {
	found := map[string]map[netip.Prefix]string{}
	spans, n := spans(all, w), len(all)
	eachOverlap(spans, n, func(a, b *span) {
		for _, pair := range [][2]*span{{a, b}, {b, a}} {
			pods, other := pair[0], pair[1]
			if pods.number >= n || !disjoint(a, b) || !resolvable(pods, other) {
				continue
			}
			if found[pods.cluster] == nil {
				found[pods.cluster] = map[netip.Prefix]string{}
			}
			why := fmt.Sprintf("overlap %s %s of %s", other.what, other.prefix, other.cluster)
			if before := found[pods.cluster][pods.prefix]; before == "" || why < before {
				found[pods.cluster][pods.prefix] = why
			}
		}
	})
	return found
}

// resolvable reports whether virtual subnets for pods separate these from another range. Packets
// to nodes and API servers have real addresses on both sides, and a cluster's own remotes must
// not have addresses of its own pods in any case.
func resolvable(pods, other *span) bool {
	return pods.kind == ofPods && !pods.virtual &&
		(other.kind == ofServices || other.kind == ofRealPods || other.kind == ofPods && !other.virtual && other.by != pods.cluster)
}

// use is a range that virtual subnets must not overlap.
type use struct {
	netip.Prefix
	what string
}

// used returns the ranges that virtual subnets of a cluster must not overlap. What other
// clusters accept of its own pods is no such range: an interrupted run may have set it.
func (w *InstallOptions) used(of *inspect.Facts, all []*inspect.Facts) []use {
	var uses []use
	add := func(what string, prefixes []netip.Prefix) {
		for _, p := range prefixes {
			uses = append(uses, use{p, what})
		}
	}
	for _, s := range spans(all, w) {
		if s.cluster != of.Name || !s.virtual {
			add(s.what+" of "+s.cluster, []netip.Prefix{s.prefix})
		}
	}
	for _, f := range all {
		add("nodes of "+f.Name, w.remoteSettings(f).machines)
		local, _ := inspect.Prefixes(f.Installed.Settings["SEMAPHORE_LOCAL_SUBNETS"]) // The agent refuses an invalid one.
		add("local subnets of "+f.Name, local)
		for _, remote := range f.Installed.Settings.Remotes() {
			if string(remote) != of.Name {
				in := " in the settings of " + f.Name
				add("pods of "+string(remote)+in, f.Installed.Settings.Prefixes(remote, inspect.PodSubnets))
				add("nodes of "+string(remote)+in, f.Installed.Settings.Prefixes(remote, inspect.NodeSubnets))
			}
		}
	}
	return uses
}

// taken returns faults for virtual subnets of the administrator that are in use.
func (w *InstallOptions) taken(f *inspect.Facts, s *mapped, all []*inspect.Facts) []fault {
	if !s.chosen || len(s.now) == 0 {
		return nil
	}
	var faults []fault
	uses := w.used(f, all)
	for _, m := range s.now {
		at := slices.IndexFunc(uses, func(u use) bool { return u.Overlaps(m.Virtual) })
		if at < 0 {
			continue
		}
		remedy := "choose another one"
		if free, ok := free(f.Name, m.Real, w.from(), uses); ok {
			remedy += ", such as " + option(f.Name, config.SubnetMap{{Real: m.Real, Virtual: free}})
		}
		faults = append(faults, fault{cluster: f.Name, what: fmt.Sprintf("the virtual subnet %s overlaps %s at %s", m.Virtual, uses[at].what, uses[at].Prefix), remedy: remedy})
	}
	return faults
}

// propose adds free virtual subnets for pod subnets that need them.
func (w *InstallOptions) propose(f *inspect.Facts, s *mapped, all []*inspect.Facts, overlapping map[netip.Prefix]string) []fault {
	if s.chosen || len(overlapping) == 0 {
		return nil
	}
	if !f.PodsSure && len(w.Pods[f.Name]) == 0 {
		return []fault{{cluster: f.Name, what: "its pods need virtual subnets, and " + f.PodsFrom + " don't show where those of future nodes will be",
			remedy: fmt.Sprintf("specify the whole range, as in --pod-subnets %s=10.0.0.0/16", f.Name)}}
	}
	var faults []fault
	uses := w.used(f, all)
	s.proposed = map[config.Mapping]string{}
	for _, p := range slices.SortedFunc(maps.Keys(overlapping), netip.Prefix.Compare) {
		v, ok := free(f.Name, p, w.from(), uses)
		if !ok {
			faults = append(faults, fault{cluster: f.Name, what: fmt.Sprintf("its pods %s %s, and no subnet of this length is free in %s", p, overlapping[p], w.from()),
				remedy: fmt.Sprintf("choose one yourself: --virtual-subnets %s=%s=<a subnet of the same length>", f.Name, p)})
			continue
		}
		m := config.Mapping{Real: p, Virtual: v}
		s.proposed[m] = overlapping[p]
		uses = append(uses, use{v, "virtual subnets of " + f.Name})
	}
	var now config.SubnetMap
	if len(s.proposed) == 0 {
		return faults
	}
	if err := now.Decode(append(s.now, slices.Collect(maps.Keys(s.proposed))...).String()); err != nil {
		return append(faults, fault{cluster: f.Name, what: "its pods need virtual subnets: " + err.Error(), remedy: fmt.Sprintf("specify fewer, larger subnets: --pod-subnets %s=...", f.Name)})
	}
	s.now = now
	return faults
}

var (
	// shared is the range of RFC 6598, which clusters use less than those of RFC 1918.
	shared = netip.MustParsePrefix("100.64.0.0/10")
	// avoided are parts of it that programs on nodes use, which no API shows: OVN-Kubernetes and
	// Kube-OVN between nodes and routers, Alibaba Cloud and Tailscale for DNS.
	avoided = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/15"), netip.MustParsePrefix("100.88.0.0/16"), netip.MustParsePrefix("100.100.0.0/16")}
)

// otherwise is the range of proposals where nodes have links in the shared one.
var otherwise = netip.MustParsePrefix("10.0.0.0/8")

// from returns the range of proposals. Where a program such as Tailscale has addresses in the shared
// one, it takes all of it: its filter drops what the host gets from there by other links,
// also where the addresses themselves differ.
func (w *InstallOptions) from() netip.Prefix {
	if len(w.links) > 0 {
		return otherwise
	}
	return shared
}

// sharing returns the subnets in shared by which other clusters know pods, or are going to.
func (w *InstallOptions) sharing(f *inspect.Facts) []netip.Prefix {
	s := w.remoteSettings(f)
	return slices.DeleteFunc(s.mapped.known(s.pods), func(p netip.Prefix) bool { return !p.Overlaps(shared) })
}

// dropped returns warnings for pods that are known by addresses that other clusters' nodes may drop.
func (w *InstallOptions) dropped(all []*inspect.Facts) []fault {
	var faults []fault
	for _, f := range all {
		known := w.sharing(f)
		if len(known) == 0 {
			continue
		}
		for _, to := range all {
			if link := w.links[to.Name]; link != "" && to != f {
				faults = append(faults, fault{cluster: to.Name, warning: true,
					what: fmt.Sprintf("%s: if that is Tailscale, its filter drops, without a counter of ours, what such a node gets from %s by another link: its host, not its pods, loses the pods of %s, which are known as %s",
						link, shared, f.Name, shortened(known)),
					remedy: fmt.Sprintf("choose subnets outside of it with --virtual-subnets %s=..., or switch this filter off (tailscale set --netfilter-mode=off)", f.Name)})
			}
		}
	}
	return faults
}

// free returns a virtual subnet for pods of a cluster that overlaps nothing in use: of IPv4 one
// from a range, of IPv6 a unique local one (RFC 4193). It begins with one that depends on the
// cluster's name and the subnet only, so that clusters of different meshes, which may be joined
// later, mostly get different ones.
func free(name string, pods, within netip.Prefix, uses []use) (netip.Prefix, bool) {
	var inUse []netip.Prefix
	for _, u := range uses {
		inUse = append(inUse, u.Prefix)
	}
	inUse = inspect.Compact(append(inUse, avoided...))
	seed := func(try int) []byte {
		sum := sha256.Sum256(fmt.Appendf(nil, "%s %s %d", name, pods, try))
		return sum[:]
	}
	if pods.Addr().Is6() {
		const local = 0xfd
		for try := range 16 {
			address := [16]byte(seed(try))
			address[0] = local
			p := netip.PrefixFrom(netip.AddrFrom16(address), pods.Bits()).Masked()
			if pods.Bits() >= 8 && !touches(inUse, p) {
				return p, true
			}
		}
		return netip.Prefix{}, false
	}
	if pods.Bits() < within.Bits() {
		return netip.Prefix{}, false
	}
	slots := uint32(1) << (pods.Bits() - within.Bits())
	first, from := binary.BigEndian.Uint32(seed(0)), within.Addr().As4()
	for i := range slots {
		at := binary.BigEndian.Uint32(from[:]) + (first%slots+i)%slots<<(32-pods.Bits())
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, at))), pods.Bits())
		if !touches(inUse, p) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// touches reports whether a prefix overlaps one of sorted disjoint prefixes.
func touches(all []netip.Prefix, p netip.Prefix) bool {
	at, _ := slices.BinarySearchFunc(all, p.Addr(), func(o netip.Prefix, first netip.Addr) int { return o.Addr().Compare(first) })
	return at < len(all) && all[at].Overlaps(p) || at > 0 && all[at-1].Overlaps(p)
}

// unaware returns a fault for remotes of a cluster that would go on using its former subnets.
func (w *InstallOptions) unaware(f *inspect.Facts, s *mapped, all []*inspect.Facts) []fault {
	var missing, before []string
	for _, remote := range f.Installed.Settings.Remotes() {
		before = append(before, string(remote))
		if !slices.ContainsFunc(all, func(other *inspect.Facts) bool { return cluster.Name(other.Name) == remote }) {
			missing = append(missing, string(remote))
		}
	}
	if len(missing) == 0 {
		return nil
	}
	flag := option(f.Name, s.now)
	return []fault{{cluster: f.Name, what: fmt.Sprintf("the subnets by which other clusters know its pods change, and %s would go on using the former ones", cli.And(missing...)),
		remedy: fmt.Sprintf("join it with all of its remotes: add %s to the arguments; or, to join none of these with new clusters, first run semaphorectl join %s %s %s", cli.And(missing...), f.Name, strings.Join(before, " "), flag)}}
}

// option returns the flag for virtual subnets of a cluster.
func option(name string, m config.SubnetMap) string {
	return "--virtual-subnets " + cli.Quote(name+"="+strings.ReplaceAll(m.String(), ",", " "))
}

// virtualLines describes the virtual subnets that change.
func (a *installation) virtualLines() []string {
	var lines []string
	changed := false
	for _, f := range a.facts {
		s := a.mappedOf(f)
		for _, m := range s.now {
			switch why, proposed := s.proposed[m]; {
			case proposed:
				lines = append(lines, fmt.Sprintf("%s: its pods %s %s: other clusters will know them as %s (proposed)", f.Name, m.Real, why, m.Virtual))
			case !slices.Contains(s.before, m):
				lines = append(lines, fmt.Sprintf("%s: other clusters will know its pods %s as %s (as you specified)", f.Name, m.Real, m.Virtual))
			}
		}
		for _, m := range s.before {
			if !slices.Contains(s.now, m) {
				lines = append(lines, fmt.Sprintf("%s: other clusters will no longer know its pods %s as %s", f.Name, m.Real, m.Virtual))
			}
		}
		changed = changed || s.changed()
	}
	if slices.ContainsFunc(a.facts, func(f *inspect.Facts) bool { return len(a.mappedOf(f).proposed) > 0 }) {
		lines = append(lines, "  nothing that the API servers show uses the proposed subnets. They don't show routes of hosts, links of nodes that weren't looked at, and what providers use in "+shared.String())
		for _, name := range slices.Sorted(maps.Keys(a.links)) {
			lines = append(lines, fmt.Sprintf("  nothing is proposed from %s: %s has %s, and programs such as Tailscale drop what a host gets from this range by other links", shared, name, a.links[name]))
		}
	}
	if changed {
		lines = append(lines, "  existing connections between these clusters break once, and addresses inside payloads aren't translated: see docs/overlapping-subnets.md")
	}
	return lines
}

// options returns the flags that choose what is proposed, and the subnets to which a cluster's own
// settings would move what others have accepted of it: a cluster must not choose these.
func (a *installation) options() []string {
	var flags []string
	for _, f := range a.facts {
		moves := slices.ContainsFunc(a.agreed, func(of agreement) bool {
			return of.remote == f.Name && slices.ContainsFunc(of.bounds, func(b bound) bool { return b.moved && !b.given })
		})
		if s := a.mappedOf(f); len(s.proposed) > 0 || moves {
			flags = append(flags, option(f.Name, s.now))
		}
	}
	return flags
}

// errUnchosen is the error of a run that can't ask about virtual subnets.
func (a *installation) errUnchosen() error {
	return cli.Usage(errors.New("nothing was changed: choose the virtual subnets above, or others, with " + strings.Join(a.options(), " ")))
}
