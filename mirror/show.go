package mirror

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/report"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/tokens"
)

// StatusCommand is "semaphore-service-mirror status".
func StatusCommand() report.Command[statuspage.Mirror] {
	return report.Command[statuspage.Mirror]{Program: "semaphore-service-mirror", Address: ":8081", Show: showReport}
}

// showReport shows clusters and the services with problems.
func showReport(p *report.Page, rep *statuspage.Mirror) {
	p.Line("semaphore-service-mirror %s", rep.Version)
	p.Line("cluster %s", rep.Cluster)
	election := rep.Election
	if election == nil {
		election = new(statuspage.Election)
	}
	p.Replica(rep.Leading, election.Leader, "failures", election.Error)
	p.Failing("not ready", rep.NotReady)
	p.Failures(rep.NotServed)

	tokens.Show(p, rep.Credentials, func(remote string) bool {
		return slices.ContainsFunc(rep.Clusters, func(c statuspage.MirrorCluster) bool {
			return c.Name == remote && slices.ContainsFunc(c.Watches, func(w statuspage.Watch) bool { return w.Error != "" })
		})
	})
	clusters := p.Table("CLUSTER", "PREFIX", "CONTACT", "SYNCED", "SERVICES", "ENDPOINTS", "REFUSED")
	for i := range rep.Clusters {
		showCluster(p, clusters, &rep.Clusters[i])
	}
	showPaths(p, rep)
	for _, f := range rep.Former {
		when := "now"
		if f.RemovedAt != nil {
			when = "in " + f.RemovedAt.Sub(p.Now).Round(time.Second).String()
		}
		p.Wrong("cluster %s is no longer configured: its objects (Services: %d, EndpointSlices: %d) are removed %s", f.Name, f.Services, f.Slices, when)
	}
	for _, name := range rep.Departed {
		p.Wrong("cluster %s is ignored: it is in SEMAPHORE_DEPARTED_REMOTES as well as in SEMAPHORE_REMOTES", name)
	}
	services := p.Table("SERVICE", "ORIGIN", "WHAT", "DETAIL")
	var wrong []string
	for i := range rep.Services {
		s := &rep.Services[i]
		if showProblems(services, s, p.Now) {
			wrong = append(wrong, s.Name)
		}
	}
	if len(wrong) > 0 {
		p.Wrong("services not in order: %s", report.Some(wrong))
	}
	rejected := p.Table("NOT COPIED", "REASON")
	var origins []string
	for _, r := range rep.Rejected {
		rejected.Row(r.Origin, r.Reason)
		origins = append(origins, r.Origin)
	}
	if len(origins) > 0 {
		p.Wrong("not copied: %s", report.Some(origins))
	}
	if rep.Omitted > 0 {
		p.Line("")
		p.Line("%d more services are not listed", rep.Omitted)
	}
}

// showPaths shows the nodes whose endpoints are withdrawn, and faults of the reports of
// paths.
func showPaths(p *report.Page, rep *statuspage.Mirror) {
	paths := &rep.Paths
	withdrawn, nodes := p.Table("WITHDRAWN", "NODE", "SINCE", "REPORTED BY", "SERVICES"), map[string][]string{}
	for i := range paths.Withdrawn {
		n := &paths.Withdrawn[i]
		withdrawn.Row(n.Cluster, n.Node, p.Age(&n.Since), fmt.Sprintf("%d of %d nodes", n.ReportedBy, paths.ReadyNodes), strconv.Itoa(n.Services))
		nodes[n.Cluster] = append(nodes[n.Cluster], n.Node)
	}
	for _, cluster := range slices.Sorted(maps.Keys(nodes)) {
		p.Wrong("cluster %s: paths are down, endpoints withdrawn, to %s", cluster, report.Some(nodes[cluster]))
	}
	for _, name := range slices.Sorted(maps.Keys(paths.Faults)) {
		p.Wrong("report of paths %s: %s", name, paths.Faults[name])
	}
	p.Failing("reports of paths can't be read", paths.Error)
	for i := range rep.Clusters {
		if c := &rep.Clusters[i]; c.Drained {
			p.Line("cluster %s is drained", c.Name)
			showNeeded(p, c.Name, rep.Services)
		}
	}
}

// showNeeded shows which services still use a drained cluster.
func showNeeded(p *report.Page, cluster string, services []statuspage.Service) {
	var still []string
	for i := range services {
		if needed := services[i].Needed[cluster]; len(needed) > 0 {
			still = append(still, services[i].Name+" ("+strings.Join(needed, ", ")+")")
		}
	}
	if len(still) > 0 {
		p.Line("it is still used where no other cluster has a ready endpoint: %s", report.Some(still))
	}
}

// showCluster shows a cluster by the oldest contact of its watches.
func showCluster(p *report.Page, t *report.Table, c *statuspage.MirrorCluster) {
	last, synced := &p.Now, 0
	for i := range c.Watches {
		w := &c.Watches[i]
		if last != nil && (w.LastContact == nil || w.LastContact.Before(*last)) {
			last = w.LastContact
		}
		if w.Synced {
			synced++
		}
		what := fmt.Sprintf("cluster %s: %s", c.Name, w.Kind)
		p.Watch(what, w.Synced, w.LastContact, w.Error)
		if w.Stale {
			p.Wrong("%s: no contact for longer than is allowed", what)
		}
	}
	if c.Bounds != "" {
		p.Wrong("cluster %s: %s", c.Name, c.Bounds)
	}
	if c.Waiting > 0 {
		p.Line("cluster %s: %d writes wait, as more than 1 MiB a second is to be written for it", c.Name, c.Waiting)
	}
	if c.PodSubnetsMap != "" {
		p.Line("cluster %s: its pods are known by other addresses: %s", c.Name, c.PodSubnetsMap)
	}
	t.Row(c.Name, c.Prefix, p.Age(last), fmt.Sprintf("%d of %d", synced, len(c.Watches)),
		strconv.Itoa(c.Services), strconv.Itoa(c.Endpoints), strconv.Itoa(c.Refused))
}

// showProblems adds a row for each problem of a service, and reports whether there are some.
func showProblems(t *report.Table, s *statuspage.Service, now time.Time) (found bool) {
	add := func(what, detail string) {
		if detail != "" {
			found = true
			t.Row(s.Name, s.Origin, what, detail)
		}
	}
	add("failing", s.Error)
	held := s.Held
	if s.RemovedAt != nil {
		held += "; removed in " + s.RemovedAt.Sub(now).Round(time.Second).String()
	}
	add("held", held)
	for _, c := range s.Conflicts {
		add("conflict", c.Cluster+": "+c.What)
	}
	for _, cluster := range slices.Sorted(maps.Keys(s.Refused)) {
		add("endpoints refused", cluster+": "+s.Refused[cluster])
	}
	for _, cluster := range slices.Sorted(maps.Keys(s.Withdrawn)) {
		add("endpoints withdrawn", fmt.Sprintf("%s: %d, to whose nodes paths are down", cluster, s.Withdrawn[cluster]))
	}
	for i := range s.Overridden {
		add("overridden", s.Overridden[i].String())
	}
	add("foreign slices", strings.Join(s.Foreign, ", "))
	return found
}
