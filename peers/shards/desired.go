package shards

import (
	"cmp"
	"iter"
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
		PodCIDRs: n.PodCIDRs, FromSpec: !n.Published, Allocated: n.Allocated,
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
		if i, found := find(nodes, o.name); !found || nodes[i] != o {
			return false
		}
	}
	return true
}

// find returns the place of a node in nodes sorted by name.
func find(nodes []*Node, name string) (at int, found bool) {
	return slices.BinarySearchFunc(nodes, name, func(n *Node, name string) int { return strings.Compare(n.name, name) })
}

// Observed returns the content of the object of a shard, or of the index for an empty name;
// nil: it doesn't exist.
type Observed func(shard string) *v1alpha1.Spec

// Next returns the desired content of a shard, or of the index for an empty name; nil: it
// must not exist. It is not due while the observed objects don't permit it yet:
//
//	object                      due
//	shard that the index lists  at once
//	another desired shard       at once, with the nodes that listed shards have or, where one
//	                            is missing, may have had; with all if there is no index
//	index                       when the desired shards have all such nodes
//	shard that isn't desired    when, besides, the index lists the desired shards
//	index of a gone cluster     at once
//	shard of a gone cluster     when there is no index
//
// So a node that agents know, and that is desired, is in each complete set, after any number
// of these writes in any order, and after others have deleted any object: a complete set never
// has a node only in a shard that isn't listed.
func (p *Plan) Next(shard string, observed Observed) (want *v1alpha1.Spec, due bool) {
	index, nodes := observed(""), p.shards[shard]
	switch {
	case p.gone:
		return nil, shard == "" || index == nil
	case shard == "":
		return &p.index, p.listable(index, observed)
	case nodes == nil:
		return nil, index != nil && Equal(index, &p.index) && p.covers(observed(shard), observed)
	}
	if index != nil && !slices.Contains(index.Shards, shard) {
		nodes = listed(nodes, shard, index, observed)
	}
	return p.content(shard, nodes), len(nodes) > 0
}

// listed returns those of the nodes of a shard that are in shards that the index lists, or were if
// one is missing, and those that the shard has already.
func listed(nodes []*Node, shard string, index *v1alpha1.Spec, observed Observed) []*Node {
	var others []string
	for _, other := range index.Shards {
		if overlap(shard, other) {
			others = append(others, other)
		}
	}
	have := observed(shard)
	return slices.DeleteFunc(slices.Clone(nodes), func(n *Node) bool {
		return !has(have, n.name) && !slices.ContainsFunc(others, func(other string) bool {
			spec := observed(other)
			return n.in(other) && (spec == nil || has(spec, n.name))
		})
	})
}

// listable reports whether the index may list the desired shards instead of those that it lists.
func (p *Plan) listable(index *v1alpha1.Spec, observed Observed) bool {
	if index == nil {
		return p.stored(namePrefix, observed) // all
	}
	for _, shard := range index.Shards {
		if p.shards[shard] != nil {
			continue
		}
		spec := observed(shard)
		if spec == nil && !p.stored(shard, observed) || spec != nil && !p.covers(spec, observed) {
			return false
		}
	}
	return true
}

// stored reports whether all desired nodes that can be in a shard are in theirs.
func (p *Plan) stored(shard string, observed Observed) bool {
	for name, nodes := range p.shards {
		if !overlap(name, shard) {
			continue
		}
		spec := observed(name)
		if slices.ContainsFunc(nodes, func(n *Node) bool { return n.in(shard) && !has(spec, n.name) }) {
			return false
		}
	}
	return true
}

// Lacking returns the desired shards that lack nodes.
func (p *Plan) Lacking(observed Observed) (names []string) {
	for name, nodes := range p.shards {
		spec := observed(name)
		if slices.ContainsFunc(nodes, func(n *Node) bool { return !has(spec, n.name) }) {
			names = append(names, name)
		}
	}
	return names
}

// covers reports whether the desired ones of the nodes in an object are in their shards as well.
func (p *Plan) covers(spec *v1alpha1.Spec, observed Observed) bool {
	for name := range namesIn(spec) {
		shard, desired := p.shardOf(name)
		if desired && !has(observed(shard), name) {
			return false
		}
	}
	return true
}

// shardOf returns the desired shard of a node.
func (p *Plan) shardOf(node string) (shard string, desired bool) {
	name, hash := []byte(namePrefix), hashOf(node)
	for depth := 0; depth <= maxDepth; depth++ {
		if nodes := p.shards[string(name)]; nodes != nil {
			_, desired = find(nodes, node)
			return string(name), desired
		}
		name = append(name, '0'+byte(hash>>(63-depth)&1))
	}
	return "", false
}

// overlap reports whether a node can be in either of two shards.
func overlap(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) }

// namesIn returns the names of the nodes in an object, which may be nil.
func namesIn(spec *v1alpha1.Spec) iter.Seq[string] {
	return func(yield func(string) bool) {
		if spec == nil {
			return
		}
		for i := range spec.Peers {
			if !yield(spec.Peers[i].Name) {
				return
			}
		}
		for i := range spec.Nodes {
			if !yield(spec.Nodes[i].Name) {
				return
			}
		}
	}
}

// has reports whether an object, which may be nil, has a node.
func has(spec *v1alpha1.Spec, node string) bool {
	for name := range namesIn(spec) {
		if name == node {
			return true
		}
	}
	return false
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

// Equal reports whether two objects have the same content.
func Equal(a, b *v1alpha1.Spec) bool {
	return a.Cluster == b.Cluster && a.Shard == b.Shard && slices.Equal(a.Shards, b.Shards) &&
		slices.EqualFunc(a.Peers, b.Peers, func(a, b v1alpha1.Peer) bool { return equalPeer(&a, &b) }) &&
		slices.EqualFunc(a.Nodes, b.Nodes, func(a, b v1alpha1.Node) bool { return equalNode(&a, &b) })
}

func equalPeer(a, b *v1alpha1.Peer) bool {
	return a.Name == b.Name && a.Created.Time.Equal(b.Created.Time) && a.PublicKey == b.PublicKey && a.Endpoint == b.Endpoint &&
		a.FromSpec == b.FromSpec && slices.Equal(a.PodCIDRs, b.PodCIDRs) && slices.Equal(a.Allocated, b.Allocated)
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
