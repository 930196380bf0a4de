package judge

import (
	"fmt"

	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// passage is how far the packets of a pod have come that got no answer from a pod on another
// node, by the bytes that the agents of both nodes have counted meanwhile:
//
//	sent by the node   received by the other one   passage
//	less               any                         before: dropped on the node
//	as many            less                        within: not accepted by the other one
//	as many            as many                     behind: dropped there, or the answers are
type passage int

const (
	passageUnknown passage = iota
	passageBefore
	passageWithin
	passageBehind
)

// passed returns the passage of the pods' packets from one node to another one, and what was counted.
func (f *Facts) passed(from, to probe.NodeRef) (p passage, counted string) {
	burst := int64(0)
	for i := range f.podConnections() {
		if l := &f.podConnections()[i]; l.From == from && l.To == to {
			burst += int64(l.Burst)
		}
	}
	sent, knownSent := f.grown(from, to, func(p *statuspage.Peer) int64 { return p.TxBytes })
	received, knownReceived := f.grown(to, from, func(p *statuspage.Peer) int64 { return p.RxBytes })
	if burst == 0 || !knownSent {
		return passageUnknown, ""
	}
	counted = fmt.Sprintf("; of %d bytes of its pod %s sent %d through the tunnel", burst, from.Node, sent)
	if knownReceived {
		counted += fmt.Sprintf(", and %s received %d", to.Node, received)
	}
	switch {
	case sent < burst/2: // Others than the pod send, too.
		return passageBefore, counted
	case sent < burst || !knownReceived:
		return passageUnknown, counted
	case received < burst/2:
		return passageWithin, counted
	case received < burst:
		return passageUnknown, counted
	}
	return passageBehind, counted
}

// grown returns by how much a counter of a node's peer has grown while pods tested connections.
func (f *Facts) grown(at, peer probe.NodeRef, counter func(*statuspage.Peer) int64) (bytes int64, known bool) {
	c := f.cluster(at.Cluster)
	if c == nil {
		return 0, false
	}
	of := func(a *statuspage.Agent) *statuspage.Peer {
		if a == nil || a.Remote(peer.Cluster) == nil {
			return nil
		}
		return a.Remote(peer.Cluster).Peer(peer.Node)
	}
	before, after := of(f.site(c).acting[at.Node]), of(c.Later[at.Node])
	if before == nil || after == nil || counter(after) < counter(before) { // The counters were reset.
		return 0, false
	}
	return counter(after) - counter(before), true
}

// end returns on which node packets end between the pods of a connection that has failed, and
// what was counted. A response needs both directions.
func (f *Facts) end(l *probe.Connection) (where, counted string) {
	there, counted := f.passed(l.From, l.To)
	back, _ := f.passed(l.To, l.From)
	into := "on %s, where they come out of the tunnel"
	switch {
	case there == passageBefore:
		return fmt.Sprintf("on %s, before they enter the tunnel", l.From.Node), counted
	case back == passageBefore:
		return fmt.Sprintf("on %s, before they enter the tunnel", l.To.Node), counted
	case there == passageWithin:
		return fmt.Sprintf("by WireGuard on %s: %s gives them addresses that aren't those of its pods", l.To.Node, l.From.Node), counted
	case back == passageWithin:
		return fmt.Sprintf("by WireGuard on %s: %s gives them addresses that aren't those of its pods", l.From.Node, l.To.Node), counted
	case there == passageBehind && back != passageBehind:
		return fmt.Sprintf(into, l.To.Node), counted
	case back == passageBehind && there != passageBehind:
		return fmt.Sprintf(into, l.From.Node), counted
	case there == passageBehind:
		return fmt.Sprintf("on %s or %s, where they come out of the tunnel", l.From.Node, l.To.Node), counted
	}
	return "on one of these nodes", counted
}
