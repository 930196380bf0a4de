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

// Keepalive is the interval of persistent keepalives, by which a restarted side is
// detected without traffic and NAT mappings stay open.
const Keepalive = 25 * time.Second

// Peer is a peer of a device with its node.
type Peer struct {
	Node string
	tunnel.Peer
}

// Reason is why a node or one of its prefixes was rejected; it is a metric's label.
type Reason string

// The reasons for which a node, or one of its prefixes, is rejected.
const (
	ReasonPublicKey       Reason = "public_key"       // missing, malformed or ours
	ReasonDuplicateKey    Reason = "duplicate_key"    // a node with precedence has it
	ReasonEndpoint        Reason = "endpoint"         // malformed or not allowed
	ReasonNoEndpoint      Reason = "no_endpoint"      // neither the node nor this one has any: no side can initiate
	ReasonPodCIDR         Reason = "pod_cidr"         // missing, malformed or outside the remote's pod subnets
	ReasonDuplicatePrefix Reason = "duplicate_prefix" // a node with precedence has it, or a part of it
	ReasonTooManyPeers    Reason = "too_many_peers"   // over Rules.MaxPeers
	ReasonManyPrefixes    Reason = "many_prefixes"    // over Rules.MaxPrefixes or Rules.MaxAllowedIPs
	ReasonUndecided       Reason = "undecided"        // what the remote's control plane allocated decides, and isn't read yet
)

// Rejection is a node, or a part of it, that was rejected.
type Rejection struct {
	Node   string
	Reason Reason
	Detail string
	// Partial is set when only a prefix was rejected and the node is a peer with its
	// others.
	Partial bool
}

// maxRefused bounds the rejections of one node's prefixes that are listed singly.
const maxRefused = 4

// fewer truncates one node's rejections to maxRefused.
func fewer(refused []Rejection) []Rejection {
	if left := len(refused) - maxRefused; left > 0 {
		refused = slices.Clone(refused[:maxRefused])
		refused[maxRefused-1].Detail += fmt.Sprintf("; and %d more", left)
	}
	return refused
}

// Rules are the bounds within which a remote cluster is trusted.
type Rules struct {
	// Subnets are the remote's pod subnets: a node may claim prefixes in them.
	Subnets []netip.Prefix
	// Tunneled are the pod subnets of other remotes, and of this one if packets to endpoints
	// inside would be routed into the tunnel: no endpoint may be there.
	Tunneled []netip.Prefix
	// OwnKeys are the public keys of this node's devices.
	OwnKeys []tunnel.Key
	// OwnAddrs are the addresses of this host and the broadcast addresses of its links.
	OwnAddrs []netip.Addr
	// NodeSubnets contain the remote's endpoints; empty: any address.
	NodeSubnets []netip.Prefix
	// Local holds the addresses of this cluster, which no endpoint may have. Addresses that
	// nodes of this cluster claim themselves reject no endpoint that was accepted before.
	Local *Local
	// Hidden is set when this node publishes no endpoint: it has to send first.
	Hidden bool
	// Borrowed allows a single address inside another node's prefix; otherwise it is
	// rejected like any other prefix there.
	Borrowed bool
	// MaxPrefixes bounds the prefixes of one node; 0: no bound.
	MaxPrefixes int
	// MaxAllowedIPs bounds the prefixes of all nodes together; 0: no bound. Prefixes that
	// were accepted before take precedence.
	MaxAllowedIPs int
	// MaxPeers bounds the peers; 0: no bound. Nodes whose key was accepted before take
	// precedence.
	MaxPeers int
	// LocalUnknown is set until Local has been read. Until then nodes with endpoints that
	// were not accepted before become peers without endpoint, which have to send first.
	LocalUnknown bool

	known map[netip.Addr]struct{} // endpoints that an earlier process accepted
}

// Desired is DesiredAfter without earlier state.
func Desired(nodes []*Node, rules Rules) ([]Peer, []Rejection) {
	peers, rejected, _ := DesiredAfter(Accepted{}, nodes, rules)
	return peers, rejected
}

// DesiredAfter computes the peers of a remote's device from all nodes of the remote and
// from what was accepted before. It returns the peers, sorted by public key, the
// rejections, sorted by node, and the new accepted state. It is pure; the order of nodes
// doesn't matter.
//
// One bad node never changes what another one gets, except where both claim the same key or prefix:
// see rule for prefixes, and join. A key belongs to the node that it was accepted from, as long as it
// claims it, else to the older one, by the creation time that the remote states.
func DesiredAfter(before Accepted, nodes []*Node, rules Rules) ([]Peer, []Rejection, Accepted) {
	sorted := make([]*Node, len(nodes))
	for i, n := range nodes {
		sorted[i] = n.parse(rules.MaxPrefixes)
	}
	slices.SortFunc(sorted, older)

	var (
		peers     = make([]Peer, 0, len(nodes))
		rejected  []Rejection
		checks    = make([]check, len(sorted))
		sound     = make([]bool, len(sorted))
		keys      = before.retainedKeys(sorted, &rules)
		accepted  = make(map[string][]netip.Prefix, len(nodes))
		ownAddrs  = make(map[netip.Addr]struct{}, len(rules.OwnAddrs))
		disputed  map[string]string
		same      []*Node          // with the key of another one
		endpoints []netip.AddrPort // that the nodes of peers publish
		joined    map[string]struct{}
	)
	remaining := rules.MaxPeers - len(keys) // for new nodes
	for _, a := range rules.OwnAddrs {
		ownAddrs[a.Unmap().WithZone("")] = struct{}{}
	}
	for i, n := range sorted {
		checks[i] = checkNode(n, ownAddrs, before, &rules)
		sound[i] = checks[i].err == nil
	}
	assignments := newAssignment(before, sorted, sound, &rules)
	for i, n := range sorted {
		// Accepted prefixes stay reserved while the node claims them, even if it is rejected.
		if retained := assignments.retained(n); len(retained) > 0 {
			accepted[n.Name] = retained
		}
		reject := func(reason Reason, err error) {
			rejected = append(rejected, Rejection{Node: n.Name, Reason: reason, Detail: printable.Error(err).Error()})
		}
		key := n.key
		owner, taken := keys[key]
		taken = taken && owner != n.Name && checks[i].reason != ReasonPublicKey
		switch {
		case taken:
			same = append(same, n)
			continue
		case checks[i].err != nil:
			reject(checks[i].reason, checks[i].err)
			continue
		}
		_, known := keys[key]
		if rules.MaxPeers > 0 && (!known && remaining <= 0 || len(peers) >= rules.MaxPeers) {
			reject(ReasonTooManyPeers, fmt.Errorf("at most %d peers are allowed, and others take precedence (SEMAPHORE_REMOTE_<NAME>_WG_MAX_PEERS)", rules.MaxPeers))
			continue
		}
		allowed, refused := assignments.of(n)
		rejected = append(rejected, refused...)
		if len(allowed) == 0 && len(refused) > 0 {
			continue
		}
		if len(allowed) > 0 {
			accepted[n.Name] = allowed
		}
		if !known {
			keys[key] = n.Name
			remaining--
		}
		endpoints = append(endpoints, n.endpoint)
		peers = append(peers, rules.withEndpoint(Peer{Node: n.Name, Peer: tunnel.Peer{
			PublicKey:  key,
			Endpoint:   n.endpoint,
			AllowedIPs: allowed,
			Keepalive:  Keepalive,
		}}))
		if checks[i].claim != "" {
			if disputed == nil {
				disputed = map[string]string{}
			}
			disputed[n.Name] = checks[i].claim
		}
	}
	if len(same) > 0 {
		var refused []Rejection
		joined, refused = assignments.join(same, keys, peers, endpoints, accepted)
		rejected = append(rejected, refused...)
	}
	slices.SortFunc(peers, func(a, b Peer) int { return a.PublicKey.Compare(b.PublicKey) })
	slices.SortStableFunc(rejected, func(a, b Rejection) int { return strings.Compare(a.Node, b.Node) })
	return peers, rejected, Accepted{keys: keys, prefixes: accepted, peers: peers, joined: joined, disputed: disputed, undecided: assignments.undecided}
}

// check is what is wrong with a node by itself; without err it is sound.
type check struct {
	reason Reason
	err    error
	claim  string // of a node of this cluster to its endpoint, which was accepted before
}

func checkNode(n *Node, own map[netip.Addr]struct{}, before Accepted, rules *Rules) (c check) {
	switch {
	case n.keyErr != nil:
		return check{reason: ReasonPublicKey, err: n.keyErr}
	case slices.Contains(rules.OwnKeys, n.key):
		return check{reason: ReasonPublicKey, err: fmt.Errorf("public key %s is this node's own", n.key)}
	case n.endpointErr != nil:
		return check{reason: ReasonEndpoint, err: n.endpointErr}
	case n.endpoint.IsValid():
		c.reason = ReasonEndpoint
		c.claim, c.err = checkEndpoint(n, own, before, rules)
	case rules.Hidden:
		return check{reason: ReasonNoEndpoint, err: errBothHidden}
	}
	return c
}

// join rejects nodes with the key of another one. If they publish its endpoint, too, it is the same
// host to WireGuard: their prefixes become allowed IPs of its peer, up to what one node may have. So
// a host that was renamed isn't cut off for as long as the object of its former name exists, and a
// node that copies key and endpoint of another one gives its own prefixes to that, and takes nothing.
func (s *assignment) join(nodes []*Node, keys map[tunnel.Key]string, peers []Peer, endpoints []netip.AddrPort, accepted map[string][]netip.Prefix) (joined map[string]struct{}, rejected []Rejection) {
	of := make(map[tunnel.Key]int, len(peers))
	for i := range peers {
		of[peers[i].PublicKey] = i
	}
	joined = map[string]struct{}{}
	for _, n := range nodes {
		detail := fmt.Sprintf("public key %s is already that of node %q", n.key, keys[n.key])
		i, is := of[n.key]
		if is = is && n.endpointErr == nil && n.endpoint.IsValid() && n.endpoint == endpoints[i]; is && s.rules.MaxPrefixes > 0 {
			is = len(peers[i].AllowedIPs)+len(n.prefixes) <= s.rules.MaxPrefixes
		}
		if is {
			allowed, refused := s.of(n)
			rejected = append(rejected, refused...)
			if len(allowed) > 0 {
				accepted[n.Name], joined[n.Name] = allowed, struct{}{}
				peers[i].AllowedIPs = slices.SortedFunc(slices.Values(slices.Concat(peers[i].AllowedIPs, allowed)), netip.Prefix.Compare)
				detail += ", with the same endpoint: its prefixes are routed to that peer"
			}
		}
		rejected = append(rejected, Rejection{Node: n.Name, Reason: ReasonDuplicateKey, Detail: detail})
	}
	return joined, rejected
}

var errBothHidden = errors.New("neither the node nor this one publishes an endpoint, so neither side can initiate a handshake: one of them has to be reachable (SEMAPHORE_WG_ENDPOINT, " + LocationAnnotation + ")")

// checkEndpoint checks that packets to a node's endpoint don't lead back into this
// cluster. claim is the claim of a node of this cluster to an endpoint that was accepted
// before.
func checkEndpoint(n *Node, own map[netip.Addr]struct{}, before Accepted, rules *Rules) (claim string, err error) {
	endpoint, addr := n.endpoint, n.endpoint.Addr()
	if _, ours := own[addr]; ours {
		return "", fmt.Errorf("endpoint %q: an address of this host, or a broadcast address of one of its links", endpoint)
	}
	for _, p := range rules.Tunneled {
		if p.Contains(addr) {
			return "", fmt.Errorf("endpoint %q: inside the pod subnet %s, which is itself routed through a tunnel", endpoint, p)
		}
	}
	if certain, err := rules.Local.check(addr); err != nil {
		if certain || !before.hasEndpoint(n.Name, addr) {
			return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
		}
		claim = err.Error()
	}
	if len(rules.NodeSubnets) > 0 && !within(netip.PrefixFrom(addr, addr.BitLen()), rules.NodeSubnets) {
		return "", fmt.Errorf("endpoint %q: outside the remote's node subnets %s", endpoint, join(rules.NodeSubnets))
	}
	return claim, nil
}

// withEndpoint removes the peer's endpoint while it can't be checked against the addresses
// of this cluster: the peer has to send first. A peer without endpoint gets no keepalives:
// it is behind NAT, and its own keepalives keep the mapping open. WireGuard learns its
// endpoint from the first packet.
func (r *Rules) withEndpoint(p Peer) Peer {
	if _, before := r.known[p.Endpoint.Addr()]; r.LocalUnknown && !before {
		p.Endpoint = netip.AddrPort{}
	}
	if !p.Endpoint.IsValid() {
		p.Keepalive = 0
	}
	return p
}

// within reports whether a prefix lies entirely inside one of the subnets.
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
