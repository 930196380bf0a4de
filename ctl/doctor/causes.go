package doctor

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// causes groups findings into causes: one for each rule and pair of clusters. All remotes
// that aren't among the arguments count as one, as a report can have any number of them.
type causes struct {
	*Diagnosis
	asked map[string]bool
	at    map[cause]int
	rules []*Rule // of the causes
	found []int   // number of findings of the causes
}

type cause struct{ rule, cluster, remote string }

func newCauses(d *Diagnosis, clusters []*inspect.Cluster) *causes {
	c := &causes{Diagnosis: d, asked: map[string]bool{"": true}, at: map[cause]int{}}
	for _, asked := range clusters {
		c.asked[asked.Name] = true
	}
	return c
}

// add adds a finding as a new cause, or as further evidence of one.
func (c *causes) add(rule *Rule, finding Finding) {
	scope := finding.Scope
	if _, known := c.at[cause{rule.ID, scope.Remote, scope.Cluster}]; known && rule.Mutual {
		scope = scope.turned()
	}
	which := cause{rule.ID, scope.Cluster, scope.Remote}
	if !c.asked[which.remote] {
		which.remote = anyNode
	}
	remedy := ""
	if rule.Fix != nil {
		remedy = rule.Fix(finding)
	}
	remedy = cmp.Or(remedy, rule.Remedy)
	at, known := c.at[which]
	if !known {
		c.at[which] = len(c.Causes)
		c.Causes = append(c.Causes, Cause{ID: rule.ID, Where: scope, What: finding.What, Evidence: finding.Evidence, Remedy: remedy})
		c.rules, c.found = append(c.rules, rule), append(c.found, 1)
		return
	}
	c.found[at]++
	c.Causes[at].merge(&Cause{Where: scope, What: finding.What, Evidence: finding.Evidence, Remedy: remedy})
}

// maxRemedies bounds the remedies of a cause.
const maxRemedies = 3

// merge adds another cause of the same rule.
func (c *Cause) merge(other *Cause) {
	for _, field := range []struct {
		have  *string
		other string
	}{{&c.Where.Node, other.Where.Node}, {&c.Where.Remote, other.Where.Remote}, {&c.Where.Peer, other.Where.Peer}} {
		if *field.have != field.other {
			*field.have = ""
		}
	}
	if other.Remedy != "" && !strings.Contains(c.Remedy, other.Remedy) && strings.Count(c.Remedy, "; or: ") < maxRemedies-1 {
		c.Remedy += "; or: " + other.Remedy
	}
	for _, e := range append([]Evidence{{Text: other.What}}, other.Evidence...) {
		if len(c.Evidence) >= maxEvidence {
			c.More++
			break
		}
		c.Evidence = append(c.Evidence, e)
	}
	c.More += other.More
}

// finish names what is common to the findings of each cause, and merges causes of one node,
// which may have remotes in several clusters.
func (c *causes) finish() {
	type node struct{ rule, cluster, node string }
	at, merged := map[node]int{}, []Cause{}
	for i := range c.Causes {
		cause, rule := &c.Causes[i], c.rules[i]
		if rule.Sum != nil && c.found[i] > 1 {
			if rule.Mutual && cause.Where.Node == "" && cause.Where.Peer != "" {
				cause.Where = cause.Where.turned()
			}
			if len(cause.Evidence) < maxEvidence { // The first finding becomes evidence, too.
				cause.Evidence = slices.Insert(cause.Evidence, 0, Evidence{Text: cause.What})
			}
			cause.What = fmt.Sprintf("%s, in %d cases", rule.Sum(side(cause.Where.Node, cause.Where.Cluster), side(cause.Where.Peer, cause.Where.Remote)), c.found[i])
		}
		same := node{rule.ID, cause.Where.Cluster, cause.Where.Node}
		first, known := at[same]
		if !rule.Mutual || same.node == "" || !known {
			if !known {
				at[same] = len(merged)
			}
			merged = append(merged, *cause)
			continue
		}
		merged[first].merge(cause)
		merged[first].What = rule.Sum(same.node, "nodes of several clusters")
	}
	c.Causes = merged
}

// side describes one side of a fault between clusters.
func side(node, cluster string) string {
	switch {
	case node != "":
		return node
	case cluster != "":
		return "nodes of " + cluster
	}
	return "nodes of several clusters"
}
