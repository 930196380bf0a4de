package relay

import (
	"maps"
	"slices"
	"strconv"

	"github.com/kube-semaphore/kube-semaphore/internal/report"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// StatusCommand is "semaphore-relay status".
func StatusCommand() report.Command[statuspage.Relay] {
	return report.Command[statuspage.Relay]{Program: "semaphore-relay", Address: ":8081", Show: showReport}
}

// showReport shows clusters and the objects that can't be written.
func showReport(p *report.Page, rep *statuspage.Relay) {
	p.Line("semaphore-relay %s", rep.Version)
	p.Line("cluster %s", rep.Cluster)
	p.Replica(rep.Leading, rep.Leader, "failures", rep.ElectionError)
	for _, cluster := range rep.Unconfigured {
		p.Line("objects of cluster %s, which is not configured, are removed", cluster)
	}
	p.Failures(rep.NotServed)
	p.Watch("objects", rep.Objects.Synced, rep.Objects.LastContact, rep.Objects.Error)
	tokens.Show(p, rep.Credentials, func(remote string) bool {
		return slices.ContainsFunc(rep.Clusters, func(c statuspage.RelayCluster) bool { return c.Name == remote && c.API.Error != "" })
	})
	clusters := p.Table("CLUSTER", "CONTACT", "NODES", "OBJECTS", "WAITING", "FAILING")
	failing := p.Table("FAILING OBJECT", "ERROR")
	for i := range rep.Clusters {
		c := &rep.Clusters[i]
		clusters.Row(c.Name, p.Age(c.API.LastContact), strconv.Itoa(c.Nodes), strconv.Itoa(c.Objects), strconv.Itoa(c.Pending), strconv.Itoa(len(c.Failing)))
		what := "cluster " + c.Name
		p.Watch(what+": nodes", c.API.Synced, c.API.LastContact, c.API.Error)
		if rep.Objects.Synced && c.Incomplete != "" {
			p.Wrong("%s: agents don't know all of its nodes, and remove none: %s", what, c.Incomplete)
		}
		for _, object := range slices.Sorted(maps.Keys(c.Failing)) {
			failing.Row(object, c.Failing[object])
		}
		if len(c.Failing) > 0 {
			p.Wrong("%s: objects can't be written: %s", what, report.Some(slices.Sorted(maps.Keys(c.Failing))))
		}
		for j := range c.Overridden {
			p.Wrong("%s: %s", what, c.Overridden[j].String())
		}
	}
}
