package policy

import (
	"net/netip"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
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
	// Map translates the addresses of its pods to those by which they are known here; nil: they
	// are the same.
	Map config.SubnetMap
	// Subnets must contain the translated addresses; none: any address.
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
		if !addr.IsValid() {
			continue
		}
		if addr = r.Map.Virtual(addr); !r.inside(addr) {
			reason = ReasonOutside
			continue
		}
		addrs = append(addrs, addr)
	}
	if reason == "" && len(addrs) == 0 {
		reason = ReasonNoAddress
	}
	return addrs, reason
}

func (r *Rules) inside(addr netip.Addr) bool {
	return len(r.Subnets) == 0 || slices.ContainsFunc(r.Subnets, func(p netip.Prefix) bool { return p.Contains(addr) })
}
