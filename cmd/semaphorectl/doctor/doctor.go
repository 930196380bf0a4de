// Package doctor is the command that says why clusters aren't joined as they should be:
// from what was read of them it reasons to causes, each with its evidence, the command
// that shows it, and the remedy.
//
//	facts ──▶ rules, roots first ──▶ findings ──▶ those that an earlier one explains ──▶ diagnosis
//	          pure, one cause each                go: consequences are counted only
//
// Nothing is well by default: what couldn't be read is unknown, and so is what wasn't
// tried.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/probe"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/survey"
)

// Scope says where something is: in a cluster, at one of its nodes, towards a remote, and
// a node of that. Empty: all of them.
type Scope struct {
	Cluster string `json:"cluster,omitempty"`
	Node    string `json:"node,omitempty"`
	Remote  string `json:"remote,omitempty"`
	Peer    string `json:"peer,omitempty"`
}

// turned is the same seen from the other side.
func (s Scope) turned() Scope { return Scope{s.Remote, s.Peer, s.Cluster, s.Node} }

// Evidence is a fact that speaks for a finding.
type Evidence struct {
	Text    string `json:"text"`
	Command string `json:"command,omitempty"` // that shows it
}

// Finding is what a rule finds.
type Finding struct {
	Scope
	What     string
	Evidence []Evidence
}

// Rule reasons from facts to one cause.
type Rule struct {
	ID string
	// Remedy says what to do.
	Remedy string
	// After are rules whose findings explain this one's where they are at the same place.
	After []string
	// Local says that no remote has a part in what is found of it, neither by its word nor
	// by what it does. So it also explains what is wrong in the cluster by itself.
	Local bool
	Find  func(f *Facts, found func(Finding))
}

// Cause is a reason for what is wrong, with all findings of one rule between the same
// clusters.
type Cause struct {
	ID       string     `json:"id"`
	Where    Scope      `json:"where"`
	What     string     `json:"what"`
	Evidence []Evidence `json:"evidence"`
	// More is how many findings more there are than evidence is given of.
	More   int    `json:"more,omitempty"`
	Remedy string `json:"remedy"`
}

// Open is something of which isn't known whether it is well.
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

// Diagnosis is what the doctor says.
type Diagnosis struct {
	Verdict string  `json:"verdict"`
	Causes  []Cause `json:"causes"`
	// Consequences is how many findings the causes explain.
	Consequences int    `json:"consequences"`
	Unknown      []Open `json:"unknown"`
}

// mostEvidence and mostOpen bound what is told of one cause, and of what isn't known of one
// cluster.
const (
	mostEvidence = 6
	mostOpen     = 50
)

// Diagnose applies the rules to a survey, and to what temporary pods have tried, nil where
// there were none. With pods it counts as unknown that no request of a pod was tried. It
// ends with the context.
func Diagnose(ctx context.Context, clusters []*survey.Cluster, tried *probe.Tried, pods bool) (*Diagnosis, error) {
	f := &Facts{Clusters: clusters, Tried: tried, Done: ctx.Done()}
	d := &Diagnosis{Causes: []Cause{}, Unknown: []Open{}}
	found, anything := map[string]places{}, places{}
	told := newCauses(d, clusters)
	for _, rule := range Rules() {
		var after []places
		for _, id := range rule.After {
			if len(found[id]) > 0 {
				after = append(after, found[id])
			}
		}
		found[rule.ID] = places{}
		rule.Find(f, func(finding Finding) {
			if slices.ContainsFunc(after, func(p places) bool { return p.explain(finding.Scope) }) {
				d.Consequences++
				return
			}
			found[rule.ID].add(finding.Scope, rule.Local)
			anything.add(finding.Scope, rule.Local)
			told.add(&rule, finding)
		})
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	d.Unknown = append(d.Unknown, open(f, anything)...)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if pods && tried == nil {
		d.Unknown = append(d.Unknown, Open{
			What:    "whether pods' own packets get through",
			Why:     "only paths between nodes were looked at: what masquerades or drops packets of pods, as a FORWARD chain or a network policy, isn't seen there",
			Command: "semaphorectl doctor --probe",
		})
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

// causes makes causes of findings: one of each rule between the same clusters. Remotes that
// weren't asked for, of which a report can have any number, are one there.
type causes struct {
	*Diagnosis
	asked map[string]bool
	at    map[cause]int
}

type cause struct{ rule, cluster, remote string }

func newCauses(d *Diagnosis, clusters []*survey.Cluster) *causes {
	c := &causes{d, map[string]bool{"": true}, map[cause]int{}}
	for _, asked := range clusters {
		c.asked[asked.Name] = true
	}
	return c
}

// add makes a finding a cause, or more evidence of one.
func (c *causes) add(rule *Rule, finding Finding) {
	which := cause{rule.ID, finding.Cluster, finding.Remote}
	if !c.asked[which.remote] {
		which.remote = whichever
	}
	at, known := c.at[which]
	if !known {
		c.at[which] = len(c.Causes)
		c.Causes = append(c.Causes, Cause{ID: rule.ID, Where: finding.Scope, What: finding.What, Evidence: finding.Evidence, Remedy: rule.Remedy})
		return
	}
	told := &c.Causes[at]
	for _, place := range []struct {
		told    *string
		another string
	}{{&told.Where.Node, finding.Node}, {&told.Where.Remote, finding.Remote}, {&told.Where.Peer, finding.Peer}} {
		if *place.told != place.another {
			*place.told = ""
		}
	}
	for _, e := range append([]Evidence{{Text: finding.What}}, finding.Evidence...) {
		if len(told.Evidence) >= mostEvidence {
			told.More++
			break
		}
		told.Evidence = append(told.Evidence, e)
	}
}

// open lists what isn't known, but where something is wrong anyway, and that is told.
func open(f *Facts, wrong places) []Open {
	var all []Open
	of := map[string]int{} // by the cluster
	add := func(s Scope, say func() Open) {
		if wrong.explain(s) {
			return
		}
		if of[s.Cluster]++; of[s.Cluster] <= mostOpen {
			all = append(all, say())
		}
	}
	for _, c := range f.Clusters {
		if !c.Kubernetes.Known() {
			// Always told: everything that the API server would say is missing.
			all = append(all, Open{c.Name + ": everything that its API server knows", c.Kubernetes.Err, c.Kubernetes.Source})
			continue
		}
		facts := []struct {
			what string
			err  string
			from string
		}{
			{"its nodes", c.Nodes.Err, c.Nodes.Source}, {"its pods of ours", c.Pods.Err, c.Pods.Source},
			{"what is installed", c.Workloads.Err, c.Workloads.Source}, {"its clock", c.Clock.Err, c.Clock.Source},
		}
		if _, installed := c.Workload(survey.ServiceMirror); installed {
			facts = append(facts, struct{ what, err, from string }{"CoreDNS's configuration", c.Corefile.Err, c.Corefile.Source})
		}
		for _, fact := range facts {
			if fact.err != "" {
				add(Scope{Cluster: c.Name}, func() Open { return Open{c.Name + ": " + fact.what, fact.err, fact.from} })
			}
		}
		unanswered := func(pod survey.Pod, err, from string) {
			if err != "" && !pod.Deleting {
				add(Scope{Cluster: c.Name, Node: cmp.Or(pod.Node, "none")}, func() Open {
					return Open{fmt.Sprintf("%s: what %s on %s knows", c.Name, pod.Name, pod.Node), err, from}
				})
			}
		}
		for i := range c.Agents {
			unanswered(c.Agents[i].Pod, c.Agents[i].Err, c.Agents[i].Source)
		}
		for i := range c.Mirrors {
			unanswered(c.Mirrors[i].Pod, c.Mirrors[i].Err, c.Mirrors[i].Source)
		}
		for i := range c.Policies {
			unanswered(c.Policies[i].Pod, c.Policies[i].Err, c.Policies[i].Source)
		}
		if c.Nodes.Known() && len(c.Nodes.Value) == 0 {
			add(Scope{Cluster: c.Name}, func() Open { return Open{c.Name + ": whether anything works there", "it has no nodes", c.Nodes.Source} })
		}
	}
	for c, a := range f.agents() {
		if a.Value.Standby == nil && len(a.Value.Pending) > 0 {
			add(Scope{Cluster: c.Name, Node: a.Pod.Node}, func() Open {
				return Open{fmt.Sprintf("%s: the agent of %s", c.Name, a.Pod.Node), fmt.Sprintf("not done since its start: %v", a.Value.Pending), a.Source}
			})
		}
	}
	for p := range f.Pairs() {
		if state := p.state(); state != "up" && state != "down" {
			add(p.Scope, func() Open {
				return Open{fmt.Sprintf("the path from %s to %s", p.Node, p.Peer), cmp.Or(p.why(), "no sign for or against it yet"), p.source}
			})
		}
	}
	for i := range f.legs() {
		if l := &f.legs()[i]; l.Untried != "" {
			add(legScope(l), func() Open {
				return Open{fmt.Sprintf("whether a pod on %s reaches one on %s", l.From.Node, l.To.Node), l.Untried, tryAgain(l)}
			})
		}
	}
	if f.Tried != nil && len(f.legs()) == 0 {
		all = append(all, Open{"whether pods' own packets get through", "there were no pods to try it", ""})
	}
	if len(f.pairs) == 0 {
		all = append(all, Open{"the paths between nodes", "no nodes of two clusters are known: name the others, too", ""})
	}
	for _, c := range f.Clusters {
		if more := of[c.Name] - mostOpen; more > 0 {
			all = append(all, Open{fmt.Sprintf("%s: %d things more", c.Name, more), "the list is too long", ""})
		}
	}
	return all
}
