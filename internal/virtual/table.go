package virtual

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"unique"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/printable"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

const (
	// maxText is the maximum length of the text of a map: a mapping of IPv6 subnets has up to 87
	// characters, a map 16 of them.
	maxText = 2048
	// maxMaps is the maximum number of different maps of a remote with which addresses on no
	// known node are compared. A cluster has one, and another one while it changes.
	maxMaps = 8
	// maxFault is the maximum length of a fault.
	maxFault = 200
)

// podCIDRs is the annotation that each agent publishes, with a map or without.
const podCIDRs = "wireguard.semaphore.uw.io/podCIDRs"

// Node is what a node publishes.
type Node struct {
	// Map is the text of its map, in canonical form; empty: none.
	Map string
	// Agent is whether an agent publishes for it. Without one it has no say in the map of the
	// cluster.
	Agent bool
	// Fault is why its map is invalid, and not used.
	Fault string
}

// NodeOf reads the annotations of a node.
func NodeOf(annotations map[string]string) Node {
	text, mapped := annotations[config.SubnetMapAnnotation]
	_, published := annotations[podCIDRs]
	n := Node{Agent: mapped || published}
	if text == "" {
		return n
	}
	if len(text) > maxText {
		n.Fault = fmt.Sprintf("a map of %d bytes", len(text))
		return n
	}
	var m config.SubnetMap
	if err := m.Decode(text); err != nil {
		n.Fault = printable.Text(err.Error(), maxFault)
		return n
	}
	n.Map = unique.Make(m.String()).Value() // shared by all nodes
	return n
}

// Table has the maps of a remote's nodes. The zero value has no nodes, and a nil one translates
// nothing. It isn't safe for concurrent use.
type Table struct {
	nodes  map[string]*published
	maps   map[string]*published // those of nodes with agents, by text; "" is no map
	silent published             // that of nodes without agents
	mapped int                   // number of nodes with a map that isn't empty
	faults map[string]string     // by node
	// agreed are the maps for addresses on no known node, of the last Agree, sorted by text, at
	// most maxMaps+1.
	agreed    []*published
	undecided bool // Agree may change agreed
}

// published is a map, and the number of nodes that publish it.
type published struct {
	text    string
	subnets config.SubnetMap
	nodes   int
}

// Update replaces what a node publishes; nil: the node was deleted. It reports whether addresses
// on the node may be others by now. Those on no known node are the same until Agree.
func (t *Table) Update(name string, n *Node) (changed bool) {
	if t.nodes == nil {
		t.nodes, t.maps, t.faults = map[string]*published{}, map[string]*published{}, map[string]string{}
	}
	if delete(t.faults, name); n != nil && n.Fault != "" {
		t.faults[name] = n.Fault
	}
	before, had := t.nodes[name]
	after := t.of(n)
	if before == after {
		return false
	}
	if after == nil {
		delete(t.nodes, name)
	} else {
		t.nodes[name] = after
		t.count(after, 1)
	}
	if had {
		t.count(before, -1)
	}
	return true
}

// New reports whether Agree has not found any maps yet.
func (t *Table) New() bool { return len(t.agreed) == 0 }

// Undecided reports whether Agree may change anything.
func (t *Table) Undecided() bool { return t.undecided }

// Agree updates the maps for addresses on no known node, and reports whether these may be others
// by now.
func (t *Table) Agree() (changed bool) {
	if !t.undecided {
		return false
	}
	t.undecided = false
	var now []*published
	for _, p := range t.maps {
		if now = append(now, p); len(now) > maxMaps {
			break
		}
	}
	slices.SortFunc(now, func(a, b *published) int { return strings.Compare(a.text, b.text) })
	before := t.agreed
	t.agreed = now
	return len(before) <= maxMaps && len(now) <= maxMaps && !slices.EqualFunc(before, now, func(a, b *published) bool { return a.text == b.text }) ||
		len(before) > maxMaps != (len(now) > maxMaps)
}

// of returns the map of a node; nil: there is no node.
func (t *Table) of(n *Node) *published {
	switch {
	case n == nil:
		return nil
	case !n.Agent:
		return &t.silent
	case t.maps[n.Map] != nil:
		return t.maps[n.Map]
	}
	p := &published{text: n.Map}
	if n.Map != "" {
		_ = p.subnets.Decode(n.Map) // NodeOf has
	}
	return p
}

// count changes the number of nodes with a map.
func (t *Table) count(p *published, change int) {
	if p == &t.silent {
		return
	}
	if p.text != "" {
		t.mapped += change
	}
	before := len(t.maps)
	if p.nodes += change; p.nodes > 0 {
		t.maps[p.text] = p
	} else {
		delete(t.maps, p.text)
	}
	t.undecided = t.undecided || before != len(t.maps)
}

// Knows reports whether there is a node.
func (t *Table) Knows(node string) bool { return t != nil && t.nodes[node] != nil }

// Empty reports whether nothing is translated.
func (t *Table) Empty() bool {
	return t == nil || t.mapped == 0 && !slices.ContainsFunc(t.agreed, func(p *published) bool { return p.text != "" })
}

// Of returns the address by which other clusters know the address of a pod on a node. False: it
// isn't known, because the node isn't, and nodes have different maps.
func (t *Table) Of(node string, a netip.Addr) (netip.Addr, bool) {
	if t.Empty() {
		return a, true
	}
	if p := t.nodes[node]; p != nil {
		return p.subnets.Virtual(a), true
	}
	if len(t.agreed) > maxMaps {
		return a, false
	}
	for _, p := range t.agreed {
		if v := p.subnets.Virtual(a); v != a {
			return v, len(t.agreed) == 1
		}
	}
	return a, true
}

// Status returns what nodes publish.
func (t *Table) Status() status.PodSubnetsMap {
	s := status.PodSubnetsMap{State: status.MapNone}
	if t == nil {
		return s
	}
	texts := slices.Sorted(maps.Keys(t.maps))
	switch {
	case len(t.faults) > 0:
		node := slices.Min(slices.Collect(maps.Keys(t.faults)))
		s.State, s.Fault = status.MapBad, fmt.Sprintf("node %s: %s", printable.Text(node, printable.Short), t.faults[node])
	case t.mapped == 0:
	case len(texts) > 1:
		s.State = status.MapDiffers
	default:
		s.State = status.MapKnown
	}
	for _, text := range texts[:min(len(texts), maxMaps)] {
		s.Maps = append(s.Maps, status.NodesWithMap{Map: text, Nodes: t.maps[text].nodes})
	}
	if t.mapped == 0 {
		s.Maps = nil
	}
	return s
}
