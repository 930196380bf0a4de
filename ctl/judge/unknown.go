package judge

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// unknown collects what couldn't be checked.
type unknown struct {
	wrong scopes
	all   []Open
	of    map[string]int // by the cluster
}

// add adds something, except in a scope with a fault.
func (u *unknown) add(s Scope, why, command, what string, args ...any) {
	if u.wrong.explain(s) {
		return
	}
	if u.of[s.Cluster]++; u.of[s.Cluster] <= maxOpen {
		u.all = append(u.all, Open{fmt.Sprintf(what, args...), why, command})
	}
}

// open lists what couldn't be checked.
func open(f *Facts, wrong scopes) []Open {
	u := &unknown{wrong: wrong, of: map[string]int{}}
	for _, c := range f.Clusters {
		u.cluster(c)
	}
	for c, a := range f.agents() {
		u.agent(f, c, a)
	}
	for c := range f.named() {
		if dns := c.DNS.Value; dns.Unavailable > 0 {
			u.add(Scope{Cluster: c.Name}, "it has "+cli.Count(int(dns.Unavailable), "unavailable pod"),
				c.Kubectl("-n %s rollout status %s/%s", dns.Namespace, strings.ToLower(dns.Kind), dns.Name), "%s: whether CoreDNS goes on answering", c.Name)
		}
	}
	for _, c := range f.withoutDNS() {
		if !f.resolves(c) {
			u.add(Scope{Cluster: c.Name}, noCoreDNS, c.DNS.Source, "%s: whether names of other clusters are resolved", c.Name)
		}
	}
	u.contacts(f)
	for p := range f.Pairs() {
		if state := p.state(); p.from.Kubernetes.Known() && state != "up" && state != "down" {
			u.add(p.scope(), cmp.Or(p.why(), "no result of probes yet"), p.source, "the path from %s to %s", p.Node, p.node.Name)
		}
	}
	for i := range f.podConnections() {
		if l := &f.podConnections()[i]; l.Skipped != "" && !f.refused(l.From) && !f.refused(l.To) {
			u.add(legScope(l), l.Skipped, tryAgain(l), "whether a pod on %s reaches a pod on %s", l.From.Node, l.To.Node)
		}
	}
	u.asked(f)
	if f.Results != nil && len(f.podConnections()) == 0 {
		u.all = append(u.all, Open{"whether pods' own packets get through", "no temporary pod ran", ""})
	}
	if len(f.pairs) == 0 {
		u.all = append(u.all, Open{"the paths between nodes", "nodes of fewer than two clusters are known: pass the other clusters as arguments, too", ""})
	}
	for _, c := range f.Clusters {
		if more := u.of[c.Name] - maxOpen; more > 0 {
			u.all = append(u.all, Open{fmt.Sprintf("%s: %d more", c.Name, more), "the list is too long", ""})
		}
	}
	return u.all
}

// cluster adds what couldn't be read of a cluster.
func (u *unknown) cluster(c *inspect.Cluster) {
	if !c.Kubernetes.Known() {
		// Reported in any case: no fact of this cluster is known.
		u.all = append(u.all, Open{c.Name + ": everything, as its API server can't be read", c.Kubernetes.Err, c.Kubernetes.Source})
		return
	}
	fact := func(what, err, source string) {
		if err != "" {
			u.add(Scope{Cluster: c.Name}, err, source, "%s: %s", c.Name, what)
		}
	}
	fact("its nodes", c.Nodes.Err, c.Nodes.Source)
	fact("its pods of Kube-Semaphore", c.Pods.Err, c.Pods.Source)
	fact("its DaemonSets and Deployments", c.Workloads.Err, c.Workloads.Source)
	fact("its settings", c.Settings.Err, c.Settings.Source)
	fact("its clock", c.Clock.Err, c.Clock.Source)
	fact("the services that other clusters mirror", c.Exports.Err, c.Exports.Source)
	fact("its global services", c.Shared.Err, c.Shared.Source)
	fact("its mirrors", c.Imports.Err, c.Imports.Source)
	if _, installed := c.Workload(inspect.Relay); installed {
		fact("what semaphore-relay has stored", c.Stored.Err, c.Stored.Source)
	}
	if _, installed := c.Workload(inspect.ServiceMirror); installed {
		fact("CoreDNS's configuration", c.DNS.Err, c.DNS.Source)
	}
	for _, r := range c.Reports() {
		if r.Err != "" && !r.Pod.Deleting {
			u.add(Scope{Cluster: c.Name, Node: cmp.Or(r.Pod.Node, "none")}, r.Err, r.Source, "%s: the report of %s on %s", c.Name, r.Pod.Name, r.Pod.Node)
		}
	}
	if c.Nodes.Known() && len(c.Nodes.Value) == 0 {
		fact("whether anything works", "it has no nodes", c.Nodes.Source)
	}
}

// agent adds what an agent doesn't know.
func (u *unknown) agent(f *Facts, c *inspect.Cluster, a *inspect.Reported[statuspage.Agent]) {
	scope := Scope{Cluster: c.Name, Node: a.Pod.Node}
	if a.Value.Conditions == nil {
		u.add(scope, "it is of another release, and doesn't report whether it fails", a.Source, "%s: the agent of %s", c.Name, a.Pod.Node)
	}
	if s := a.Value.Standby; s != nil {
		if f.site(c).acting[a.Pod.Node] == a.Value {
			u.add(scope, "it stands by, and "+cmp.Or(s.Holder, "an unknown process")+" is active", a.Source, "%s: what the agent of %s does", c.Name, a.Pod.Node)
		}
		return
	}
	if pending := a.Value.Of(statuspage.Pending); len(pending) > 0 {
		why := "still pending since its start:"
		for _, p := range pending {
			why += " " + p.Object
		}
		u.add(scope, why, a.Source, "%s: the agent of %s", c.Name, a.Pod.Node)
	}
	if pods := a.Value.Pods; pods != nil && !pods.Known {
		u.add(scope, cmp.Or(pods.Why, "the agent knows no pod prefixes of its node"), a.Source, "%s: which pods are on %s", c.Name, a.Pod.Node)
	}
	if t := a.Value.Translation; t != nil && t.State == statuspage.FilterUnknown {
		u.add(scope, cmp.Or(t.Error, "not read yet"), a.Source, "%s: whether %s translates addresses of its pods", c.Name, a.Pod.Node)
	}
}

// quiet is the age of an API server's last response after which the state is unknown: API
// servers send bookmarks about once a minute.
const quiet = 150 * time.Second

// contacts adds programs that don't know the current state of a remote, and those of which no
// replica leads.
func (u *unknown) contacts(f *Facts) {
	for w := range f.watches() {
		old := w.last == nil || w.cluster.Clock.Known() && w.cluster.Taken.Add(w.cluster.Clock.Value).Sub(*w.last) > quiet
		if w.err != "" || w.synced && !old {
			continue
		}
		why := "not read since the start"
		if w.synced && w.last != nil {
			why = "the last response of its API server was at " + w.last.UTC().Format(time.RFC3339)
		}
		u.add(w.Scope, why, w.source, "%s: whether %s knows the state of %s", w.Cluster, w.who, w.Remote)
	}
	for c, t := range f.credentialChecks() {
		if t.Unanswered() && t.Error == "" {
			u.add(Scope{Cluster: c.Name, Node: t.Node, Remote: t.Remote}, "no response to a request since "+t.Waiting.UTC().Format(time.RFC3339), t.Source,
				"%s: whether the API server of %s answers %s", c.Name, t.Remote, t.Program)
		}
	}
	for c, m := range f.mirrors() {
		if m.Value.Omitted > 0 {
			u.add(Scope{Cluster: c.Name}, "the report of the mirror doesn't list them", m.Source, "%s: %d services", c.Name, m.Value.Omitted)
		}
	}
	for _, c := range f.Clusters {
		led(u, c, inspect.ServiceMirror, c.Mirrors, func(m *statuspage.Mirror) bool { return m.Leading })
		led(u, c, inspect.NetworkPolicy, c.Policies, func(p *statuspage.Policy) bool { return p.Leading })
		led(u, c, inspect.Relay, c.Relays, func(r *statuspage.Relay) bool { return r.Leading })
	}
}

// led adds a program that is installed, or reports, and of which no replica leads.
func led[R any](u *unknown, c *inspect.Cluster, program string, replicas []inspect.Reported[R], leads func(*R) bool) {
	for i := range replicas {
		if replicas[i].Known() && leads(replicas[i].Value) {
			return
		}
	}
	if w, installed := c.Workload(program); c.Pods.Known() && (installed && w.Wanted > 0 || len(replicas) > 0) {
		u.add(Scope{Cluster: c.Name}, "no replica reports that it leads", c.Kubectl("-n sys-semaphore get lease,pods"), "%s: what %s does", c.Name, program)
	}
}
