package judge

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

func podsSkipped(f *Facts, found func(Finding)) {
	for c, p := range f.policies() {
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			for _, why := range slices.Sorted(maps.Keys(r.Skipped)) {
				if s := r.Skipped[why]; why != "finished" && why != "no_address" {
					found(Finding{Scope: Scope{Cluster: c.Name, Remote: r.Name}, Evidence: says(why+": "+strings.Join(s.Examples, ", "), p.Source), With: []string{"{pods}", fmt.Sprint(s.Pods)}})
				}
			}
		}
	}
}

// poolsMissing looks for IP pools of Calico that contain the remotes' pod subnets: in the
// report of semaphore-policy, and in the pools and settings themselves.
func poolsMissing(f *Facts, found func(Finding)) {
	reported := map[Scope]bool{}
	missing := func(c *inspect.Cluster, remote string, evidence Evidence) {
		scope := Scope{Cluster: c.Name, Remote: remote}
		if reported[scope] {
			return
		}
		reported[scope] = true
		found(Finding{Scope: scope, Evidence: []Evidence{evidence}})
	}
	for c, p := range f.policies() {
		for _, remote := range slices.Sorted(maps.Keys(p.Value.Pools.Faults)) {
			missing(c, remote, Evidence{strings.Join(p.Value.Pools.Faults[remote], "; "), p.Source})
		}
	}
	pooled := map[*inspect.Cluster]map[netip.Prefix]bool{}
	for _, c := range f.Clusters {
		pooled[c] = pools(c)
	}
	for v := range f.views() {
		if len(v.cluster.Pools.Value) == 0 {
			continue // Calico doesn't allocate the addresses.
		}
		for _, subnet := range v.remote.PodSubnets {
			if !contains(pooled[v.cluster], subnet) {
				missing(v.cluster, v.Remote, Evidence{"no disabled pool without BGP export contains " + subnet, v.cluster.Pools.Source})
				break
			}
		}
	}
}

// pools returns the prefixes of a cluster's disabled pools that aren't exported.
func pools(c *inspect.Cluster) map[netip.Prefix]bool {
	all := map[netip.Prefix]bool{}
	for _, p := range c.Pools.Value {
		if prefix, err := netip.ParsePrefix(p.CIDR); err == nil && p.Disabled && p.NoExport {
			all[prefix.Masked()] = true
		}
	}
	return all
}

// contains reports whether one of the prefixes contains a subnet.
func contains(prefixes map[netip.Prefix]bool, subnet string) bool {
	want, err := netip.ParsePrefix(subnet)
	for bits := want.Bits(); err == nil && bits >= 0; bits-- {
		if prefixes[netip.PrefixFrom(want.Addr(), bits).Masked()] {
			return true
		}
	}
	return false
}

// nameTaken finds network sets whose name another object has.
func nameTaken(f *Facts, found func(Finding)) {
	for c, p := range f.policies() {
		if !p.Value.Leading {
			continue
		}
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			for _, s := range r.Sets {
				if s.NameTaken != "" {
					found(Finding{Scope: Scope{Cluster: c.Name, Remote: r.Name}, Evidence: says(s.NameTaken, p.Source), With: []string{"{set}", s.Object}})
				}
			}
		}
	}
}

// fault is one of a service: a case of its reason, and what is said of it.
type fault struct{ which, what string }

// faultsOf returns the faults of a service, those first that have a remedy of their own.
func faultsOf(s *statuspage.Service) (all []fault) {
	add := func(which, what string) { all = append(all, fault{which, what}) }
	if s.Error != "" {
		which := ""
		if strings.Contains(s.Error, "its name is taken") {
			which = "name-taken"
		}
		add(which, s.Error)
	}
	for _, conflict := range s.Conflicts {
		add("conflict", "conflict: "+conflict.Cluster+": "+conflict.What)
	}
	for _, cluster := range slices.Sorted(maps.Keys(s.Refused)) {
		add("refused", "endpoints of "+cluster+" refused: "+s.Refused[cluster])
	}
	if len(s.Foreign) > 0 {
		add("foreign", "foreign EndpointSlices: "+strings.Join(s.Foreign[:min(len(s.Foreign), maxEvidence)], ", "))
	}
	if s.Held != "" {
		add("held", "held: "+s.Held)
	}
	for i := range s.Overridden {
		add("", s.Overridden[i].String())
	}
	return all
}

func services(f *Facts, found func(Finding)) {
	for c, m := range f.mirrors() {
		if !m.Value.Leading {
			continue
		}
		for i := range m.Value.Services {
			s := &m.Value.Services[i]
			finding, what := Finding{Scope: Scope{Cluster: c.Name}, With: []string{"{service}", s.Name}}, []string(nil)
			for _, one := range faultsOf(s) {
				what, finding.Case = append(what, one.what), cmp.Or(finding.Case, one.which)
			}
			if len(what) == 0 {
				continue
			}
			if origin, _, _ := strings.Cut(s.Origin, "/"); len(s.Clusters) <= 1 {
				finding.Remote = remoteOf(c, origin) // No other cluster has this service.
			}
			finding.Evidence = says(strings.Join(what, "; "), m.Source)
			found(finding)
		}
		of := func(which, remote, what string) {
			found(Finding{Scope: Scope{Cluster: c.Name, Remote: remote}, Evidence: says(what, m.Source), Case: which})
		}
		for _, r := range m.Value.Rejected {
			origin, _, _ := strings.Cut(r.Origin, "/")
			of("rejected", origin, r.Origin+" isn't mirrored: "+r.Reason)
		}
		for _, former := range m.Value.Former {
			of("former", former.Name, fmt.Sprintf("%s is no longer configured: services (%d) and endpoint slices (%d) of it are left", former.Name, former.Services, former.Slices))
		}
		for _, name := range m.Value.Departed {
			of("departed", name, name+" is in SEMAPHORE_DEPARTED_REMOTES and in SEMAPHORE_REMOTES")
		}
		for i := range m.Value.Clusters {
			if remote := &m.Value.Clusters[i]; remote.Bounds != "" {
				of("bounds", remote.Name, remote.Name+" isn't mirrored: "+remote.Bounds)
			}
		}
	}
}

func sets(f *Facts, found func(Finding)) {
	for c, p := range f.policies() {
		for j := range p.Value.Remotes {
			r := &p.Value.Remotes[j]
			of := func(which, set, what string) {
				found(Finding{Scope: Scope{Cluster: c.Name, Remote: r.Name}, Evidence: says(what, p.Source), Case: which, With: []string{"{set}", set}})
			}
			for _, name := range slices.Sorted(maps.Keys(r.Failing)) {
				of("", name, r.Failing[name])
			}
			for k := range r.Overridden {
				of("overridden", r.Overridden[k].Object, r.Overridden[k].String())
			}
		}
	}
}
