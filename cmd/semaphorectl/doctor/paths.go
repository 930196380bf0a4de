package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/survey"
)

// A pair of nodes, what each of them sees of the other, and what it means for UDP. A device
// counts what it receives even where no session comes about of it, and begins to count
// anew with each handshake that an agent begins.
//
//	here           there                             packets that get lost
//	one_way        anything                          from here to there
//	down           one_way                           from there to here
//	down, hears 0  down, hears something             from there to here
//	down, hears 0  down, hears 0                     in both directions
//	down, hears    down, hears                       not known which
//	down           nobody reports                    not known which
type lost int

const (
	lostNot lost = iota
	lostThere
	lostBack
	lostBoth
	lostSomewhere
)

// loss decides by the table above. back is nil where nobody reports.
func loss(p, back *Pair) lost {
	if p.state() != "down" {
		return lostNot
	}
	if p.sign() == "one_way" {
		return lostThere
	}
	if back == nil || back.peer == nil {
		return lostSomewhere
	}
	if back.sign() == "one_way" {
		return lostBack
	}
	if back.state() != "down" {
		return lostSomewhere
	}
	switch hears, heard := p.peer.RxBytes > 0, back.peer.RxBytes > 0; {
	case !hears && heard:
		return lostBack
	case hears && !heard:
		return lostThere
	case !hears && !heard:
		return lostBoth
	}
	return lostSomewhere
}

func pathRules() []Rule {
	firewall := "let UDP through, from the nodes of the one cluster to the listen ports of the other one's nodes: firewalls of hosts, security groups of clouds, network policies for hosts"
	after := append([]string{"peers-outdated", "port-taken"}, unpeered...)
	blocked := func(id, what string, is func(p, back *Pair) (Scope, bool), after ...string) Rule {
		return Rule{ID: id, Remedy: firewall, After: after, Find: func(f *Facts, found func(Finding)) {
			seen := map[Scope]bool{}
			for p := range f.Pairs() {
				back := f.back(p)
				scope, yes := is(p, back)
				if !yes || seen[scope] {
					continue
				}
				seen[scope] = true
				evidence := []Evidence{{fmt.Sprintf("%s to %s at %s: %s", p.Node, p.Peer, p.peer.Endpoint, p.sign()), p.source}}
				if back != nil && back.peer != nil {
					evidence = append(evidence, Evidence{fmt.Sprintf("%s to %s at %s: %s %s", back.Node, back.Peer, back.peer.Endpoint, back.state(), back.sign()), back.source})
				}
				found(Finding{scope, fmt.Sprintf(what, scope.Node, scope.Peer), evidence})
			}
		}}
	}
	return []Rule{
		blocked("udp-one-way", "packets from %s to %s are dropped on the way, and those back aren't", func(p, back *Pair) (Scope, bool) {
			switch loss(p, back) {
			case lostThere:
				return p.Scope, true
			case lostBack:
				return p.turned(), true
			}
			return Scope{}, false
		}, after...),
		blocked("udp-blocked", "packets between %s and %s are dropped in both directions", func(p, back *Pair) (Scope, bool) {
			scope := p.Scope
			if p.Cluster > p.Remote {
				scope = p.turned()
			}
			return scope, loss(p, back) == lostBoth
		}, append([]string{"udp-one-way"}, after...)...),
		{
			ID: "mtu-too-large", After: append([]string{"udp-one-way", "udp-blocked"}, after...),
			Remedy: "set SEMAPHORE_REMOTE_<NAME>_WG_MTU on both sides to what the way carries less 80, or let ICMP \"fragmentation needed\" through",
			Find:   tooLarge,
		},
		{
			ID: "path-down", After: append([]string{"udp-one-way", "udp-blocked"}, after...),
			Remedy: "look at both agents' status, and at what drops UDP between these nodes",
			Find: func(f *Facts, found func(Finding)) {
				for p := range f.Pairs() {
					if s := p.state(); s == "down" || s == "none" {
						found(Finding{p.Scope, fmt.Sprintf("%s doesn't reach %s", p.Node, p.Peer), []Evidence{{p.why(), p.source}}})
					}
				}
			},
		},
		{
			ID:     "old-agent",
			Remedy: "bring all agents to one version: older ones work in the mesh, and know less of it",
			Find:   oldAgents,
		},
	}
}

func tooLarge(f *Facts, found func(Finding)) {
	for p := range f.Pairs() {
		if p.peer == nil {
			continue
		}
		d := &p.remote.Device
		switch {
		case p.peer.Path != nil && p.peer.Path.SmallOnly:
			found(Finding{p.Scope, fmt.Sprintf("small packets only get from %s to %s and back", p.Node, p.Peer), []Evidence{{fmt.Sprintf("probes as large as %s, of %d bytes, get lost", d.Name, d.MTU), p.source}}})
		case d.LargestMTU > 0 && d.MTU > d.LargestMTU && p.node == &p.to.Nodes.Value[0]:
			found(Finding{Scope{Cluster: p.Cluster, Node: p.Node, Remote: p.Remote}, "the MTU of " + d.Name + " on " + p.Node + " is too large", []Evidence{{fmt.Sprintf("%d, and the way to %s carries %d", d.MTU, d.NarrowestEndpoint, d.LargestMTU), p.source}}})
		}
	}
}

// oldAgents finds agents whose version isn't the one that most have, and those that report
// no paths, also where all are of one version.
func oldAgents(f *Facts, found func(Finding)) {
	of := map[string]*generation{}
	total := 0
	for _, a := range f.agents() {
		g := of[a.Value.Version]
		if g == nil {
			g = &generation{version: a.Value.Version}
			of[g.version] = g
		}
		total++
		g.agents++
		if pathless(a.Value) {
			g.pathless++
		}
	}
	if total == 0 {
		return
	}
	// In order: what has no number isn't ordered as one with those that have.
	byName := slices.SortedFunc(maps.Values(of), func(a, b *generation) int { return strings.Compare(a.version, b.version) })
	most := slices.MaxFunc(byName, (*generation).compare)
	for c, a := range f.agents() {
		scope, source := Scope{Cluster: c.Name, Node: a.Pod.Node}, statusOf(a)
		switch version := a.Value.Version; {
		case version != most.version:
			evidence := fmt.Sprintf("it is %s; %s is that of %d of %d agents", version, most.version, most.agents, total)
			if pathless(a.Value) {
				evidence += "; it reports no paths"
			}
			found(Finding{scope, "the agent of " + a.Pod.Node + " is of another version", []Evidence{{evidence, source}}})
		case pathless(a.Value):
			found(Finding{scope, "the agent of " + a.Pod.Node + " is of a version that reports no paths", []Evidence{{"it is " + version, source}}})
		}
	}
}

// generation is the agents of one version.
type generation struct {
	version          string
	agents, pathless int
}

// compare says which one the others are to have: the one of more agents; of as many, the
// one that knows more, then the newer one.
func (g *generation) compare(o *generation) int {
	newer := strings.Compare(g.version, o.version)
	a, errA := version.ParseSemantic(g.version)
	b, errB := version.ParseSemantic(o.version)
	if errA == nil && errB == nil {
		switch {
		case a.GreaterThan(b):
			newer = 1
		case b.GreaterThan(a):
			newer = -1
		}
	}
	return cmp.Or(g.agents-o.agents, o.pathless-g.pathless, newer)
}

// pathless tells whether an agent has peers and doesn't say whether it reaches them.
func pathless(a *survey.Agent) bool {
	return a.Standby == nil && slices.ContainsFunc(a.Remotes, func(r survey.Remote) bool {
		return slices.ContainsFunc(r.Peers, func(p survey.Peer) bool { return p.Node != "" && p.Path == nil })
	})
}
