package doctor

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// relayRules distinguish a relay that is gone, a remote that is silent, and an agent that is
// behind.
func relayRules() []Rule {
	gone := []string{"relay-not-running", "admission-refuses", "own-api-failing"}
	return []Rule{
		{
			ID: "relay-not-running", After: []string{"admission-refuses", "own-api-failing"},
			Remedy: "find out why its pods don't run, or scale its Deployment up. Until then agents that read its objects continue with the nodes that they know, and learn of no changes",
			Fix: func(finding Finding) string {
				if strings.Contains(finding.What, "isn't installed") {
					return "install it with semaphorectl join --relay=on, or let agents read API servers again with --relay=off"
				}
				return ""
			},
			Find: func(f *Facts, found func(Finding)) {
				notRunning(f, inspect.Relay, found)
				relayMissing(f, found)
			},
		},
		{
			ID: "relay-silent", After: append(connecting(), gone...),
			Remedy: "find out in the log of its leader why it has no contact: kubectl -n sys-semaphore logs -l app.kubernetes.io/name=semaphore-relay. Its Lease is read with the clocks of the nodes: correct those that differ by 30 s. Agents continue with the nodes that they know",
			Find:   relaySilent,
		},
		{
			ID: "relay-objects-not-written", Local: true, After: gone,
			Remedy: "correct what the error names; of an object that another client changes, stop that client. Agents continue with the nodes that they know, and remove none while objects are missing",
			Find:   relayObjects,
		},
		{
			ID: "agent-behind", Local: true, After: append([]string{"relay-objects-not-written", "agent-crash-loop", "node-not-ready"}, gone...),
			Remedy: "find out in its log why it doesn't follow: its account needs the rights of deploy/wireguard/relay, and its node the network to its own API server. Then restart the agents: kubectl -n sys-semaphore rollout restart daemonset/semaphore-wireguard. Until then they continue with the nodes that they know",
			Find:   agentBehind,
		},
	}
}

// relayed iterates over the active agents that read the objects of semaphore-relay.
func (f *Facts) relayed(do func(c *inspect.Cluster, a *inspect.Reported[statuspage.Agent])) {
	for c, a := range f.agents() {
		if a.Value.Standby == nil && a.Value.RemotesFrom == inspect.RemotesFromRelay {
			do(c, a)
		}
	}
}

// relayMissing looks for agents that read the objects of a relay that isn't installed.
func relayMissing(f *Facts, found func(Finding)) {
	f.relayed(func(c *inspect.Cluster, a *inspect.Reported[statuspage.Agent]) {
		if _, installed := c.Workload(inspect.Relay); !installed && c.Workloads.Known() {
			found(Finding{Scope{Cluster: c.Name}, "semaphore-relay isn't installed in " + c.Name + ", and agents read its objects", []Evidence{
				{a.Pod.Node + " has " + inspect.RemotesFrom + "=" + inspect.RemotesFromRelay, statusOf(a)}, {"there is no Deployment semaphore-relay", c.Workloads.Source},
			}})
		}
	})
}

// relaySilent looks for clusters with which semaphore-relay has no contact according to its
// Leases: its own, if it is gone, or a remote.
func relaySilent(f *Facts, found func(Finding)) {
	f.relayed(func(c *inspect.Cluster, a *inspect.Reported[statuspage.Agent]) {
		say := func(of string, scope Scope) bool {
			contact, known := a.Value.Relay[of]
			if !known || !contact.Late {
				return false
			}
			at := "it has had none, or its Lease was deleted"
			if contact.Renewed != nil {
				at = "the last one was at " + contact.Renewed.UTC().Format(time.RFC3339)
			}
			found(Finding{scope, fmt.Sprintf("semaphore-relay of %s has no contact with the API server of %s", c.Name, of), []Evidence{{a.Pod.Node + " reads in its Lease: " + at, statusOf(a)}}})
			return true
		}
		if say(c.Name, Scope{Cluster: c.Name}) {
			return // Without it, all others are late, too.
		}
		for i := range a.Value.Remotes {
			remote := a.Value.Remotes[i].Name
			say(remote, Scope{Cluster: c.Name, Remote: remote})
		}
	})
}

// agentBehind looks for agents that haven't read what semaphore-relay has stored.
func agentBehind(f *Facts, found func(Finding)) {
	f.relayed(func(c *inspect.Cluster, a *inspect.Reported[statuspage.Agent]) {
		var evidence []Evidence
		for _, of := range c.Behind(a.Value) {
			evidence = append(evidence, Evidence{
				fmt.Sprintf("of %s it has read revision %s, and %s was stored %s before", of, cmp.Or(a.Value.Relay[of].Revision, "none"), c.Stored.Value[of], inspect.FollowTime), statusOf(a),
			})
		}
		for i := range a.Value.Remotes {
			if r := &a.Value.Remotes[i]; r.API.Error != "" {
				evidence = append(evidence, Evidence{r.Name + ": " + r.API.Error, statusOf(a)})
			}
		}
		if len(evidence) > 0 {
			found(Finding{Scope{Cluster: c.Name, Node: a.Pod.Node}, "the agent of " + a.Pod.Node + " lacks the latest nodes of semaphore-relay", slices.Clip(evidence[:min(len(evidence), maxEvidence)])})
		}
	})
}

// relayObjects looks for objects of semaphore-relay that can't be written or don't last.
func relayObjects(f *Facts, found func(Finding)) {
	for c, r := range f.relays() {
		for i := range r.Value.Clusters {
			of := &r.Value.Clusters[i]
			var evidence []Evidence
			for _, name := range slices.Sorted(maps.Keys(of.Failing)) {
				evidence = append(evidence, Evidence{name + ": " + of.Failing[name], r.Source})
			}
			for j := range of.Overridden {
				evidence = append(evidence, Evidence{of.Overridden[j].String(), r.Source})
			}
			if len(evidence) > 0 {
				scope := Scope{Cluster: c.Name}
				if !of.Local {
					scope.Remote = of.Name
				}
				found(Finding{scope, fmt.Sprintf("%s: agents don't get all changes of the nodes of %s: objects of semaphore-relay can't be written", c.Name, of.Name), evidence[:min(len(evidence), 5)]})
			}
		}
	}
}
