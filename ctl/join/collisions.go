package join

import (
	"fmt"
	"net/netip"
	"net/url"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// collisions finds overlaps of the pod subnets that a cluster is going to accept of a remote
// with its settings for other remotes, which may contain more than these report now, and of
// all pod subnets with nodes and API servers: packets to these would be routed into the
// remote's tunnel. An agent refuses settings in which the pods of two remotes overlap. Pod
// subnets of the administrator aren't compared with the node subnets and API servers in the
// settings.
func collisions(f *inspect.Facts, want inspect.Settings, agreed []agreement, all []*inspect.Facts) []fault {
	faults := nodesAmongPods(f, want, all)
	for _, a := range agreed {
		for _, b := range a.bounds {
			if a.cluster != f.Name || b.key != inspect.PodSubnets {
				continue
			}
			compare := func(what, of string, others []netip.Prefix) {
				for _, p := range b.prefixes {
					for _, other := range others {
						if of != a.remote && p.Overlaps(other) {
							faults = append(faults, fault{cluster: a.remote, what: fmt.Sprintf("its pods %s overlap the %s of %s at %s, in the settings of %s", p, what, of, other, f.Name),
								remedy: "move one of the clusters to other addresses; if the detected ones are wrong, use --pod-subnets " + a.remote + "=..."})
						}
					}
				}
			}
			for _, remote := range want.Remotes() {
				compare("pods", string(remote), want.Prefixes(remote, inspect.PodSubnets))
				if !b.given {
					compare("nodes", string(remote), want.Prefixes(remote, inspect.NodeSubnets))
					compare("API server", string(remote), literal(want[remote.Variables()+"_API_URL"]))
				}
			}
		}
	}
	return faults
}

// nodesAmongPods compares the nodes and API servers of all clusters with the pod subnets in
// a cluster's settings, which may be larger than what the remotes report now. A remote's own
// nodes may be there, its API server may not: packets to it would enter the tunnel.
func nodesAmongPods(f *inspect.Facts, want inspect.Settings, all []*inspect.Facts) []fault {
	var faults []fault
	for _, remote := range all {
		pods := inspect.Compact(want.Prefixes(cluster.Name(remote.Name), inspect.PodSubnets))
		compare := func(of *inspect.Facts, what string, address netip.Addr) {
			for _, p := range pods {
				if p.Contains(address.WithZone("")) {
					faults = append(faults, fault{cluster: f.Name, what: fmt.Sprintf("%s of %s is inside the pod subnet %s in its settings for %s", what, of.Name, p, remote.Name),
						remedy: "move one of the clusters to other addresses, or narrow the pod subnets with --pod-subnets " + remote.Name + "=..."})
				}
			}
		}
		for _, other := range all {
			if remote == f || len(pods) == 0 {
				continue
			}
			for _, server := range other.Servers {
				for _, at := range literal(server) {
					compare(other, "the API server "+at.Addr().String(), at.Addr())
				}
			}
			if other == remote {
				continue // Its nodes may share subnets with its pods.
			}
			for _, n := range other.Nodes {
				for _, address := range n.Addresses {
					compare(other, "node "+n.Name, address)
				}
			}
		}
	}
	return faults
}

// literal returns the address of a server's URL, unless it has a host name.
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
