// Package doctor implements "semaphorectl doctor". It derives causes from the facts of a
// survey, each with its evidence, the command that shows it, and the remedy.
//
//	facts ──▶ rules, roots first ──▶ findings ──▶ drop those that an earlier  ──▶ diagnosis
//	          pure, one cause each                one explains, count them
//
// The default is unknown: facts that couldn't be read, and connections that weren't tested.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// Scope is where a fault is: in a cluster, at one of its nodes, towards a remote, and one of
// the remote's nodes. Empty: all of them.
type Scope struct {
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	Remote  string `json:"remote,omitempty"`
	Peer    string `json:"peer,omitempty"`
}

// turned is the scope seen from the other side.
func (s Scope) turned() Scope { return Scope{s.Remote, s.Peer, s.Cluster, s.Node} }

// Evidence is a fact that supports a finding.
type Evidence struct {
	Text    string `json:"text"`
	Command string `json:"command,omitempty"` // shows the fact
}

// Finding is a fault that a rule has found.
type Finding struct {
	Scope
	What     string
	Evidence []Evidence
}

// Rule derives one cause from facts.
type Rule struct {
	ID string
	// Remedy says what to do, unless Fix does for a finding; nil: it never does.
	Remedy string
	Fix    func(Finding) string
	// After are earlier rules, whose findings explain those of this one in the same scope.
	After []string
	// Local is set where no remote can cause these findings, neither by its objects nor by
	// its behaviour. They also explain faults of the cluster itself.
	Local bool
	// Whole is set where findings are about whole clusters, and also explain faults of other
	// clusters towards them.
	Whole bool
	// Alone is set where findings explain nothing: neither other findings nor what is unknown.
	Alone bool
	// Mutual is set where a finding between two nodes is the same fault seen from either.
	Mutual bool
	// Sum formats several findings as one fault, of what is common to them.
	Sum  func(here, there string) string
	Find func(f *Facts, found func(Finding))
}

// Cause is the cause of faults: all findings of one rule between the same clusters, or at one
// node.
type Cause struct {
	ID       string     `json:"id"`
	Where    Scope      `json:"where"`
	What     string     `json:"what"`
	Evidence []Evidence `json:"evidence"`
	// More counts the findings whose evidence is omitted.
	More   int    `json:"more,omitempty"`
	Remedy string `json:"remedy"`
}

// Open is something that couldn't be checked.
type Open struct {
	What    string `json:"what"`
	Why     string `json:"why"`
	Command string `json:"command,omitempty"`
}

// Verdicts.
const (
	Well    = "well"
	Wrong   = "wrong"
	Unknown = "unknown"
)

// Diagnosis is the result of the command.
type Diagnosis struct {
	Verdict string  `json:"verdict"`
	Causes  []Cause `json:"causes"`
	// Consequences counts the findings that the causes explain.
	Consequences int    `json:"consequences"`
	Unknown      []Open `json:"unknown"`
	// Asked is what was asked and answered without a fault, NotAsked what wasn't asked.
	Asked    []string `json:"asked"`
	NotAsked []Open   `json:"notAsked"`
}

// maxEvidence bounds the evidence of a cause, maxOpen the unknowns of a cluster.
const (
	maxEvidence = 6
	maxOpen     = 50
)

// Diagnose applies the rules to a survey, and to the results of temporary pods; nil: none ran.
// With pods, and without such results, connections of pods are reported as unknown.
func Diagnose(ctx context.Context, clusters []*inspect.Cluster, results *probe.Results, pods bool) (*Diagnosis, error) {
	f := &Facts{Clusters: clusters, Results: results, Done: ctx.Done()}
	d := &Diagnosis{Causes: []Cause{}, Unknown: []Open{}, Asked: []string{}, NotAsked: []Open{}}
	found, anything := map[string]scopes{}, scopes{}
	causes := newCauses(d, clusters)
	f.explained = func(s Scope, rules ...string) bool {
		if !slices.ContainsFunc(rules, func(id string) bool { return found[id].explain(s) }) {
			return false
		}
		d.Consequences++
		return true
	}
	for _, rule := range Rules() {
		var after []string
		for _, id := range rule.After {
			if len(found[id]) > 0 {
				after = append(after, id)
			}
		}
		found[rule.ID] = scopes{}
		rule.Find(f, func(finding Finding) {
			// A consequence has consequences of its own.
			consequence := f.explained(finding.Scope, after...)
			if !rule.Alone {
				found[rule.ID].add(finding.Scope, rule.Local, rule.Whole)
				anything.add(finding.Scope, rule.Local, rule.Whole)
			}
			if !consequence {
				causes.add(&rule, finding)
			}
		})
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	causes.finish()
	d.Unknown = append(d.Unknown, open(f, anything)...)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	d.Asked, d.NotAsked = scope(f)
	if results == nil {
		untried := Open{
			What: "whether pods' own packets get through, and services answer",
			Why:  "only paths between nodes were checked: masquerading, forwarding, network policies, kube-proxy and DNS affect pods only", Command: "semaphorectl doctor, without --no-probe",
		}
		if pods {
			d.Unknown = append(d.Unknown, untried)
		} else {
			d.NotAsked = append(d.NotAsked, untried)
		}
	}
	switch {
	case len(d.Causes) > 0:
		d.Verdict = Wrong
	case len(d.Unknown) > 0:
		d.Verdict = Unknown
	default:
		d.Verdict = Well
	}
	return d, nil
}

// open lists what couldn't be checked, except in scopes with a reported fault.
func open(f *Facts, wrong scopes) []Open {
	var all []Open
	of := map[string]int{} // by the cluster
	add := func(s Scope, say func() Open) {
		if wrong.explain(s) {
			return
		}
		if of[s.Cluster]++; of[s.Cluster] <= maxOpen {
			all = append(all, say())
		}
	}
	for _, c := range f.Clusters {
		if !c.Kubernetes.Known() {
			// Reported in any case: no fact of this cluster is known.
			all = append(all, Open{c.Name + ": everything, as its API server can't be read", c.Kubernetes.Err, c.Kubernetes.Source})
			continue
		}
		facts := []struct {
			what string
			err  string
			from string
		}{
			{"its nodes", c.Nodes.Err, c.Nodes.Source}, {"its pods of Kube-Semaphore", c.Pods.Err, c.Pods.Source},
			{"its DaemonSets and Deployments", c.Workloads.Err, c.Workloads.Source}, {"its clock", c.Clock.Err, c.Clock.Source},
			{"the services that other clusters mirror", c.Exports.Err, c.Exports.Source}, {"its global services", c.Shared.Err, c.Shared.Source},
			{"its mirrors", c.Imports.Err, c.Imports.Source},
		}
		if _, installed := c.Workload(inspect.Relay); installed {
			facts = append(facts, struct{ what, err, from string }{"what semaphore-relay has stored", c.Stored.Err, c.Stored.Source})
		}
		if _, installed := c.Workload(inspect.ServiceMirror); installed {
			facts = append(facts, struct{ what, err, from string }{"CoreDNS's configuration", c.DNS.Err, c.DNS.Source})
		}
		for _, fact := range facts {
			if fact.err != "" {
				add(Scope{Cluster: c.Name}, func() Open { return Open{c.Name + ": " + fact.what, fact.err, fact.from} })
			}
		}
		for _, r := range c.Reports() {
			if r.Err != "" && !r.Pod.Deleting {
				add(Scope{Cluster: c.Name, Node: cmp.Or(r.Pod.Node, "none")}, func() Open {
					return Open{fmt.Sprintf("%s: the report of %s on %s", c.Name, r.Pod.Name, r.Pod.Node), r.Err, r.Source}
				})
			}
		}
		if c.Nodes.Known() && len(c.Nodes.Value) == 0 {
			add(Scope{Cluster: c.Name}, func() Open { return Open{c.Name + ": whether anything works", "it has no nodes", c.Nodes.Source} })
		}
	}
	for c, a := range f.agents() {
		why := ""
		if pending := a.Value.Of(statuspage.Pending); a.Value.Standby == nil && len(pending) > 0 {
			why = "still pending since its start:"
			for _, p := range pending {
				why += " " + p.Object
			}
		}
		if a.Value.Conditions == nil {
			why = "it is of another release, and doesn't report whether it fails"
		}
		if why != "" {
			add(Scope{Cluster: c.Name, Node: a.Pod.Node}, func() Open {
				return Open{fmt.Sprintf("%s: the agent of %s", c.Name, a.Pod.Node), why, a.Source}
			})
		}
	}
	for c, a := range f.agents() {
		if pods := a.Value.Pods; a.Value.Standby == nil && pods != nil && !pods.Known {
			add(Scope{Cluster: c.Name, Node: a.Pod.Node}, func() Open {
				return Open{fmt.Sprintf("%s: which pods are on %s", c.Name, a.Pod.Node), cmp.Or(pods.Why, "the agent knows no pod prefixes of its node"), a.Source}
			})
		}
	}
	for c, a := range f.agents() {
		if t := a.Value.Translation; a.Value.Standby == nil && t != nil && t.State == statuspage.FilterUnknown {
			add(Scope{Cluster: c.Name, Node: a.Pod.Node}, func() Open {
				return Open{fmt.Sprintf("%s: whether %s translates addresses of its pods", c.Name, a.Pod.Node), cmp.Or(t.Error, "not read yet"), a.Source}
			})
		}
	}
	for c := range f.named() {
		if dns := c.DNS.Value; dns.Unavailable > 0 {
			add(Scope{Cluster: c.Name}, func() Open {
				return Open{
					c.Name + ": whether CoreDNS goes on answering", "it has " + cli.Count(int(dns.Unavailable), "unavailable pod"),
					c.Kubectl("-n %s rollout status %s/%s", dns.Namespace, strings.ToLower(dns.Kind), dns.Name),
				}
			})
		}
	}
	openNames(f, add)
	contacts(f, add)
	for p := range f.Pairs() {
		if !p.from.Kubernetes.Known() {
			continue // Everything is unknown, as reported above.
		}
		if state := p.state(); state != "up" && state != "down" {
			add(p.Scope, func() Open {
				return Open{fmt.Sprintf("the path from %s to %s", p.Node, p.Peer), cmp.Or(p.why(), "no result of probes yet"), p.source}
			})
		}
	}
	for i := range f.podConnections() {
		if l := &f.podConnections()[i]; l.Skipped != "" && !f.refused(l.From) && !f.refused(l.To) {
			add(legScope(l), func() Open {
				return Open{fmt.Sprintf("whether a pod on %s reaches a pod on %s", l.From.Node, l.To.Node), l.Skipped, tryAgain(l)}
			})
		}
	}
	openAsked(f, add)
	if f.Results != nil && len(f.podConnections()) == 0 {
		all = append(all, Open{"whether pods' own packets get through", "no temporary pod ran", ""})
	}
	if len(f.pairs) == 0 {
		all = append(all, Open{"the paths between nodes", "nodes of fewer than two clusters are known: pass the other clusters as arguments, too", ""})
	}
	for _, c := range f.Clusters {
		if more := of[c.Name] - maxOpen; more > 0 {
			all = append(all, Open{fmt.Sprintf("%s: %d more", c.Name, more), "the list is too long", ""})
		}
	}
	return all
}

// quiet is the age of an API server's last response after which the state is unknown: API
// servers send bookmarks about once a minute.
const quiet = 150 * time.Second

// contacts lists programs that don't know the current state of a remote, and those of which
// no replica leads.
func contacts(f *Facts, add func(Scope, func() Open)) {
	old := func(c *inspect.Cluster, at *time.Time) bool {
		return at == nil || c.Clock.Known() && c.Taken.Add(c.Clock.Value).Sub(*at) > quiet
	}
	say := func(s Scope, program, source string, synced bool, last *time.Time) {
		add(s, func() Open {
			why := "not read since the start"
			if synced && last != nil {
				why = "the last response of its API server was at " + last.UTC().Format(time.RFC3339)
			}
			return Open{fmt.Sprintf("%s: whether %s knows the state of %s", s.Cluster, program, s.Remote), why, source}
		})
	}
	for v := range f.views() {
		if api := &v.remote.API; api.Error == "" && v.remote.Refused == "" && (!api.Synced || old(v.cluster, api.LastContact)) {
			say(v.Scope, "the agent of "+v.Node, v.source, api.Synced, api.LastContact)
		}
	}
	for t := range f.credentialChecks() {
		if t.Waiting != nil && t.Error == "" {
			add(Scope{Cluster: t.Cluster, Node: t.Node, Remote: t.Remote}, func() Open {
				return Open{fmt.Sprintf("%s: whether the API server of %s answers %s", t.Cluster, t.Remote, t.program), "no response to a request since " + t.Waiting.UTC().Format(time.RFC3339), t.source}
			})
		}
	}
	for c, m := range f.mirrors() {
		for i := range m.Value.Clusters {
			for _, w := range m.Value.Clusters[i].Watches {
				if w.Error == "" && (!w.Synced || old(c, w.LastContact)) {
					say(Scope{Cluster: c.Name, Remote: m.Value.Clusters[i].Name}, inspect.ServiceMirror, m.Source, w.Synced, w.LastContact)
				}
			}
		}
		if m.Value.Omitted > 0 {
			add(Scope{Cluster: c.Name}, func() Open {
				return Open{fmt.Sprintf("%s: %d services", c.Name, m.Value.Omitted), "the report of the mirror doesn't list them", m.Source}
			})
		}
	}
	for c, p := range f.policies() {
		for i := range p.Value.Remotes {
			if r := &p.Value.Remotes[i]; r.API.Error == "" && (!r.API.Synced || old(c, r.API.LastContact)) {
				say(Scope{Cluster: c.Name, Remote: r.Name}, inspect.NetworkPolicy, p.Source, r.API.Synced, r.API.LastContact)
			}
		}
	}
	for c, r := range f.relays() {
		for i := range r.Value.Clusters {
			if of := &r.Value.Clusters[i]; of.API.Error == "" && (!of.API.Synced || old(c, of.API.LastContact)) {
				say(Scope{Cluster: c.Name, Remote: of.Name}, inspect.Relay, r.Source, of.API.Synced, of.API.LastContact)
			}
		}
	}
	for _, c := range f.Clusters {
		leads := map[string]bool{}
		for i := range c.Mirrors {
			leads[inspect.ServiceMirror] = leads[inspect.ServiceMirror] || c.Mirrors[i].Known() && c.Mirrors[i].Value.Leading
		}
		for i := range c.Policies {
			leads[inspect.NetworkPolicy] = leads[inspect.NetworkPolicy] || c.Policies[i].Known() && c.Policies[i].Value.Leading
		}
		for i := range c.Relays {
			leads[inspect.Relay] = leads[inspect.Relay] || c.Relays[i].Known() && c.Relays[i].Value.Leading
		}
		for _, program := range []string{inspect.ServiceMirror, inspect.NetworkPolicy, inspect.Relay} {
			if w, installed := c.Workload(program); installed && w.Wanted > 0 && !leads[program] && c.Pods.Known() {
				add(Scope{Cluster: c.Name}, func() Open {
					return Open{c.Name + ": what " + program + " does", "no replica reports that it leads", c.Kubectl("-n sys-semaphore get lease,pods")}
				})
			}
		}
	}
	for c, a := range f.agents() {
		if a.Value.Standby != nil && f.site(c).acting[a.Pod.Node] == a.Value {
			add(Scope{Cluster: c.Name, Node: a.Pod.Node}, func() Open {
				return Open{fmt.Sprintf("%s: what the agent of %s does", c.Name, a.Pod.Node), "it stands by, and " + cmp.Or(a.Value.Standby.Holder, "an unknown process") + " is active", a.Source}
			})
		}
	}
}
