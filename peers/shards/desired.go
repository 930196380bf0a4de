package shards

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// Node is a node with its place. It is immutable.
type Node struct {
	name string
	peer *v1alpha1.Peer // of a remote; nil: of the relay's own cluster
	node *v1alpha1.Node
	hash uint64
	size int // approximate, in bytes of JSON
}

// Approximate sizes in JSON, without the text.
const (
	nodeSize = 160 // of a node
	textSize = 3   // of one of several texts
)

// FromRemote returns a node of a remote; false: no node of an API server has that name.
func FromRemote(n *peers.Node) (*Node, bool) {
	if len(validation.IsDNS1123Subdomain(n.Name)) > 0 {
		return nil, false
	}
	n = n.Canonical()
	p := &v1alpha1.Peer{
		Name: n.Name, Created: metav1.Time{Time: n.Created}, PublicKey: n.PublicKey, Endpoint: n.Endpoint,
		PodCIDRs: n.PodCIDRs, Published: n.Published, Allocated: n.Allocated,
	}
	return newNode(p.Name, &Node{peer: p}, p.PodCIDRs, p.Allocated), true
}

// FromLocal returns a node of the relay's own cluster.
func FromLocal(n peers.LocalNode) *Node {
	l := &v1alpha1.Node{Name: n.Name}
	for _, a := range n.Addrs {
		l.Addresses = append(l.Addresses, a.String())
	}
	for _, p := range n.PodCIDRs {
		l.PodCIDRs = append(l.PodCIDRs, p.String())
	}
	return newNode(l.Name, &Node{node: l}, l.Addresses, l.PodCIDRs)
}

func newNode(name string, n *Node, texts ...[]string) *Node {
	n.name, n.hash, n.size = name, hashOf(name), nodeSize+len(name)
	for _, list := range texts {
		for _, text := range list {
			n.size += textSize + len(text)
		}
	}
	return n
}

// Name returns the node's name.
func (n *Node) Name() string { return n.name }

// Equal reports whether two states of a node are stored alike.
func (n *Node) Equal(o *Node) bool {
	if n.peer == nil || o.peer == nil {
		return n.peer == o.peer && n.name == o.name && equalNode(n.node, o.node)
	}
	return equalPeer(n.peer, o.peer)
}

// Plan is the desired content of all objects of one cluster. It is immutable.
type Plan struct {
	cluster string
	gone    bool               // no object may exist
	shards  map[string][]*Node // by name, each sorted by name
	index   v1alpha1.Spec
}

// Desired returns the plan for a cluster with these nodes, whose names differ. Have are the
// names of the shards that exist: the same nodes may be stored in more than one way.
func Desired(cluster string, nodes []*Node, have []string) *Plan {
	nodes, have = slices.Clone(nodes), slices.Clone(have)
	slices.SortFunc(nodes, func(a, b *Node) int { return cmp.Or(cmp.Compare(a.hash, b.hash), strings.Compare(a.name, b.name)) })
	slices.Sort(have)
	p := &Plan{cluster: cluster, shards: place(nodes, have)}
	for _, of := range p.shards {
		slices.SortFunc(of, func(a, b *Node) int { return strings.Compare(a.name, b.name) })
	}
	p.index = v1alpha1.Spec{Cluster: cluster, Shards: slices.Sorted(maps.Keys(p.shards))}
	return p
}

// Gone returns the plan for a cluster that is no longer configured.
func Gone(cluster string) *Plan { return &Plan{cluster: cluster, gone: true} }

// Shards returns the names of all shards, sorted.
func (p *Plan) Shards() []string { return p.index.Shards }

// Change is what differs between two plans.
type Change struct {
	// Written are shards with other nodes, or other content of one. Of these, Shrunk only
	// lose nodes.
	Written, Shrunk []string
	// Removed are shards that are no longer desired.
	Removed []string
}

// Since returns what differs from an earlier plan; nil: everything is new.
func (p *Plan) Since(before *Plan) (c Change) {
	if before == nil {
		before = &Plan{}
	}
	for name, nodes := range p.shards {
		was := before.shards[name]
		switch {
		case slices.Equal(nodes, was):
		case contains(was, nodes):
			c.Shrunk = append(c.Shrunk, name)
		default:
			c.Written = append(c.Written, name)
		}
	}
	for name := range before.shards {
		if p.shards[name] == nil {
			c.Removed = append(c.Removed, name)
		}
	}
	return c
}

// contains reports whether nodes, sorted by name, contain all of others.
func contains(nodes, others []*Node) bool {
	for _, o := range others {
		i, found := slices.BinarySearchFunc(nodes, o.name, func(n *Node, name string) int { return strings.Compare(n.name, name) })
		if !found || nodes[i] != o {
			return false
		}
	}
	return true
}

// Observed returns the content of the object of a shard, or of the index for an empty name;
// nil: it doesn't exist.
type Observed func(shard string) *v1alpha1.Spec

// Next returns the desired content of a shard, or of the index for an empty name; nil: it
// must not exist. It is not due while the observed objects don't permit it yet:
//
//	object                      due
//	shard that is desired       at once
//	index                       when the desired shards have all desired nodes
//	shard that isn't desired    when, besides, the index lists the desired shards
//	index of a gone cluster     at once
//	shard of a gone cluster     when there is no index
//
// So a node that agents know, and that is desired, is in each complete set, after any number
// of these writes in any order, and after others have deleted the index or shards in it.
func (p *Plan) Next(shard string, observed Observed) (want *v1alpha1.Spec, due bool) {
	switch nodes := p.shards[shard]; {
	case p.gone:
		return nil, shard == "" || observed("") == nil
	case shard == "":
		return &p.index, p.stored(observed)
	case nodes == nil:
		index := observed("")
		return nil, index != nil && Equal(index, &p.index) && p.stored(observed)
	default:
		return p.content(shard, nodes), true
	}
}

// content returns the content of a shard.
func (p *Plan) content(shard string, nodes []*Node) *v1alpha1.Spec {
	spec := &v1alpha1.Spec{Cluster: p.cluster, Shard: shard}
	for _, n := range nodes {
		if n.peer != nil {
			spec.Peers = append(spec.Peers, *n.peer)
		} else {
			spec.Nodes = append(spec.Nodes, *n.node)
		}
	}
	return spec
}

// stored reports whether all desired nodes are in their shards, with any content.
func (p *Plan) stored(observed Observed) bool {
	for name, nodes := range p.shards {
		spec := observed(name)
		if spec == nil {
			return false
		}
		names := make(map[string]struct{}, len(nodes))
		for i := range spec.Peers {
			names[spec.Peers[i].Name] = struct{}{}
		}
		for i := range spec.Nodes {
			names[spec.Nodes[i].Name] = struct{}{}
		}
		for _, n := range nodes {
			if _, has := names[n.name]; !has {
				return false
			}
		}
	}
	return true
}

// Equal reports whether two objects have the same content.
func Equal(a, b *v1alpha1.Spec) bool {
	return a.Cluster == b.Cluster && a.Shard == b.Shard && slices.Equal(a.Shards, b.Shards) &&
		slices.EqualFunc(a.Peers, b.Peers, func(a, b v1alpha1.Peer) bool { return equalPeer(&a, &b) }) &&
		slices.EqualFunc(a.Nodes, b.Nodes, func(a, b v1alpha1.Node) bool { return equalNode(&a, &b) })
}

func equalPeer(a, b *v1alpha1.Peer) bool {
	return a.Name == b.Name && a.Created.Time.Equal(b.Created.Time) && a.PublicKey == b.PublicKey && a.Endpoint == b.Endpoint &&
		a.Published == b.Published && slices.Equal(a.PodCIDRs, b.PodCIDRs) && slices.Equal(a.Allocated, b.Allocated)
}

func equalNode(a, b *v1alpha1.Node) bool {
	return a.Name == b.Name && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.PodCIDRs, b.PodCIDRs)
}

// Name returns the name of the object of a shard, or of the index for an empty name.
func Name(cluster, shard string) string {
	if shard == "" {
		return cluster
	}
	return cluster + "." + shard
}
