package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// Reasons of the agent's Events.
const (
	eventNode    = "NodeRejected"   // a remote node is no peer
	eventPrefix  = "PrefixRejected" // a remote node is a peer without one of its prefixes
	eventSummary = "NodesRejected"  // there is more than is told one by one
)

// topics returns what is rejected of each remote.
func (a *agent) topics() []event.Topic {
	topics := make([]event.Topic, len(a.remotes))
	for i, r := range a.remotes {
		topics[i] = rejections(r.cfg.Name, r.controller.State().Rejected)
	}
	return topics
}

// rejections makes a topic of what is rejected of a remote. A node that is
// rejected for another reason than before is another fact; a change of the detail
// alone is none, and need not be the same on each of our nodes.
func rejections(remote string, rejected []peers.Rejection) event.Topic {
	facts := make([]event.Fact, len(rejected))
	for i, r := range rejected {
		facts[i] = event.Fact{
			ID: fmt.Sprintf("%q %s %t", r.Node, r.Reason, r.Partial), Reason: eventNode,
			Message: fmt.Sprintf("node %q of %s is rejected, %s: %s", r.Node, remote, r.Reason, r.Detail),
		}
		if r.Partial {
			facts[i].Reason = eventPrefix
			facts[i].Message = fmt.Sprintf("a prefix of node %q of %s is rejected, %s: %s", r.Node, remote, r.Reason, r.Detail)
		}
	}
	return event.Topic{Name: remote, Facts: facts, Summary: func([]event.Fact) event.Fact {
		return event.Fact{ID: "all", Reason: eventSummary, Message: summary(remote, rejected)}
	}}
}

// summary counts what is rejected of a remote.
func summary(remote string, rejected []peers.Rejection) string {
	nodes, counts := map[string]bool{}, map[peers.Reason]int{}
	for _, r := range rejected {
		nodes[r.Node] = true
		counts[r.Reason]++
	}
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%s %d", reason, counts[reason]))
	}
	return fmt.Sprintf("%d nodes of %s are rejected, or prefixes of them: %s; semaphore-wireguard status names all",
		len(nodes), remote, strings.Join(parts, ", "))
}
