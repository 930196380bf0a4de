package judge

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// subnets are the virtual subnets of a cluster's pods.
type subnets struct {
	config.SubnetMap
	known  bool            // the settings were read
	others []*inspect.Node // that publish other ones
	// pods are the prefixes of pods, as their own cluster knows them.
	pods []netip.Prefix
}

func (f *Facts) subnets(c *inspect.Cluster) *subnets {
	if s := f.maps[c]; s != nil {
		return s
	}
	s := &subnets{known: c.Settings.Value != nil}
	s.SubnetMap, s.others = c.SubnetMap()
	site := f.site(c)
	for i := range c.Nodes.Value {
		n := &c.Nodes.Value[i]
		prefixes := n.Pods
		if a := site.acting[n.Name]; a != nil && a.Pods != nil && len(a.Pods.Prefixes) > 0 {
			// Other plugins than those that use podCIDRs assign others.
			if read, err := inspect.Prefixes(strings.Join(a.Pods.Prefixes, ",")); err == nil {
				prefixes = read
			}
		}
		s.pods = append(s.pods, prefixes...)
	}
	s.pods = inspect.Compact(s.pods)
	if f.maps == nil {
		f.maps = map[*inspect.Cluster]*subnets{}
	}
	f.maps[c] = s
	return s
}

// subnetsOf is subnets of a cluster by its name. A cluster that isn't among the arguments has no
// known ones.
func (f *Facts) subnetsOf(name string) *subnets {
	if c := f.cluster(name); c != nil {
		return f.subnets(c)
	}
	return &subnets{}
}

// cluster returns a cluster by its name, or nil.
func (f *Facts) cluster(name string) *inspect.Cluster {
	at := slices.IndexFunc(f.Clusters, func(c *inspect.Cluster) bool { return c.Name == name })
	if at < 0 {
		return nil
	}
	return f.Clusters[at]
}

// translate translates an address with a port.
func translate(address string, by func(netip.Addr) netip.Addr) string {
	to, err := netip.ParseAddrPort(address)
	if err != nil {
		return address
	}
	return netip.AddrPortFrom(by(to.Addr()), to.Port()).String()
}

// real reports whether an address is that of a pod that other clusters know by another one.
func (s *subnets) real(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && s.Virtual(ip) != ip
}

// virtualMissing and virtualDiffers compare the virtual subnets of each cluster with the settings of others:
//
//	pods                    map of both        settings of the other one     cause
//	overlap                 one has none       any                           virtual-subnets-missing
//	any                     any                not its virtual subnets       virtual-subnets-differ
//	any                     any                another map, or none          virtual-subnets-differ
//	any                     differs by node    any                           virtual-subnets-differ
func virtualMissing(f *Facts, found func(Finding)) {
	for i, c := range f.Clusters {
		for _, other := range f.Clusters[i+1:] {
			here, there := f.subnets(c), f.subnets(other)
			if !here.known || !there.known {
				continue
			}
			one, another, overlap := inspect.Overlapping(here.unmapped(), there.pods)
			if !overlap {
				one, another, overlap = inspect.Overlapping(here.pods, there.unmapped())
			}
			if !overlap {
				continue
			}
			for _, lacking := range []struct {
				c, of *inspect.Cluster
				p     netip.Prefix
			}{{c, other, one}, {other, c, another}} {
				if !f.subnets(lacking.c).has(lacking.p) {
					found(Finding{
						Scope: Scope{Cluster: lacking.c.Name, Remote: lacking.of.Name}, With: []string{"{one}", c.Name, "{other}", other.Name},
						Evidence: says(fmt.Sprintf("pods of %s are in %s, those of %s in %s", c.Name, one, other.Name, another), lacking.c.Kubectl("get nodes -o yaml")),
					})
				}
			}
		}
	}
}

// has reports whether a prefix of pods is in a mapped subnet.
func (s *subnets) has(p netip.Prefix) bool {
	return slices.ContainsFunc(s.SubnetMap, func(m config.Mapping) bool { return m.Real.Overlaps(p) })
}

// unmapped returns the pods that have no virtual addresses.
func (s *subnets) unmapped() []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(s.pods), s.has)
}

func virtualDiffers(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		s := f.subnets(c)
		for _, n := range s.others {
			found(Finding{
				Scope: Scope{Cluster: c.Name, Node: n.Name}, Case: "published",
				Evidence: says(fmt.Sprintf("it publishes %s, the setting is %s", cmp.Or(n.Map, "none"), cmp.Or(s.String(), "none")), c.Kubectl("get node %s -o yaml", n.Name)),
			})
		}
	}
	for v := range f.views() {
		if s := f.subnetsOf(v.Remote); s.known {
			if evidence := s.unlike(v.remote); evidence != "" {
				found(Finding{Scope: v.Scope, Evidence: says(evidence, v.source)})
			}
		}
	}
}

// unlike returns what an agent of another cluster has that doesn't go with the cluster's map:
// pod subnets, or a map of its own. It may accept parts of the virtual subnets only. Empty: all
// agrees.
func (s *subnets) unlike(r *statuspage.Remote) string {
	accepted, err := inspect.Prefixes(strings.Join(r.PodSubnets, ","))
	if err != nil {
		return ""
	}
	for _, m := range s.SubnetMap {
		if slices.ContainsFunc(accepted, m.Real.Overlaps) || !slices.ContainsFunc(accepted, m.Virtual.Overlaps) {
			return fmt.Sprintf("it accepts %s, and %s maps %s", strings.Join(r.PodSubnets, ", "), r.Name, m)
		}
	}
	var theirs config.SubnetMap
	if text := r.PodSubnetsMap; text != "" && theirs.Decode(text) != nil {
		return ""
	}
	for _, p := range accepted {
		if theirs.RealPrefix(p) != s.RealPrefix(p) {
			return fmt.Sprintf("its map of %s is %s, and that of %s itself is %s", r.Name, cmp.Or(theirs.String(), "none"), r.Name, cmp.Or(s.String(), "none"))
		}
	}
	return ""
}

// notTranslated finds nodes that don't translate between real and virtual addresses, by the
// reports of their agents and by the sources that pods of other clusters have seen.
func notTranslated(f *Facts, found func(Finding)) {
	reported := map[probe.NodeRef]bool{}
	for c, a := range f.agents() {
		if t := a.Value.Translation; a.Value.Standby == nil && t != nil && t.State == statuspage.FilterNotEnforced {
			reported[probe.NodeRef{Cluster: c.Name, Node: a.Pod.Node}] = true
			found(Finding{Scope: Scope{Cluster: c.Name, Node: a.Pod.Node}, Evidence: says(cmp.Or(t.Error, "its agent reports that the rules aren't installed"), statusOf(a))})
		}
	}
	for i := range f.podConnections() {
		if l := &f.podConnections()[i]; f.subnetsOf(l.From.Cluster).real(l.Seen) && !reported[l.From] {
			found(Finding{
				Scope:    Scope{Cluster: l.From.Cluster, Node: l.From.Node, Remote: l.To.Cluster}, // whose pod says so
				Evidence: says(fmt.Sprintf("a pod on %s received packets from the real address %s", l.To.Node, l.Seen), tryAgain(l)),
			})
		}
	}
}
