package judge

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

func overlapping(f *Facts, found func(Finding)) {
	for v := range f.allViews() {
		if v.remote.Refused != "" {
			finding := Finding{Scope: v.Scope, Evidence: says(v.remote.Refused, v.source)}
			if v.agent.Standby != nil {
				finding.Case = "standby"
			}
			found(finding)
		}
	}
}

func remoteMissing(f *Facts, found func(Finding)) {
	for p := range f.Pairs() {
		if p.agent != nil && p.agent.Standby == nil && p.remote == nil && p.node == p.first {
			found(Finding{Scope: Scope{Cluster: p.Cluster, Node: p.Node, Remote: p.Remote}, Evidence: says("the agent's report doesn't list it", p.source)})
		}
	}
}

func annotationsGone(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		for _, other := range f.Clusters {
			for i := range c.Nodes.Value {
				n := &c.Nodes.Value[i]
				// A node that has to initiate all handshakes publishes an empty endpoint.
				_, endpoint := n.Annotations[annotationName(other.Name, "endpoint")]
				agent := f.site(c).acting[n.Name]
				if c == other || annotation(n, other.Name, "pubKey") != "" && endpoint || agent != nil && agent.Standby != nil {
					continue
				}
				evidence := says("the node publishes no key or no endpoint for "+other.Name, c.Kubectl("get node %s -o yaml", n.Name))
				if agent != nil && agent.Failure("publish") != "" {
					evidence = append(evidence, Evidence{agent.Failure("publish"), f.status(c, n.Name)})
				}
				found(Finding{Scope: Scope{Cluster: c.Name, Node: n.Name, Remote: other.Name}, Evidence: evidence})
			}
		}
	}
}

// keyChanged compares the key of a device with the one that its node publishes.
func keyChanged(f *Facts, found func(Finding)) {
	for v := range f.views() {
		node := f.site(v.cluster).nodes[v.Node]
		if node == nil || v.remote.Device.PublicKey == "" {
			continue
		}
		published := annotation(node, v.Remote, "pubKey")
		if published == "" || published == v.remote.Device.PublicKey {
			continue
		}
		evidence := []Evidence{
			{"its device has " + v.remote.Device.PublicKey, v.source},
			{"the node publishes " + published, v.cluster.Kubectl("get node %s -o yaml", v.Node)},
		}
		if err := v.agent.Failure("publish"); err != "" {
			evidence = append(evidence, Evidence{err, v.source})
		}
		found(Finding{Scope: v.Scope, Evidence: evidence})
	}
}

// former returns the node of a remote that publishes the same key and endpoint as one that is
// ready, and isn't itself; nil: none does.
func (f *Facts) former(v *view, name string) *inspect.Node {
	remote := f.cluster(v.Remote)
	if remote == nil {
		return nil
	}
	now := f.site(remote).nodes[name]
	if now == nil || now.Ready != "True" || annotation(now, v.Cluster, "endpoint") == "" {
		return nil
	}
	for i := range remote.Nodes.Value {
		n := &remote.Nodes.Value[i]
		if n.Name != name && unreadyNode(n) && annotation(n, v.Cluster, "pubKey") == annotation(now, v.Cluster, "pubKey") &&
			annotation(n, v.Cluster, "endpoint") == annotation(now, v.Cluster, "endpoint") {
			return n
		}
	}
	return nil
}

// rejected finds the nodes that agents reject for a reason; empty: for any. Of more than maxScopes
// in one cluster it finds that many.
func rejected(reason string) func(f *Facts, found func(Finding)) {
	return func(f *Facts, found func(Finding)) {
		of := map[string]int{} // findings, by cluster
		for v := range f.views() {
			for _, r := range v.remote.Rejected {
				if reason != "" && r.Reason != reason || of[v.Cluster] == maxScopes {
					continue
				}
				of[v.Cluster]++
				finding := Finding{Scope: Scope{v.Cluster, v.Node, v.Remote, r.Node}, Evidence: says(r.Detail, v.source), Case: r.Reason, With: []string{"{why}", r.Reason}}
				if reason == "duplicate_key" {
					f.renamed(v, r.Node, &finding)
				}
				found(finding)
			}
		}
	}
}

// renamed completes the finding about a node that has the key of its former name.
func (f *Facts) renamed(v *view, node string, finding *Finding) {
	if former := f.former(v, node); former != nil {
		remote := f.cluster(v.Remote)
		finding.Evidence = append(finding.Evidence, Evidence{former.Name + " isn't ready and publishes the same key and endpoint: the node was renamed", remote.Kubectl("get node %s -o yaml", former.Name)})
		finding.Case, finding.With = "renamed", append(finding.With, "{delete}", remote.Kubectl("delete node %s", former.Name))
	}
}

func portTaken(f *Facts, found func(Finding)) {
	for v := range f.views() {
		v.find(found, v.fails(statuspage.ReasonPortTaken))
	}
}

func deviceMissing(f *Facts, found func(Finding)) {
	for v := range f.views() {
		err := v.remote.Device.Error
		for _, c := range v.failing {
			if c.Object == "device "+v.remote.Name && c.Reason != statuspage.ReasonUndone { // That one exists.
				err = cmp.Or(err, c.Message)
			}
		}
		v.find(found, err)
	}
}

func foreignRoute(f *Facts, found func(Finding)) {
	for v := range f.views() {
		v.find(found, v.inTheWay)
	}
}

// find adds a finding about the device of a remote, if there is a fact.
func (v *view) find(found func(Finding), fact string) {
	if fact != "" {
		found(Finding{Scope: v.Scope, Evidence: says(fact, v.source), With: []string{"{device}", v.remote.Device.Name}})
	}
}

// notForwarding finds nodes that don't forward packets of their pods: paths between nodes
// are up there, because probes aren't forwarded.
func notForwarding(f *Facts, found func(Finding)) {
	for c, a := range f.agents() {
		if off := strings.Join(a.Value.Forwarding.Off, ", "); off != "" {
			found(Finding{Scope: Scope{Cluster: c.Name, Node: a.Pod.Node}, Evidence: says(off, statusOf(a)), With: []string{"{off}", off}})
		}
	}
}

// foreignRule names nodes on which other programs lead packets to remote pods past the
// tunnel, where agents drop them. Temporary pods have sent some, if any run there.
func foreignRule(f *Facts, found func(Finding)) {
	for c, a := range f.agents() {
		report := a.Value
		if later := c.Later[a.Pod.Node]; later != nil {
			report = later
		}
		for i := range report.Remotes {
			if r := &report.Remotes[i]; r.Stopping && r.Stopped != nil && r.LastStopped != nil {
				found(Finding{
					Scope:    Scope{Cluster: c.Name, Node: a.Pod.Node, Remote: r.Name},
					Evidence: says(fmt.Sprintf("%d packets, the last one at %s", *r.Stopped, r.LastStopped.UTC().Format(time.RFC3339)), statusOf(a)),
				})
			}
		}
	}
}

func undone(f *Facts, found func(Finding)) {
	for c, a := range f.agents() {
		for _, fails := range a.Value.Of(statuspage.Failing) {
			if fails.Reason == statuspage.ReasonUndone {
				found(Finding{Scope: Scope{Cluster: c.Name, Node: a.Pod.Node}, Evidence: says(fails.Message, statusOf(a)), With: []string{"{object}", fails.Object}})
			}
		}
	}
}

func peersOutdated(f *Facts, found func(Finding)) {
	for p := range f.Pairs() {
		if key := annotation(p.node, p.Cluster, "pubKey"); p.peer != nil && key != "" && p.peer.PublicKey != key {
			found(Finding{Scope: p.scope(), Evidence: says("key in use "+p.peer.PublicKey+", published "+key, p.source)})
		}
	}
}

// failing finds failures of agents that are no reason of their own, so that none is left out. Only
// reasons that have to do with what fails explain one: a case for the first word of its name.
func failing(f *Facts, found func(Finding)) {
	for c, a := range f.agents() {
		remotes := map[string]bool{}
		for i := range a.Value.Remotes {
			remotes[a.Value.Remotes[i].Name] = true
		}
		for _, fails := range a.Value.Of(statuspage.Failing) {
			if fails.Reason == statuspage.ReasonRefused || fails.Reason == statuspage.ReasonUndone {
				continue
			}
			scope := Scope{Cluster: c.Name, Node: a.Pod.Node}
			if remote := lastWord(fails.Object); remotes[remote] {
				scope.Remote = remote
			}
			word, _, _ := strings.Cut(fails.Object, " ")
			found(Finding{Scope: scope, Evidence: says(fails.Message, statusOf(a)), Case: word, With: []string{"{object}", fails.Object}})
		}
	}
	for c, a := range f.agents() {
		if a.Value.Standby != nil {
			continue // The filters are those of the agent that is active.
		}
		say := func(what, evidence string) {
			found(Finding{Scope: Scope{Cluster: c.Name, Node: a.Pod.Node}, Evidence: says(evidence, statusOf(a)), Case: what})
		}
		flushed := false // At any moment it may be there or not.
		for _, c := range a.Value.Conditions {
			flushed = flushed || c.Object == "packet filter" && c.Reason == statuspage.ReasonUndone
		}
		if s := a.Value.Filter; !flushed && s.State != "" && s.State != statuspage.FilterEnforced && s.State != statuspage.FilterOff {
			say("source filter", s.State+" "+s.Error)
		}
		if s := a.Value.Exit; !flushed && s.State != "" && s.State != statuspage.FilterEnforced {
			say("exit filter", s.State+" "+s.Error)
		}
		if a.Value.Networkd {
			say("networkd", "10-semaphore.conf is missing in /etc/systemd/networkd.conf.d")
		}
	}
}
