package peers

import (
	"errors"
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
	ReasonEndpoint        Reason = "endpoint"         // malformed or not a possible one
	ReasonNoEndpoint      Reason = "no_endpoint"      // neither the node nor this one has any: nobody could begin
	ReasonPodCIDR         Reason = "pod_cidr"         // missing, malformed or outside the remote's pod subnets
	ReasonDuplicatePrefix Reason = "duplicate_prefix" // a node that comes before has it, or a part of it
	ReasonTooManyPeers    Reason = "too_many_peers"   // those that come before are as many as there may be
	ReasonManyPrefixes    Reason = "many_prefixes"    // the node has more than one may have, or all have together
	ReasonFlapping        Reason = "flapping"         // the address went from node to node, and stays with another one for now
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
	// Local holds the addresses of this cluster, where no endpoint may be. What nodes
	// of this cluster say of themselves ends none that was accepted before.
	Local *Local
	// Hidden says that this node publishes no endpoint: it can't be reached before it
	// has spoken.
	Hidden bool
	// Borrowed says that a single address inside another node's prefix goes to the
	// node that publishes it; otherwise it is rejected as any other prefix there.
	Borrowed bool
	// MaxPrefixes is how many prefixes of one node count; 0: all.
	MaxPrefixes int
	// MaxAllowedIPs is how many prefixes all nodes may have together; 0: any number.
	// What was accepted before comes first.
	MaxAllowedIPs int
	// Now is when the decision is made.
	Now time.Time
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
// or prefix: then the one keeps it to which the remote's control plane gave it, or of
// which it was accepted first for as long as it claims it, and of those of which it
// never was, the one that isn't in conflict with several, or was created first. When a
// node was created is what the remote says.
func DesiredAfter(before Accepted, nodes []Node, rules Rules) ([]Peer, []Rejection, Accepted) {
	claimants := make([]claimant, len(nodes))
	for i := range nodes {
		claimants[i] = claimant{Node: &nodes[i], reading: nodes[i].read}
		if claimants[i].reading == nil {
			claimants[i].reading = read(nodes[i], rules.MaxPrefixes)
		}
	}
	slices.SortFunc(claimants, func(a, b claimant) int { return older(a.Node, b.Node) })

	var (
		peers    = make([]Peer, 0, len(nodes))
		rejected []Rejection
		share    = newSharing(before, claimants, &rules)
		keys     = before.renewed(claimants, &rules)
		accepted = make(map[string][]netip.Prefix, len(nodes))
		ownAddrs = make(map[netip.Addr]struct{}, len(rules.OwnAddrs))
		disputed map[string]string
	)
	places := rules.MaxPeers - len(keys) // for those that weren't accepted before
	for _, a := range rules.OwnAddrs {
		ownAddrs[a.Unmap().WithZone("")] = struct{}{}
	}
	for i := range claimants {
		n := &claimants[i]
		// What it had stays its own while it claims it, also when it can't be a peer.
		if still := share.still(n); len(still) > 0 {
			accepted[n.Name] = still
		}
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
		claim := ""
		if err == nil && n.endpoint.IsValid() {
			claim, err = leadsAway(n, ownAddrs, before, &rules)
		}
		if err != nil {
			reject(ReasonEndpoint, err)
			continue
		}
		if !n.endpoint.IsValid() && rules.Hidden {
			reject(ReasonNoEndpoint, errBothHidden)
			continue
		}
		_, known := keys[key]
		if rules.MaxPeers > 0 && (!known && places <= 0 || len(peers) >= rules.MaxPeers) {
			reject(ReasonTooManyPeers, fmt.Errorf("there may be %d peers, and others come first (SEMAPHORE_REMOTE_<NAME>_WG_MAX_PEERS)", rules.MaxPeers))
			continue
		}
		allowed, refused := share.allowed(n)
		for i := range refused {
			refused[i].Partial = len(allowed) > 0
		}
		rejected = append(rejected, fewer(refused)...)
		if len(allowed) == 0 && len(refused) > 0 {
			continue
		}
		if len(allowed) > 0 {
			accepted[n.Name] = allowed
		}
		if !known {
			keys[key] = n.Name
			places--
		}
		peers = append(peers, rules.introduced(Peer{Node: n.Name, Peer: tunnel.Peer{
			PublicKey:  key,
			Endpoint:   n.endpoint,
			AllowedIPs: allowed,
			Keepalive:  Keepalive,
		}}))
		if claim != "" {
			if disputed == nil {
				disputed = map[string]string{}
			}
			disputed[n.Name] = claim
		}
	}
	slices.SortFunc(peers, func(a, b Peer) int { return a.PublicKey.Compare(b.PublicKey) })
	slices.SortStableFunc(rejected, func(a, b Rejection) int { return strings.Compare(a.Node, b.Node) })
	return peers, rejected, Accepted{keys: keys, prefixes: accepted, peers: peers, disputed: disputed, moved: before.moves(claimants, share.single.held, rules.Now)}
}

var errBothHidden = errors.New("neither the node nor this one publishes an endpoint, so that nobody could begin: one of them has to be reachable (SEMAPHORE_WG_ENDPOINT, " + LocationAnnotation + ")")

// claimant is a node and what it says.
type claimant struct {
	*Node
	*reading
	*conflict // nil: none that counts
}

// leadsAway checks that packets to a node's endpoint lead to the remote's nodes, as far
// as that is known, and not back into this cluster. The claim is what a node of this
// cluster says of itself against an endpoint that was accepted before.
func leadsAway(n *claimant, own map[netip.Addr]struct{}, before Accepted, rules *Rules) (claim string, err error) {
	endpoint, addr := n.endpoint, n.endpoint.Addr()
	if _, ours := own[addr]; ours {
		return "", fmt.Errorf("endpoint %q: the address is this host's own, or that of all hosts on one of its links", endpoint)
	}
	for _, p := range rules.Tunneled {
		if p.Contains(addr) {
			return "", fmt.Errorf("endpoint %q: lies in the pod subnet %s, which is reached through a tunnel itself", endpoint, p)
		}
	}
	if certain, err := rules.Local.holds(addr); err != nil {
		if certain || !before.at(n.Name, addr) {
			return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		claim = err.Error()
	}
	if len(rules.NodeSubnets) > 0 && !within(netip.PrefixFrom(addr, addr.BitLen()), rules.NodeSubnets) {
		return "", fmt.Errorf("endpoint %q: lies outside the remote's node subnets %s", endpoint, join(rules.NodeSubnets))
	}
	return claim, nil
}

// introduced returns the peer, or one that has to speak first, as long as it isn't
// known whether its endpoint is in this cluster. Nor is anything sent to one that
// publishes no endpoint: it is behind address translation, and sends keepalives, which
// also keep the way back open. Once it has spoken WireGuard knows where it is.
func (r *Rules) introduced(p Peer) Peer {
	if _, before := r.known[p.Endpoint.Addr()]; r.LocalUnknown && !before {
		p.Endpoint = netip.AddrPort{}
	}
	if !p.Endpoint.IsValid() {
		p.Keepalive = 0
	}
	return p
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
