package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// lost is the direction in which UDP packets of a pair of nodes are lost, by the reports of
// both. A device counts received bytes also without a session, and its counter is reset by
// each handshake that the agent initiates.
//
//	here            there              lost
//	one_way         any                from here to there
//	down            one_way            from there to here
//	down, rx = 0    down, rx > 0       from there to here
//	down, rx = 0    down, rx = 0       in both directions
//	down, rx > 0    down, rx > 0       unknown
//	down            no report          unknown
type lost int

const (
	lostNot lost = iota
	lostThere
	lostBack
	lostBoth
	lostSomewhere
)

// loss implements the table of lost; back may be nil.
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
	firewall := "allow UDP from the nodes of the one cluster to the listen ports of the other one's nodes: in firewalls of hosts, security groups of clouds and network policies for hosts"
	after := append([]string{"peers-outdated", "port-taken", "not-translated"}, unpeered...)
	blocked := func(id, what string, is func(p, back *Pair) (Scope, bool), after ...string) Rule {
		sum := func(here, there string) string { return fmt.Sprintf(what, here, there) }
		return Rule{ID: id, Remedy: firewall, After: after, Sum: sum, Mutual: id == "udp-blocked", Find: func(f *Facts, found func(Finding)) {
			seen := map[Scope]bool{}
			for p := range f.Pairs() {
				back := f.back(p)
				scope, yes := is(p, back)
				if !yes || seen[scope] {
					continue
				}
				seen[scope] = true
				found(Finding{scope, fmt.Sprintf(what, scope.Node, scope.Peer), bothWays(p, back)})
			}
		}}
	}
	return []Rule{
		blocked("udp-one-way", "packets from %s to %s are dropped, and those in the other direction aren't", func(p, back *Pair) (Scope, bool) {
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
			ID: "mtu-too-large", Mutual: true,
			Sum: func(here, there string) string {
				return fmt.Sprintf("only small packets get through between %s and %s", here, there)
			},
			After:  append([]string{"udp-one-way", "udp-blocked"}, after...),
			Remedy: "set SEMAPHORE_REMOTE_<NAME>_WG_MTU on both sides to the MTU of the path less 80, or allow ICMP \"fragmentation needed\"",
			Find:   tooLarge,
		},
		{
			ID: "path-down", After: append([]string{"udp-one-way", "udp-blocked"}, after...), Mutual: true,
			Sum: func(here, there string) string {
				return fmt.Sprintf("no packets get through between %s and %s", here, there)
			},
			Remedy: "find out what drops UDP between these nodes: firewalls of hosts, security groups of clouds, network policies for hosts, a missing route. On both: tcpdump -ni any udp port LISTEN_PORT",
			Find: func(f *Facts, found func(Finding)) {
				seen := map[Scope]bool{}
				for p := range f.Pairs() {
					if s := p.state(); (s == "down" || s == "none") && !seen[p.turned()] {
						seen[p.Scope] = true
						found(Finding{p.Scope, fmt.Sprintf("%s can't reach %s", p.Node, p.Peer), bothWays(p, f.back(p))})
					}
				}
			},
		},
		{
			ID:     "old-agent",
			Remedy: "upgrade all agents to one version: older ones work, and report less",
			Find:   oldAgents,
		},
	}
}

// bothWays is what the agents of two nodes report about the path between them.
func bothWays(p, back *Pair) []Evidence {
	var all []Evidence
	for _, one := range []*Pair{p, back} {
		switch {
		case one == nil:
		case one.peer != nil:
			all = append(all, Evidence{fmt.Sprintf("%s to %s at %s: %s %s", one.Node, one.Peer, one.peer.Endpoint, one.state(), one.sign()), one.source})
		case one == p:
			all = append(all, Evidence{fmt.Sprintf("%s to %s: %s", one.Node, one.Peer, one.why()), one.source})
		}
	}
	return all
}

func tooLarge(f *Facts, found func(Finding)) {
	for p := range f.Pairs() {
		if p.peer == nil {
			continue
		}
		d := &p.remote.Device
		switch {
		case p.peer.Path != nil && p.peer.Path.SmallOnly:
			found(Finding{p.Scope, fmt.Sprintf("only small packets get from %s to %s and back", p.Node, p.Peer), []Evidence{{fmt.Sprintf("probes of %d bytes, the MTU of %s, are lost", d.MTU, d.Name), p.source}}})
		case d.LargestMTU > 0 && d.MTU > d.LargestMTU && p.first:
			found(Finding{Scope{Cluster: p.Cluster, Node: p.Node, Remote: p.Remote}, "the MTU of " + d.Name + " on " + p.Node + " is too large", []Evidence{{fmt.Sprintf("it is %d, and the path to %s allows %d", d.MTU, d.NarrowestEndpoint, d.LargestMTU), p.source}}})
		}
	}
}

// oldAgents finds agents whose version differs from the most common one, and those that
// report no paths.
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
	// Sorted first: compare is no total order of versions with and without numbers.
	byName := slices.SortedFunc(maps.Values(of), func(a, b *generation) int { return strings.Compare(a.version, b.version) })
	most := slices.MaxFunc(byName, (*generation).compare)
	for c, a := range f.agents() {
		scope, source := Scope{Cluster: c.Name, Node: a.Pod.Node}, statusOf(a)
		switch version := a.Value.Version; {
		case version != most.version:
			evidence := fmt.Sprintf("it has %s; %d of %d agents have %s", version, most.agents, total, most.version)
			if pathless(a.Value) {
				evidence += "; it reports no paths"
			}
			found(Finding{scope, "the agent of " + a.Pod.Node + " has another version", []Evidence{{evidence, source}}})
		case pathless(a.Value):
			found(Finding{scope, "the agent of " + a.Pod.Node + " has a version that reports no paths", []Evidence{{"it has " + version, source}}})
		}
	}
}

// generation counts the agents of one version.
type generation struct {
	version          string
	agents, pathless int
}

// compare orders versions by number of agents, then by agents that report paths, then by
// version number.
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

// pathless reports whether an agent has peers without reporting paths to them.
func pathless(a *statuspage.Agent) bool {
	return a.Standby == nil && slices.ContainsFunc(a.Remotes, func(r statuspage.Remote) bool {
		return slices.ContainsFunc(r.Peers, func(p statuspage.Peer) bool { return p.Node != "" && p.Path == nil })
	})
}
