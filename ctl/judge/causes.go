package judge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// causes groups findings into causes: one for each rule and pair of clusters. All remotes
// that aren't among the arguments count as one, as a report can have any number of them.
type causes struct {
	asked map[string]bool
	at    map[cause]int
	all   []*grouped
}

type cause struct {
	reason, cluster, remote string
	explained               bool
}

// grouped is a cause with its reason.
type grouped struct {
	Cause
	*reason
}

func newCauses(clusters []*inspect.Cluster) *causes {
	c := &causes{asked: map[string]bool{"": true}, at: map[cause]int{}}
	for _, asked := range clusters {
		c.asked[asked.Name] = true
	}
	return c
}

// add adds a finding as a new cause, or as further evidence of one. of is the reason that explains
// it, or empty.
func (c *causes) add(r *reason, finding *Finding, of string) {
	scope := finding.Scope
	if _, known := c.at[cause{r.ID, scope.Remote, scope.Cluster, of != ""}]; known && r.mutual {
		scope = scope.turned()
	}
	which := cause{r.ID, scope.Cluster, scope.Remote, of != ""}
	if !c.asked[which.remote] {
		which.remote = anyNode
	}
	at, known := c.at[which]
	if !known {
		c.at[which] = len(c.all)
		c.all = append(c.all, &grouped{Cause{ID: r.ID, Where: scope, What: r.text(finding), Evidence: finding.Evidence, Remedy: r.remedy(finding), Of: of, Count: 1}, r})
		return
	}
	g := c.all[at]
	more := &Cause{Count: 1, Where: scope, Evidence: finding.Evidence, Remedy: r.remedy(finding)}
	if len(g.Evidence) < maxEvidence { // There may be millions.
		more.What = r.text(finding)
	}
	g.merge(more)
}

// Line returns a cause in one line.
func (c *Cause) Line() string {
	line := c.ID + ": " + c.What
	if len(c.Evidence) > 0 && !strings.Contains(c.What, c.Evidence[0].Text) {
		line += ": " + c.Evidence[0].Text
	}
	if c.Count > 1 {
		line += fmt.Sprintf(" (%d times)", c.Count)
	}
	return line
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
	c.More, c.Count = c.More+other.More, c.Count+other.Count
}

// finish returns the causes and what they explain. It names what is common to the findings of each,
// and merges those of one node, which may have remotes in several clusters.
func (c *causes) finish() (roots, following []Cause) {
	type node struct {
		reason, cluster, node string
		explained             bool
	}
	at, merged := map[node]*grouped{}, []*grouped{}
	for _, g := range c.all {
		if g.Many != "" && g.Count > 1 {
			if g.mutual && g.Where.Node == "" && g.Where.Peer != "" {
				g.Where = g.Where.turned()
			}
			if len(g.Evidence) < maxEvidence { // The first finding becomes evidence, too.
				g.Evidence = slices.Insert(g.Evidence, 0, Evidence{Text: g.What})
			}
			g.What = fmt.Sprintf("%s, in %d cases", g.many(side(g.Where.Node, g.Where.Cluster), side(g.Where.Peer, g.Where.Remote)), g.Count)
		}
		same := node{g.Cause.ID, g.Where.Cluster, g.Where.Node, g.Of != ""}
		first := at[same]
		if !g.mutual || same.node == "" || first == nil {
			if first == nil {
				at[same] = g
			}
			merged = append(merged, g)
			continue
		}
		first.merge(&g.Cause)
		first.What = g.many(g.Where.Node, "nodes of several clusters")
	}
	roots = []Cause{}
	for _, g := range merged {
		if g.Of == "" {
			roots = append(roots, g.Cause)
		} else {
			following = append(following, g.Cause)
		}
	}
	return roots, following
}

// many is the text of several findings between two sides.
func (g *grouped) many(here, there string) string {
	return (&Finding{Scope: Scope{Node: here, Peer: there}}).fill(g.Many)
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
