package policy

import (
	"net/netip"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/virtual"
)

// located has the pods of a remote by node, and translates their addresses to those by which they
// are known here. It isn't safe for concurrent use.
type located struct {
	maps  *virtual.Table
	shown map[*Pod]*Pod // those whose addresses differ, translated
	nodes map[string]map[*Pod]struct{}
	// unplaced are nodes with pods that were not known when these came; "" is none.
	unplaced map[string]struct{}
}

func newLocated(maps *virtual.Table) *located {
	return &located{maps: maps, shown: map[*Pod]*Pod{}, nodes: map[string]map[*Pod]struct{}{}, unplaced: map[string]struct{}{}}
}

// change translates the change of a pod.
func (l *located) change(c kube.Change[Pod]) kube.Change[Pod] {
	if before := c.Before; before != nil {
		c.Before = l.as(before)
		delete(l.shown, before)
		delete(l.nodes[before.Node], before)
		if len(l.nodes[before.Node]) == 0 {
			delete(l.nodes, before.Node)
			delete(l.unplaced, before.Node)
		}
	}
	if after := c.After; after != nil && (after.V4.IsValid() || after.V6.IsValid()) {
		if l.nodes[after.Node] == nil {
			l.nodes[after.Node] = map[*Pod]struct{}{}
			l.note(after.Node)
		}
		l.nodes[after.Node][after] = struct{}{}
		c.After = l.translate(after)
	}
	return c
}

func (l *located) note(node string) {
	if !l.maps.Knows(node) {
		l.unplaced[node] = struct{}{}
	}
}

// as returns a pod as it was last translated.
func (l *located) as(p *Pod) *Pod {
	if shown := l.shown[p]; shown != nil {
		return shown
	}
	return p
}

// translate returns a pod with the addresses by which it is known.
func (l *located) translate(p *Pod) *Pod {
	delete(l.shown, p)
	if l.maps.Empty() {
		return p
	}
	t := *p
	for _, a := range []*netip.Addr{&t.V4, &t.V6} {
		if !a.IsValid() {
			continue
		}
		known := false
		if *a, known = l.maps.Of(p.Node, *a); !known {
			*a, t.Fault = netip.Addr{}, ReasonUnknownMap
		}
	}
	if t == *p {
		return p
	}
	l.shown[p] = &t
	return &t
}

// remap returns the changes of pods on a node whose map has changed. The empty node stands for
// all that aren't known.
func (l *located) remap(node string) (changes []kube.Change[Pod]) {
	if node != "" {
		if l.nodes[node] != nil {
			l.note(node)
		}
		return l.remapOn(node)
	}
	for node := range l.unplaced {
		if l.maps.Knows(node) {
			delete(l.unplaced, node)
		} else {
			changes = append(changes, l.remapOn(node)...)
		}
	}
	return changes
}

func (l *located) remapOn(node string) (changes []kube.Change[Pod]) {
	for p := range l.nodes[node] {
		before := l.as(p)
		after := l.translate(p)
		if *before == *after {
			if before != after {
				l.shown[p] = before
			}
			continue
		}
		changes = append(changes, kube.Change[Pod]{Key: p.Namespace + "/" + p.Name, Before: before, After: after})
	}
	return changes
}
