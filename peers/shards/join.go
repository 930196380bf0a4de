package shards

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// Object is an object as agents hold it. It is immutable.
type Object struct {
	Cluster string
	Shard   string   // empty: an index
	Shards  []string // of an index
	Nodes   []*peers.Node
	Locals  []peers.LocalNode
	version string // resource version
}

// Decode returns an object as agents hold it. Nodes have at most maxPrefixes prefixes; 0:
// all. An error is that of an object that the schema should have rejected.
func Decode(o *v1alpha1.WireguardPeers, maxPrefixes int) (*Object, error) {
	d := &Object{Cluster: strings.Clone(o.Spec.Cluster), Shard: strings.Clone(o.Spec.Shard), version: o.ResourceVersion}
	if o.Name != Name(d.Cluster, d.Shard) {
		return nil, fmt.Errorf("object %q has the content of %q", o.Name, Name(d.Cluster, d.Shard))
	}
	if d.Shard == "" {
		d.Shards = slices.Clone(o.Spec.Shards)
	}
	for i := range o.Spec.Peers {
		p := &o.Spec.Peers[i]
		n := &peers.Node{
			Name: p.Name, Created: p.Created.Time, PublicKey: p.PublicKey, Endpoint: p.Endpoint,
			PodCIDRs: p.PodCIDRs, Published: !p.FromSpec, Allocated: p.Allocated,
		}
		if maxPrefixes > 0 {
			// One more than the maximum marks that there are more.
			n.PodCIDRs = n.PodCIDRs[:min(len(n.PodCIDRs), maxPrefixes+1)]
		}
		d.Nodes = append(d.Nodes, n.Parsed(maxPrefixes))
	}
	for i := range o.Spec.Nodes {
		n := &o.Spec.Nodes[i]
		l := peers.LocalNode{Name: n.Name}
		for _, text := range n.Addresses {
			a, err := netip.ParseAddr(text)
			if err != nil {
				return nil, fmt.Errorf("node %q of object %q: %w", n.Name, o.Name, err)
			}
			l.Addrs = append(l.Addrs, a)
		}
		for _, text := range n.PodCIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("node %q of object %q: %w", n.Name, o.Name, err)
			}
			l.PodCIDRs = append(l.PodCIDRs, p)
		}
		d.Locals = append(d.Locals, l)
	}
	return d, nil
}

// Set is what the objects of one cluster contain, in no order.
type Set struct {
	Nodes  []*peers.Node
	Locals []peers.LocalNode
	// Incomplete is why more nodes may exist; empty: the set is complete. Nothing may be
	// removed because of an incomplete set.
	Incomplete string
}

// Join returns the sets of all clusters with objects. A node may be in two objects while a
// shard is split or merged: then the object that was written last has its state.
func Join(objects []*Object) map[string]*Set {
	byCluster := map[string][]*Object{}
	for _, o := range objects {
		byCluster[o.Cluster] = append(byCluster[o.Cluster], o)
	}
	sets := make(map[string]*Set, len(byCluster))
	for cluster, of := range byCluster {
		sets[cluster] = join(of)
	}
	return sets
}

func join(objects []*Object) *Set {
	// Those written last first.
	objects = slices.Clone(objects)
	slices.SortFunc(objects, func(a, b *Object) int { return compareVersions(b.version, a.version) })
	var (
		s     Set
		index *Object
		have  = make(map[string]struct{}, len(objects))
		seen  = make(map[string]struct{}, splitNodes*len(objects))
		first = func(name string) bool {
			_, before := seen[name]
			seen[name] = struct{}{}
			return !before
		}
	)
	for _, o := range objects {
		if o.Shard == "" {
			index = o
			continue
		}
		have[o.Shard] = struct{}{}
		for _, n := range o.Nodes {
			if first(n.Name) {
				s.Nodes = append(s.Nodes, n)
			}
		}
		for i := range o.Locals {
			if first(o.Locals[i].Name) {
				s.Locals = append(s.Locals, o.Locals[i])
			}
		}
	}
	if index == nil {
		s.Incomplete = "no index"
		return &s
	}
	missing := 0
	for _, name := range index.Shards {
		if _, exists := have[name]; !exists {
			missing++
		}
	}
	if missing > 0 {
		s.Incomplete = fmt.Sprintf("%d of %d shards are missing", missing, len(index.Shards))
	}
	return &s
}

// Newest returns the newest resource version of objects; empty: there are none.
func Newest(objects []*Object) string {
	newest := ""
	for _, o := range objects {
		if newest == "" || compareVersions(o.version, newest) > 0 {
			newest = o.version
		}
	}
	return newest
}

// compareVersions compares resource versions; those that aren't numbers are equal.
func compareVersions(a, b string) int {
	order, err := resourceversion.CompareResourceVersion(a, b)
	if err != nil {
		return 0
	}
	return order
}
