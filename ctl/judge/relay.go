package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// relayed iterates over the active agents that read the objects of semaphore-relay.
func (f *Facts) relayed(do func(c *inspect.Cluster, a *inspect.Reported[statuspage.Agent])) {
	for c, a := range f.agents() {
		if a.Value.Standby == nil && a.Value.RemotesFrom == inspect.RemotesFromRelay {
			do(c, a)
		}
	}
}

// relayNotRunning looks for a relay without a pod that is ready, and for agents that read the objects
// of one that isn't installed.
func relayNotRunning(f *Facts, found func(Finding)) {
	notRunning(inspect.Relay)(f, found)
	f.relayed(func(c *inspect.Cluster, a *inspect.Reported[statuspage.Agent]) {
		if _, installed := c.Workload(inspect.Relay); !installed && c.Workloads.Known() {
			found(Finding{Scope: Scope{Cluster: c.Name}, Case: "not-installed", Evidence: []Evidence{
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
			found(Finding{Scope: scope, Evidence: says(a.Pod.Node+" reads in its Lease: "+at, statusOf(a)), With: []string{"{of}", of}})
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
			found(Finding{Scope: Scope{Cluster: c.Name, Node: a.Pod.Node}, Evidence: slices.Clip(evidence[:min(len(evidence), maxEvidence)])})
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
				found(Finding{Scope: relayScope(c, of), Evidence: evidence[:min(len(evidence), 5)], With: []string{"{of}", of.Name}})
			}
		}
	}
}

func relayScope(c *inspect.Cluster, of *statuspage.RelayCluster) Scope {
	if of.Local {
		return Scope{Cluster: c.Name}
	}
	return Scope{Cluster: c.Name, Remote: of.Name}
}

// relayIncomplete looks for clusters of whose nodes semaphore-relay has stored some.
func relayIncomplete(f *Facts, found func(Finding)) {
	for c, r := range f.relays() {
		for i := range r.Value.Clusters {
			if of := &r.Value.Clusters[i]; r.Value.Leading && of.API.Synced && of.Incomplete != "" {
				found(Finding{Scope: relayScope(c, of), Evidence: says(of.Incomplete, r.Source), With: []string{"{of}", of.Name}})
			}
		}
	}
}
