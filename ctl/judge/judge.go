// Package judge turns surveys of clusters, and results of test pods, into findings. status and doctor
// are views of them.
//
//	surveys ──▶ rules, roots first ──▶ findings ──▶ which an earlier one explains ──▶ diagnosis
//	            pure, one reason each               are its consequences
//
// reasons.yaml has, for each reason, what is said of it, the remedy, and which reasons explain it.
// The default is unknown: what couldn't be read, and connections that weren't tested.
package judge

import (
	"cmp"
	"context"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
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
	Evidence []Evidence
	// Case is one of the reason's cases; another one, or none, means the reason itself.
	Case string
	// With are words of the text, and what they are replaced by: "{device}", "wireguard.gcp".
	With []string
}

// says is one fact as evidence.
func says(text, command string) []Evidence { return []Evidence{{text, command}} }

// Cause is all findings of one reason between the same clusters, or at one node.
type Cause struct {
	ID       string     `json:"id"`
	Where    Scope      `json:"where"`
	What     string     `json:"what"`
	Evidence []Evidence `json:"evidence"`
	// Count is the number of findings, More that of those whose evidence is omitted.
	Count  int    `json:"count"`
	More   int    `json:"more,omitempty"`
	Remedy string `json:"remedy"`
	// Of is the reason that explains them; empty: none does.
	Of string `json:"consequenceOf,omitempty"`
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

// Diagnosis is a judgement.
type Diagnosis struct {
	Verdict string  `json:"verdict"`
	Causes  []Cause `json:"causes"`
	// Following are what the causes explain, Consequences the number of these findings.
	Following    []Cause `json:"-"`
	Consequences int     `json:"consequences"`
	Unknown      []Open  `json:"unknown"`
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
	d := &Diagnosis{Unknown: []Open{}}
	inspect.BoundPaths(clusters)
	all, err := reasons()
	if err != nil {
		return nil, err
	}
	rules, found, anything := rules(), map[string]scopes{}, scopes{}
	causes := newCauses(clusters)
	for _, r := range all {
		found[r.ID] = scopes{}
		made := func(by []string) []string {
			return slices.DeleteFunc(slices.Clone(by), func(id string) bool { return len(found[id]) == 0 })
		}
		explains := func(s Scope, by []string) string {
			for _, id := range by {
				if found[id].explain(s) {
					return id
				}
			}
			return ""
		}
		after, either, ofCase := made(slices.Concat(r.ExplainedBy, r.EitherSide)), made(r.EitherSide), map[string][]string{}
		for name, c := range r.Cases {
			ofCase[name] = made(c.ExplainedBy)
		}
		rules[r.ID](f, func(finding Finding) {
			of := cmp.Or(explains(finding.Scope, after), explains(finding.turned(), either), explains(finding.Scope, ofCase[finding.Case]))
			if of != "" {
				d.Consequences++
			}
			if !r.alone { // A consequence has consequences of its own.
				found[r.ID].add(finding.Scope, r.local, r.whole)
				anything.add(finding.Scope, r.local, r.whole)
			}
			causes.add(r, &finding, of)
		})
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	d.Causes, d.Following = causes.finish()
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

// Untested adds the error of testing, or of removing what was created for it.
func (d *Diagnosis) Untested(err error) {
	d.Unknown = append(d.Unknown, Open{"temporary pods and Services", err.Error(), ""})
	if d.Verdict == Well {
		d.Verdict = Unknown
	}
}
