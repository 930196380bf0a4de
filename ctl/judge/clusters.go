package judge

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// clusterAway finds clusters of which neither the API server answers nor any node: those
// that no agent of another cluster reaches.
func clusterAway(f *Facts, found func(Finding)) {
	type paths struct {
		up, down int
		evidence []Evidence
	}
	to := map[*inspect.Cluster]*paths{}
	for p := range f.Pairs() {
		if p.to.Kubernetes.Known() {
			continue
		}
		if to[p.to] == nil {
			to[p.to] = &paths{}
		}
		switch of := to[p.to]; p.state() {
		case "up":
			of.up++
		case "down":
			if of.down++; len(of.evidence) < maxEvidence-1 {
				of.evidence = append(of.evidence, bothWays(p, nil)...)
			}
		}
	}
	for _, c := range f.Clusters {
		if of := to[c]; of != nil && of.up == 0 && of.down > 0 {
			found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: append(says(c.Kubernetes.Err, c.Kubernetes.Source), of.evidence...), With: []string{"{paths}", fmt.Sprint(of.down)}})
		}
	}
}

func otherCluster(f *Facts, found func(Finding)) {
	seen := map[*inspect.Cluster]bool{}
	for c, a := range f.agents() {
		if name := a.Value.Cluster; name != "" && name != c.Name && !seen[c] {
			seen[c] = true
			found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: says("cluster "+name, statusOf(a)), With: []string{"{context}", c.Context, "{name}", name}})
		}
	}
}

// notInstalled finds clusters without our programs, or without the agents that their nodes
// or other clusters know.
func notInstalled(f *Facts, found func(Finding)) {
	known := map[string]bool{}
	for c, a := range f.agents() {
		for i := range a.Value.Remotes {
			known[c.Name+" "+a.Value.Remotes[i].Name] = true
		}
	}
	for _, c := range f.Clusters {
		if _, installed := c.Workload(inspect.WireGuard); installed || !c.Kubernetes.Known() || !c.Workloads.Known() {
			continue
		}
		if len(c.Workloads.Value) == 0 {
			found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: says("no DaemonSet or Deployment of Kube-Semaphore", c.Workloads.Source)})
			continue
		}
		for _, other := range f.Clusters {
			published := slices.ContainsFunc(c.Nodes.Value, func(n inspect.Node) bool { return annotation(&n, other.Name, "pubKey") != "" })
			if other != c && (published || known[other.Name+" "+c.Name]) {
				found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: says("no DaemonSet "+inspect.WireGuard, c.Workloads.Source), Case: "agents"})
				break
			}
		}
	}
}

// tolerated is the largest accepted difference of clocks. Tokens and certificates are valid
// for hours; kubelets renew their leases every 10 s, and their nodes are not ready after 40 s.
const tolerated = 5 * time.Minute

// clocksApart compares the API servers' clocks with each other, and each kubelet's clock
// with its API server's: kubelets date the renewals of their leases, and a node that is ready
// has renewed its lease within a minute.
func clocksApart(f *Facts, found func(Finding)) {
	for i, c := range f.Clusters {
		if !c.Clock.Known() {
			continue
		}
		for _, other := range f.Clusters[:i] {
			if apart := c.Clock.Value - other.Clock.Value; other.Clock.Known() && apart.Abs() > tolerated {
				found(Finding{
					Scope: Scope{Cluster: c.Name, Remote: other.Name}, With: []string{"{apart}", apart.Abs().Round(time.Minute).String()},
					Evidence: says(fmt.Sprintf("ahead of ours: %s by %s, %s by %s", c.Name, c.Clock.Value, other.Name, other.Clock.Value), c.Clock.Source),
				})
			}
		}
		for j := range c.Nodes.Value {
			n := &c.Nodes.Value[j]
			if n.Renewed.IsZero() || n.Ready != "True" {
				continue
			}
			if apart := n.Renewed.Sub(c.Taken.Add(c.Clock.Value)); apart.Abs() > tolerated {
				found(Finding{
					Scope: Scope{Cluster: c.Name, Node: n.Name}, Case: "node", With: []string{"{apart}", apart.Round(time.Minute).String()},
					Evidence: says("its kubelet dates its lease "+n.Renewed.UTC().Format(time.RFC3339), c.Kubectl("-n kube-node-lease get lease %s -o yaml", n.Name)),
				})
			}
		}
	}
}

func unreadyNode(n *inspect.Node) bool { return n.Ready != "" && n.Ready != "True" }

func nodeNotReady(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		for i := range c.Nodes.Value {
			if n := &c.Nodes.Value[i]; unreadyNode(n) {
				found(Finding{Scope: Scope{Cluster: c.Name, Node: n.Name}, Evidence: says("the condition Ready is "+n.Ready, c.Kubectl("describe node %s", n.Name))})
			}
		}
	}
}

// crashing finds pods of agents that fail to start or keep exiting.
func crashing(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		for _, p := range c.Pods.Value {
			if p.Program == inspect.WireGuard && p.Waiting != "" && p.Waiting != "ContainerCreating" {
				what := fmt.Sprintf("%s, %d restarts; last exit: %s", p.Waiting, p.Restarts, cmp.Or(p.Ended, "unknown"))
				found(Finding{Scope: Scope{Cluster: c.Name, Node: p.Node}, Evidence: says(what, c.Kubectl("-n sys-semaphore logs %s --previous", p.Name))})
			}
		}
	}
}

func agentMissing(f *Facts, found func(Finding)) {
	for _, c := range f.Clusters {
		if _, installed := c.Workload(inspect.WireGuard); !installed || !c.Pods.Known() {
			continue
		}
		has := map[string]bool{}
		for _, p := range c.Pods.Value {
			has[p.Node] = has[p.Node] || p.Program == inspect.WireGuard
		}
		for i := range c.Nodes.Value {
			if node := c.Nodes.Value[i].Name; !has[node] {
				found(Finding{Scope: Scope{Cluster: c.Name, Node: node}, Evidence: says("the DaemonSet has no pod there", c.Pods.Source)})
			}
		}
	}
}

// write is a write to the own API server that failed.
type write struct {
	Scope
	program, err, source string
}

// writes returns the failed writes of the controllers.
func (f *Facts) writes() (all []write) {
	add := func(c *inspect.Cluster, remote, program, err, source string) {
		if err != "" {
			all = append(all, write{Scope{Cluster: c.Name, Remote: remote}, program, err, source})
		}
	}
	for c, m := range f.mirrors() {
		add(c, "", inspect.ServiceMirror, m.Value.ElectionError(), m.Source)
		for i := range m.Value.Services {
			add(c, "", inspect.ServiceMirror, refusal(m.Value.Services[i].Error), m.Source)
		}
	}
	for c, p := range f.policies() {
		add(c, "", inspect.NetworkPolicy, p.Value.ElectionError, p.Source)
		for i := range p.Value.Remotes {
			r := &p.Value.Remotes[i]
			for _, name := range slices.Sorted(maps.Keys(r.Failing)) {
				add(c, r.Name, inspect.NetworkPolicy, refusal(r.Failing[name]), p.Source)
			}
		}
	}
	for c, r := range f.relays() {
		add(c, "", inspect.Relay, r.Value.ElectionError, r.Source)
		for i := range r.Value.Clusters {
			of := &r.Value.Clusters[i]
			for _, name := range slices.Sorted(maps.Keys(of.Failing)) {
				add(c, remoteOf(c, of.Name), inspect.Relay, refusal(of.Failing[name]), r.Source)
			}
		}
	}
	return all
}

// refusal returns an error if it is a refusal of the API server, and not one about the object. An
// error of a write has no reason of its own.
func refusal(err string) string {
	if kube.RefusedByAdmission(err) || strings.Contains(err, "forbidden") {
		return err
	}
	return ""
}

// admissionRefuses finds writes of our programs, and pods of them, that an admission
// controller refuses.
func admissionRefuses(f *Facts, found func(Finding)) {
	for c, a := range f.agents() {
		for _, fails := range a.Value.Of(statuspage.Failing) {
			if fails.Reason == statuspage.ReasonRefused {
				found(Finding{Scope: Scope{Cluster: c.Name, Node: a.Pod.Node}, Evidence: says(fails.Message, statusOf(a))})
			}
		}
	}
	for _, w := range f.writes() {
		if kube.RefusedByAdmission(w.err) {
			found(Finding{Scope: w.Scope, Evidence: says(w.err, w.source)})
		}
	}
	for _, c := range f.Clusters {
		for _, e := range c.Warnings.Value {
			// Events stay for an hour: a workload that has all of its pods is no longer refused.
			if _, name, _ := strings.Cut(e.About, "/"); e.Reason == "FailedCreate" && kube.RefusedByAdmission(e.Message) && slices.ContainsFunc(c.Workloads.Value, func(w inspect.Workload) bool {
				return w.Ready < w.Wanted && strings.HasPrefix(name, w.Name) && podsOf(c, w.Name) < w.Wanted
			}) {
				found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: says(e.Message, c.Warnings.Source)})
			}
		}
	}
}

// podsOf returns the number of pods of a program.
func podsOf(c *inspect.Cluster, program string) (n int32) {
	for _, p := range c.Pods.Value {
		if p.Program == program && !p.Deleting {
			n++
		}
	}
	return n
}

// ownFailing finds programs that can't read from the API server of their own cluster, or write
// to it.
func ownFailing(f *Facts, found func(Finding)) {
	for c, t := range f.credentialChecks() {
		if t.Remote == c.Name && t.Error != "" {
			found(Finding{Scope: Scope{Cluster: c.Name, Node: t.Node}, Evidence: says(t.Program+": "+t.Error, t.Source)})
		}
	}
	for _, w := range f.writes() {
		if !kube.RefusedByAdmission(w.err) {
			found(Finding{Scope: Scope{Cluster: w.Cluster}, Evidence: says(w.err, w.source), Case: "writes", With: []string{"{program}", w.program}})
		}
	}
}

func tokenExpiring(f *Facts, found func(Finding)) {
	for c, t := range f.credentialChecks() {
		if c.Overdue(&t.CredentialCheck) {
			left := t.Expires.Sub(c.Taken.Add(c.Clock.Value))
			found(Finding{
				Scope:    Scope{Cluster: c.Name, Node: t.Node, Remote: t.Remote},
				Evidence: says(fmt.Sprintf("%s: it expires at %s, in %s", t.Program, t.Expires.UTC().Format(time.RFC3339), left.Round(time.Second)), t.Source),
			})
		}
	}
}

// notRunning finds programs of which no pod is ready.
func notRunning(program string) func(f *Facts, found func(Finding)) {
	return func(f *Facts, found func(Finding)) {
		for _, c := range f.Clusters {
			w, installed := c.Workload(program)
			if !installed || w.Ready > 0 || unreadyWith(c, program) {
				continue
			}
			evidence := says(cli.Of(int(w.Ready), int(w.Wanted), "pod")+" ready", c.Workloads.Source)
			for _, p := range c.Pods.Value {
				if p.Program == program && (p.Waiting != "" || !p.Ready) {
					evidence = append(evidence, Evidence{fmt.Sprintf("%s: %s %s %s", p.Name, p.Phase, p.Waiting, p.Ended), c.Kubectl("-n sys-semaphore logs %s", p.Name)})
					break
				}
			}
			found(Finding{Scope: Scope{Cluster: c.Name}, Evidence: evidence})
		}
	}
}

// notReady finds pods of a program that aren't ready; empty: of further programs, which should have
// a pod.
func notReady(program string) func(f *Facts, found func(Finding)) {
	named := []string{inspect.WireGuard, inspect.ServiceMirror, inspect.NetworkPolicy, inspect.Relay}
	return func(f *Facts, found func(Finding)) {
		for _, c := range f.Clusters {
			for _, w := range c.Workloads.Value {
				if is := w.Name == program || program == "" && !slices.Contains(named, w.Name); !is || w.Ready >= w.Wanted && (program != "" || w.Wanted > 0) || unreadyWith(c, w.Name) {
					continue
				}
				evidence := says("", c.Workloads.Source)
				for _, p := range c.Pods.Value {
					if p.Program == w.Name && !p.Ready && !p.Deleting && len(evidence) < maxEvidence {
						evidence = append(evidence, Evidence{fmt.Sprintf("%s on %s: %s %s %s", p.Name, p.Node, p.Phase, p.Waiting, p.Ended), c.Kubectl("-n sys-semaphore logs %s --previous", p.Name)})
					}
				}
				found(Finding{
					Scope: Scope{Cluster: c.Name}, Evidence: evidence,
					With: []string{"{ready}", fmt.Sprint(w.Ready), "{wanted}", fmt.Sprint(w.Wanted), "{program}", w.Name},
				})
			}
		}
	}
}

// unreadyWith reports whether all pods of a program that aren't ready are on nodes that aren't,
// either.
func unreadyWith(c *inspect.Cluster, program string) bool {
	var nodes []string
	for _, p := range c.Pods.Value {
		if p.Program == program && !p.Ready {
			nodes = append(nodes, p.Node)
		}
	}
	return onUnready(c, nodes)
}

// onUnready reports whether none of these nodes of pods is ready, which is a reason of its own. A pod
// without a node needs any that is.
func onUnready(c *inspect.Cluster, nodes []string) bool {
	unready := map[string]bool{}
	for i := range c.Nodes.Value {
		if n := &c.Nodes.Value[i]; unreadyNode(n) {
			unready[n.Name] = true
		}
	}
	unready[""] = len(unready) > 0 && len(unready) == len(c.Nodes.Value)
	return len(nodes) > 0 && !slices.ContainsFunc(nodes, func(n string) bool { return !unready[n] })
}
