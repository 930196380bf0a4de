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

// covers tells whether what is wrong in s can explain what is wrong in o: where both
// speak of a place it is the same one.
func (s Scope) covers(o Scope) bool { return s.meets(o) || s.meets(o.turned()) }

func (s Scope) meets(o Scope) bool {
	same := func(a, b string) bool { return a == "" || b == "" || a == b }
	return same(s.Cluster, o.Cluster) && same(s.Node, o.Node) && same(s.Remote, o.Remote) && same(s.Peer, o.Peer)
}

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
	// After are rules whose findings explain this one's where they cover it.
	After []string
	Find  func(f *Facts) []Finding
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

// mostEvidence and mostOpen bound what is told of one cause, and of what isn't known.
const (
	mostEvidence = 6
	mostOpen     = 50
)

// Diagnose applies the rules to a survey, and to what temporary pods have tried, nil where
// there were none. With pods it counts as unknown that no request of a pod was tried.
func Diagnose(clusters []*survey.Cluster, tried *probe.Tried, pods bool) *Diagnosis {
	f := &Facts{Clusters: clusters, Tried: tried}
	d := &Diagnosis{Causes: []Cause{}, Unknown: []Open{}}
	found := map[string][]Finding{}
	for _, rule := range Rules() {
		for _, finding := range rule.Find(f) {
			explained := slices.ContainsFunc(rule.After, func(id string) bool {
				return slices.ContainsFunc(found[id], func(root Finding) bool { return root.covers(finding.Scope) })
			})
			if explained {
				d.Consequences++
				continue
			}
			found[rule.ID] = append(found[rule.ID], finding)
			d.add(&rule, finding)
		}
	}
	d.Unknown = append(d.Unknown, open(f, found)...)
	if pods && tried == nil {
		d.Unknown = append(d.Unknown, Open{
			What:    "whether pods' own packets get through",
			Why:     "only paths between nodes were looked at: what masquerades or drops packets of pods, as a FORWARD chain or a network policy, isn't seen there",
			Command: "semaphorectl doctor --probe",
		})
	}
	if len(d.Unknown) > mostOpen {
		d.Unknown = append(d.Unknown[:mostOpen], Open{What: fmt.Sprintf("%d things more", len(d.Unknown)-mostOpen), Why: "the list is too long"})
	}
	switch {
	case len(d.Causes) > 0:
		d.Verdict = Wrong
	case len(d.Unknown) > 0:
		d.Verdict = Unknown
	default:
		d.Verdict = Well
	}
	return d
}

// add makes a finding a cause, or more evidence of one between the same clusters.
func (d *Diagnosis) add(rule *Rule, finding Finding) {
	for i := range d.Causes {
		c := &d.Causes[i]
		if c.ID != rule.ID || c.Where.Cluster != finding.Cluster || c.Where.Remote != finding.Remote {
			continue
		}
		if c.Where.Node != finding.Node {
			c.Where.Node = ""
		}
		if c.Where.Peer != finding.Peer {
			c.Where.Peer = ""
		}
		for _, e := range append([]Evidence{{Text: finding.What}}, finding.Evidence...) {
			if len(c.Evidence) >= mostEvidence {
				c.More++
				break
			}
			c.Evidence = append(c.Evidence, e)
		}
		return
	}
	d.Causes = append(d.Causes, Cause{ID: rule.ID, Where: finding.Scope, What: finding.What, Evidence: finding.Evidence, Remedy: rule.Remedy})
}

// open lists what isn't known.
func open(f *Facts, found map[string][]Finding) []Open {
	var all []Open
	add := func(s Scope, what, why, command string) {
		for _, findings := range found {
			if slices.ContainsFunc(findings, func(root Finding) bool { return root.covers(s) && root.Cluster != "" }) {
				return // Something is wrong there anyway, and that is told.
			}
		}
		all = append(all, Open{what, why, command})
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
				add(Scope{Cluster: c.Name}, c.Name+": "+fact.what, fact.err, fact.from)
			}
		}
		unanswered := func(pod survey.Pod, err, from string) {
			if err != "" && !pod.Deleting {
				add(Scope{Cluster: c.Name, Node: cmp.Or(pod.Node, "none")}, fmt.Sprintf("%s: what %s on %s knows", c.Name, pod.Name, pod.Node), err, from)
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
			add(Scope{Cluster: c.Name}, c.Name+": whether anything works there", "it has no nodes", c.Nodes.Source)
		}
	}
	for c, a := range f.agents() {
		if a.Value.Standby == nil && len(a.Value.Pending) > 0 {
			add(Scope{Cluster: c.Name, Node: a.Pod.Node}, fmt.Sprintf("%s: the agent of %s", c.Name, a.Pod.Node), fmt.Sprintf("not done since its start: %v", a.Value.Pending), a.Source)
		}
	}
	for _, p := range f.Pairs() {
		if state := p.state(); state != "up" && state != "down" {
			add(p.Scope, fmt.Sprintf("the path from %s to %s", p.Node, p.Peer), cmp.Or(p.why(), "no sign for or against it yet"), p.source)
		}
	}
	for i := range f.legs() {
		if l := &f.legs()[i]; l.Untried != "" {
			add(legScope(l), fmt.Sprintf("whether a pod on %s reaches one on %s", l.From.Node, l.To.Node), l.Untried, tryAgain(l))
		}
	}
	if f.Tried != nil && len(f.legs()) == 0 {
		add(Scope{}, "whether pods' own packets get through", "there were no pods to try it", "")
	}
	if len(f.Pairs()) == 0 {
		add(Scope{}, "the paths between nodes", "no nodes of two clusters are known: name the others, too", "")
	}
	return all
}
