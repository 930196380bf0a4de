package agent

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
	eventNode    = "NodeRejected"   // a remote node is not a peer
	eventPrefix  = "PrefixRejected" // a remote node is a peer without one of its prefixes
	eventSummary = "NodesRejected"  // one Event instead of many single ones
)

// conditions returns the rejections of each remote.
func (a *agent) conditions() []event.Remote {
	remotes := make([]event.Remote, len(a.remotes))
	for i, r := range a.remotes {
		remotes[i] = rejections(r.cfg.Name, r.controller.State().Rejected)
	}
	return remotes
}

// rejections turns the rejections of a remote into conditions. Another reason makes
// another condition; the detail doesn't, since it may differ between our nodes.
func rejections(remote string, rejected []peers.Rejection) event.Remote {
	all := make([]event.Condition, len(rejected))
	for i, r := range rejected {
		node := r.Node
		if !possible(node) {
			// An invalid name may be very long and would hide the reason after it.
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

// longestNode is how many characters of a node's name an Event's name contains, which
// is limited to 253.
const longestNode = 120

// shortestCut is the minimum length of a truncated node name that the admission policy
// accepts.
const shortestCut = 100

// eventName returns the suffix of a rejection's Event name. It repeats the start of the
// message: deploy/wireguard/admission.yaml refuses Events whose name and message differ,
// so that one agent can't occupy the names of other agents' Events. Invalid node names
// are left out.
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

// possible reports whether node is a valid node name.
func possible(node string) bool { return len(validation.IsDNS1123Subdomain(node)) == 0 }

// summary counts the rejections of a remote by reason.
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
