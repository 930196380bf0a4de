package join

import (
	"fmt"
	"net/netip"
	"net/url"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// collisions holds ranges of pods that a cluster is going to take from a remote against
// what it then has for its other remotes, also those that are joined again and have said
// less by now, and all pods against the nodes and API servers of all: packets for these
// would go into the remote's tunnel. An agent refuses settings in which pods of two remotes
// overlap. What the administrator has named isn't held against room for nodes and API
// servers in the settings.
func collisions(f *facts.Facts, want facts.Settings, agreed []agreement, all []*facts.Facts) []fault {
	faults := nodesAmongPods(f, want, all)
	for _, a := range agreed {
		for _, b := range a.bounds {
			if a.cluster != f.Name || b.key != facts.PodSubnets {
				continue
			}
			hold := func(what, of string, others []netip.Prefix) {
				for _, p := range b.prefixes {
					for _, other := range others {
						if of != a.remote && p.Overlaps(other) {
							faults = append(faults, fault{cluster: a.remote, what: fmt.Sprintf("pods %s of it overlap the %s of %s at %s, as %s has it", p, what, of, other, f.Name),
								remedy: "one of the clusters must get others; where they are found wrong, --pod-subnets " + a.remote + "=... says what is right"})
						}
					}
				}
			}
			for _, remote := range want.Remotes() {
				hold("pods", string(remote), want.Prefixes(remote, facts.PodSubnets))
				if !b.given {
					hold("nodes", string(remote), want.Prefixes(remote, facts.NodeSubnets))
					hold("API server", string(remote), literal(want[remote.Variables()+"_API_URL"]))
				}
			}
		}
	}
	return faults
}

// nodesAmongPods holds the nodes and API servers of all clusters against the pods that one
// has for a remote of them, which may have said more once than it says now.
func nodesAmongPods(f *facts.Facts, want facts.Settings, all []*facts.Facts) []fault {
	var faults []fault
	for _, remote := range all {
		pods := facts.Compact(want.Prefixes(cluster.Name(remote.Name), facts.PodSubnets))
		hold := func(of *facts.Facts, what string, address netip.Addr) {
			for _, p := range pods {
				if p.Contains(address.WithZone("")) {
					faults = append(faults, fault{cluster: f.Name, what: fmt.Sprintf("%s of %s is inside the pods %s that it has for %s", what, of.Name, p, remote.Name),
						remedy: "one of the clusters must get others, or --pod-subnets " + remote.Name + "=... says what is right"})
				}
			}
		}
		for _, other := range all {
			if other == remote || remote == f || len(pods) == 0 {
				continue
			}
			for _, server := range other.Servers {
				for _, at := range literal(server) {
					hold(other, "the API server "+at.Addr().String(), at.Addr())
				}
			}
			for _, n := range other.Nodes {
				for _, address := range n.Addresses {
					hold(other, "node "+n.Name, address)
				}
			}
		}
	}
	return faults
}

// literal is where a server is, if that is an address.
func literal(server string) []netip.Prefix {
	u, err := url.Parse(server)
	if err != nil {
		return nil
	}
	address, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return nil
	}
	address = address.Unmap().WithZone("")
	return []netip.Prefix{netip.PrefixFrom(address, address.BitLen())}
}
