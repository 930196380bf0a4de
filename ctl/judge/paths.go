package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
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

// oneWay and blocked find pairs of nodes by the table of lost.
func oneWay(f *Facts, found func(Finding)) {
	seen := map[Scope]bool{}
	for p := range f.Pairs() {
		back, scope := f.back(p), p.scope()
		switch loss(p, back) {
		case lostThere:
		case lostBack:
			scope = scope.turned()
		default:
			continue
		}
		if !seen[scope] {
			seen[scope] = true
			found(Finding{Scope: scope, Evidence: bothWays(p, back)})
		}
	}
}

func blocked(f *Facts, found func(Finding)) {
	for p := range f.Pairs() {
		// The reverse pair is the same.
		if back := f.back(p); p.Cluster < p.Remote && loss(p, back) == lostBoth {
			found(Finding{Scope: p.scope(), Evidence: bothWays(p, back)})
		}
	}
}

func pathDown(f *Facts, found func(Finding)) {
	isDown := func(p *Pair) bool { s := p.state(); return s == "down" || s == "none" }
	for p := range f.Pairs() {
		back := f.back(p)
		if isDown(p) && (p.turn > back.turn || !isDown(back)) { // The reverse pair hasn't been found before.
			found(Finding{Scope: p.scope(), Evidence: bothWays(p, back)})
		}
	}
}

// bothWays is what the agents of two nodes report about the path between them.
func bothWays(p, back *Pair) []Evidence {
	var all []Evidence
	for _, one := range []*Pair{p, back} {
		switch {
		case one == nil:
		case one.peer != nil:
			all = append(all, Evidence{fmt.Sprintf("%s to %s at %s: %s %s", one.Node, one.node.Name, one.peer.Endpoint, one.state(), one.sign()), one.source})
		case one == p:
			all = append(all, Evidence{fmt.Sprintf("%s to %s: %s", one.Node, one.node.Name, one.why()), one.source})
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
			found(Finding{Scope: p.scope(), Evidence: says(fmt.Sprintf("probes of %d bytes, the MTU of %s, are lost", d.MTU, d.Name), p.source)})
		case d.LargestMTU > 0 && d.MTU > d.LargestMTU && p.node == p.first:
			found(Finding{
				Scope: Scope{Cluster: p.Cluster, Node: p.Node, Remote: p.Remote}, Case: "device", With: []string{"{device}", d.Name},
				Evidence: says(fmt.Sprintf("it is %d, and the path to %s allows %d", d.MTU, d.NarrowestEndpoint, d.LargestMTU), p.source),
			})
		}
	}
}

// oldAgents finds agents whose version differs from the most common one.
func oldAgents(f *Facts, found func(Finding)) {
	of := map[string]int{}
	total := 0
	for _, a := range f.agents() {
		of[a.Value.Version]++
		total++
	}
	if total == 0 {
		return
	}
	// Sorted first: newer is no total order of versions with and without numbers.
	most := slices.MaxFunc(slices.Sorted(maps.Keys(of)), func(a, b string) int { return cmp.Or(of[a]-of[b], newer(a, b)) })
	for c, a := range f.agents() {
		if a.Value.Version != most {
			found(Finding{
				Scope:    Scope{Cluster: c.Name, Node: a.Pod.Node},
				Evidence: says(fmt.Sprintf("it has %s; %d of %d agents have %s", a.Value.Version, of[most], total, most), statusOf(a)),
			})
		}
	}
}

// newer orders versions by number, those without by their text.
func newer(a, b string) int {
	first, errA := version.ParseSemantic(a)
	second, errB := version.ParseSemantic(b)
	switch {
	case errA != nil || errB != nil:
	case first.GreaterThan(second):
		return 1
	case second.GreaterThan(first):
		return -1
	}
	return strings.Compare(a, b)
}
