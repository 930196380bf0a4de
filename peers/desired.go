package peers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// Keepalive is sent to every peer, so that a restarted side is found again
// without traffic and mappings in between stay open.
const Keepalive = 25 * time.Second

// Peer is a peer of a device together with the node that it stands for.
type Peer struct {
	Node string
	tunnel.Peer
}

// Reason says, in a word fit for a metric's label, why something that a node
// published was not accepted.
type Reason string

// The reasons for which a node, or one of its prefixes, is rejected.
const (
	ReasonPublicKey       Reason = "public_key"       // missing, malformed or ours
	ReasonDuplicateKey    Reason = "duplicate_key"    // a node that comes before has it
	ReasonEndpoint        Reason = "endpoint"         // missing, malformed or not a possible one
	ReasonPodCIDR         Reason = "pod_cidr"         // missing, malformed or outside the remote's pod subnets
	ReasonDuplicatePrefix Reason = "duplicate_prefix" // a node that comes before has it, or a part of it
	ReasonTooManyPeers    Reason = "too_many_peers"   // those that come before are as many as there may be
	ReasonManyPrefixes    Reason = "many_prefixes"    // the node has more than one may have
)

// Rejection tells what of a node was not accepted.
type Rejection struct {
	Node   string `json:"node"`
	Reason Reason `json:"reason"`
	Detail string `json:"detail"`
	// Partial is set when only one prefix was refused and the node is a peer
	// all the same, with its others.
	Partial bool `json:"partial,omitempty"`
}

// Rules are the bounds within which a remote cluster is trusted.
type Rules struct {
	// Subnets are the remote's pod subnets: a node may claim prefixes in them.
	Subnets []netip.Prefix
	// Tunneled are the pod subnets of all remotes: an endpoint inside would
	// send the tunnel's own packets into a tunnel.
	Tunneled []netip.Prefix
	// OwnKeys are the public keys of this node's devices.
	OwnKeys []tunnel.Key
	// OwnAddrs are the addresses of this host, and those of all hosts on its
	// links.
	OwnAddrs []netip.Addr
	// NodeSubnets are where the remote's endpoints may be; empty: anywhere.
	NodeSubnets []netip.Prefix
	// Local holds the addresses of this cluster, where no endpoint may be.
	Local *Local
	// MaxPeers is how many of the nodes may be peers; 0: any number. Those of
	// which a key was accepted before keep their places.
	MaxPeers int
	// LocalUnknown is set until the local API server has told them. Nodes at
	// endpoints that weren't accepted before then are peers that have to speak
	// first.
	LocalUnknown bool

	known map[netip.Addr]struct{} // endpoints that an earlier process accepted
}

// Desired is DesiredAfter for nodes of which none was accepted before.
func Desired(nodes []Node, rules Rules) ([]Peer, []Rejection) {
	peers, rejected, _ := DesiredAfter(Accepted{}, nodes, rules)
	return peers, rejected
}

// DesiredAfter computes from all nodes of a remote, and from what was accepted of
// them before, the peers that its device must have, sorted by public key, what was
// rejected, sorted by node, and what is accepted now. It changes nothing and
// depends on nothing but its arguments; the order of nodes doesn't matter. One bad
// node never changes what another one gets, except where both claim the same key
// or prefix: then the node of which it was accepted first keeps it for as long as
// it claims it, and of those of which it never was, the one that was created first.
// When a node was created is what the remote says.
func DesiredAfter(before Accepted, nodes []Node, rules Rules) ([]Peer, []Rejection, Accepted) {
	claimants := make([]claimant, len(nodes))
	for i := range nodes {
		claimants[i] = claimant{&nodes[i], nodes[i].read}
		if claimants[i].reading == nil {
			claimants[i].reading = read(nodes[i])
		}
	}
	slices.SortFunc(claimants, func(a, b claimant) int { return older(a.Node, b.Node) })

	var (
		peers    = make([]Peer, 0, len(nodes))
		rejected []Rejection
		claims   = newClaims(claimants)
		keys     = before.renewed(claimants, rules, claims)
		ownAddrs = make(map[netip.Addr]struct{}, len(rules.OwnAddrs))
	)
	places := rules.MaxPeers - len(keys) // for those that weren't accepted before
	for _, a := range rules.OwnAddrs {
		ownAddrs[a.Unmap().WithZone("")] = struct{}{}
	}
	for _, n := range claimants {
		reject := func(reason Reason, err error) {
			rejected = append(rejected, Rejection{Node: n.Name, Reason: reason, Detail: printable.Error(err).Error()})
		}
		key, err := n.key, n.keyErr
		if err == nil && slices.Contains(rules.OwnKeys, key) {
			err = fmt.Errorf("public key %s is this node's own", key)
		}
		if err != nil {
			reject(ReasonPublicKey, err)
			continue
		}
		if owner, taken := keys[key]; taken && owner != n.Name {
			reject(ReasonDuplicateKey, fmt.Errorf("public key %s is already that of node %q", key, owner))
			continue
		}
		err = n.endpointErr
		if err == nil {
			err = leadsAway(n.endpoint, ownAddrs, &rules)
		}
		if err != nil {
			reject(ReasonEndpoint, err)
			continue
		}
		_, before := keys[key]
		if rules.MaxPeers > 0 && (!before && places <= 0 || len(peers) >= rules.MaxPeers) {
			reject(ReasonTooManyPeers, fmt.Errorf("there may be %d peers, and others come first (SEMAPHORE_REMOTE_<NAME>_WG_MAX_PEERS)", rules.MaxPeers))
			continue
		}
		allowed, refused := allowedIPs(n.Name, n.podCIDRs, rules.Subnets, claims)
		if n.more {
			refused = append(refused, Rejection{Node: n.Name, Reason: ReasonManyPrefixes,
				Detail: fmt.Sprintf("the node has more than %d podCIDRs: the first ones count", maxPrefixes)})
		}
		for i := range refused {
			refused[i].Partial = len(allowed) > 0
		}
		rejected = append(rejected, fewer(refused)...)
		if len(allowed) == 0 {
			continue
		}
		if !before {
			keys[key] = n.Name
			places--
		}
		peers = append(peers, rules.introduced(Peer{Node: n.Name, Peer: tunnel.Peer{
			PublicKey:  key,
			Endpoint:   n.endpoint,
			AllowedIPs: allowed,
			Keepalive:  Keepalive,
		}}))
	}
	slices.SortFunc(peers, func(a, b Peer) int { return a.PublicKey.Compare(b.PublicKey) })
	slices.SortStableFunc(rejected, func(a, b Rejection) int { return strings.Compare(a.Node, b.Node) })
	return peers, rejected, Accepted{keys: keys, prefixes: claims.held}
}

// claimant is a node and what it says.
type claimant struct {
	*Node
	*reading
}

// leadsAway checks that packets to an endpoint lead to the remote's nodes, as far
// as that is known, and not back into this cluster.
func leadsAway(endpoint netip.AddrPort, own map[netip.Addr]struct{}, rules *Rules) error {
	addr := endpoint.Addr()
	if _, ours := own[addr]; ours {
		return fmt.Errorf("endpoint %q: the address is this host's own, or that of all hosts on one of its links", endpoint)
	}
	for _, p := range rules.Tunneled {
		if p.Contains(addr) {
			return fmt.Errorf("endpoint %q: lies in the pod subnet %s, which is reached through a tunnel itself", endpoint, p)
		}
	}
	if err := rules.Local.holds(addr); err != nil {
		return fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	if len(rules.NodeSubnets) > 0 && !within(netip.PrefixFrom(addr, addr.BitLen()), rules.NodeSubnets) {
		return fmt.Errorf("endpoint %q: lies outside the remote's node subnets %s", endpoint, join(rules.NodeSubnets))
	}
	return nil
}

// introduced returns the peer, or one that has to speak first, as long as it isn't
// known whether its endpoint is in this cluster. Without keepalives nothing is sent
// to such a one.
func (r *Rules) introduced(p Peer) Peer {
	if _, before := r.known[p.Endpoint.Addr()]; r.LocalUnknown && !before {
		p.Endpoint, p.Keepalive = netip.AddrPort{}, 0
	}
	return p
}

// allowedIPs returns the prefixes that a node gets, sorted, and what was
// refused. A prefix that is refused doesn't take the node's others with it: in
// a cluster with two address families one may be configured here and the other
// not.
func allowedIPs(node string, podCIDRs []podCIDR, subnets []netip.Prefix, claims *claims) ([]netip.Prefix, []Rejection) {
	var (
		allowed []netip.Prefix
		refused []Rejection
	)
	refuse := func(reason Reason, format string, args ...any) {
		refused = append(refused, Rejection{Node: node, Reason: reason, Detail: printable.Text(fmt.Sprintf(format, args...), printable.Short)})
	}
	if len(podCIDRs) == 0 {
		refuse(ReasonPodCIDR, "the node has no podCIDR")
	}
	for _, c := range podCIDRs {
		if c.err != nil {
			refuse(ReasonPodCIDR, "%v", c.err)
			continue
		}
		if !within(c.prefix, subnets) {
			refuse(ReasonPodCIDR, "pod CIDR %s lies outside the remote's pod subnets %s", c.prefix, join(subnets))
			continue
		}
		if owner, other, taken := claims.take(c.prefix, node); taken {
			if owner != node {
				refuse(ReasonDuplicatePrefix, "pod CIDR %s overlaps %s of node %q, which comes first", c.prefix, other, owner)
			}
			continue
		}
		allowed = append(allowed, c.prefix)
	}
	slices.SortFunc(allowed, netip.Prefix.Compare)
	return allowed, refused
}

// maxRefused is how many prefixes of one node are told one by one.
const maxRefused = 4

// fewer returns as many of one node's rejections as are told.
func fewer(refused []Rejection) []Rejection {
	if left := len(refused) - maxRefused; left > 0 {
		refused = slices.Clone(refused[:maxRefused])
		refused[maxRefused-1].Detail += fmt.Sprintf("; and %d more like that", left)
	}
	return refused
}

// within tells whether a prefix lies wholly inside one of the subnets.
func within(p netip.Prefix, subnets []netip.Prefix) bool {
	return slices.ContainsFunc(subnets, func(s netip.Prefix) bool {
		return s.Bits() <= p.Bits() && s.Contains(p.Addr())
	})
}

func join(prefixes []netip.Prefix) string {
	s := make([]string, len(prefixes))
	for i, p := range prefixes {
		s[i] = p.String()
	}
	return strings.Join(s, ", ")
}
