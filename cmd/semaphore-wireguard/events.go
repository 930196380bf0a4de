package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// Reasons of the agent's Events.
const (
	eventNode    = "NodeRejected"   // a remote node is no peer
	eventPrefix  = "PrefixRejected" // a remote node is a peer without one of its prefixes
	eventSummary = "NodesRejected"  // there is more than is written one by one
)

// conditions returns what is rejected of each remote.
func (a *agent) conditions() []event.Remote {
	remotes := make([]event.Remote, len(a.remotes))
	for i, r := range a.remotes {
		remotes[i] = rejections(r.cfg.Name, r.controller.State().Rejected)
	}
	return remotes
}

// rejections makes conditions of what is rejected of a remote. A node that is
// rejected for another reason than before is another condition; a change of the
// detail alone is none, and need not be the same on each of our nodes.
func rejections(remote string, rejected []peers.Rejection) event.Remote {
	all := make([]event.Condition, len(rejected))
	for i, r := range rejected {
		node := r.Node
		if !possible(node) {
			// It may be endless, and what comes behind it has to be seen.
			node = node[:min(len(node), longestNode)]
		}
		all[i] = event.Condition{
			ID: fmt.Sprintf("%q %s %t", r.Node, r.Reason, r.Partial), Name: eventName("node", r), Reason: eventNode,
			Message: fmt.Sprintf("node %q of %s is rejected, %s: %s", node, remote, r.Reason, r.Detail),
		}
		if r.Partial {
			all[i].Name, all[i].Reason = eventName("prefix", r), eventPrefix
			all[i].Message = fmt.Sprintf("a prefix of node %q of %s is rejected, %s: %s", node, remote, r.Reason, r.Detail)
		}
	}
	return event.Remote{Name: remote, Conditions: all, Summary: func([]event.Condition) event.Condition {
		return event.Condition{ID: "all", Name: "all", Reason: eventSummary, Message: summary(remote, rejected)}
	}}
}

// longestNode is how much of a node's name stands in that of an Event, which may
// have 253 characters.
const longestNode = 120

// shortestCut is how much of a name that was cut must be there for the admission
// policy to take it for a part of one.
const shortestCut = 100

// eventName is how the name of a rejection's Event ends. It says what the message
// begins with: deploy/wireguard/admission.yaml refuses Events where it doesn't, so
// that an agent can't keep the others from writing of a node. Of a name that no
// node can have nothing is in it.
func eventName(what string, r peers.Rejection) string {
	name := what + "." + strings.ReplaceAll(string(r.Reason), "_", "-")
	if !possible(r.Node) {
		return name
	}
	node := strings.TrimRight(r.Node[:min(len(r.Node), longestNode)], ".-")
	if node != r.Node && len(node) < shortestCut {
		return name
	}
	return name + "." + node
}

// possible reports whether a node can have a name.
func possible(node string) bool { return len(validation.IsDNS1123Subdomain(node)) == 0 }

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
