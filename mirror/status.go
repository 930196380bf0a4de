package mirror

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
	"github.com/kube-semaphore/kube-semaphore/mirror/published"
)

// maxListed is the maximum number of entries of each list in a Status.
const maxListed = 500

// Status returns the controller's status.
func (c *Controller) Status() statuspage.Mirror {
	t := c.totals()
	s := statuspage.Mirror{Leading: t.leading, Clusters: c.clusterStatus(t), Services: c.services(), Rejected: c.rejected()}
	// Services with problems are first, and stay when the list is truncated.
	s.Services, s.Omitted = cut(s.Services, s.Omitted)
	s.Rejected, s.Omitted = cut(s.Rejected, s.Omitted)
	c.mu.Lock()
	s.Paths, s.Former, s.Departed = c.pathStatus(), c.state.former(), c.departed
	c.mu.Unlock()
	s.Paths.Withdrawn, s.Omitted = cut(s.Paths.Withdrawn, s.Omitted)
	s.Former, s.Omitted = cut(s.Former, s.Omitted)
	if s.MultiCluster = c.multiCluster(); s.MultiCluster != nil {
		s.MultiCluster.Imports, s.Omitted = cut(s.MultiCluster.Imports, s.Omitted)
	}
	return s
}

// former returns the clusters that are no longer configured, and of which objects are left. Callers
// hold mu.
func (s *state) former() []statuspage.FormerCluster {
	left := map[string]*statuspage.FormerCluster{}
	of := func(cluster string) *statuspage.FormerCluster {
		if left[cluster] == nil {
			left[cluster] = &statuspage.FormerCluster{Name: cluster}
		}
		return left[cluster]
	}
	for _, o := range s.local.home.services.All() {
		if o.ours && !o.global {
			of(o.id.Cluster).Services++
		}
	}
	for _, o := range s.local.home.slices.All() {
		if o.ours {
			of(o.cluster).Slices++
		}
	}
	var all []statuspage.FormerCluster
	for _, name := range slices.Sorted(maps.Keys(left)) {
		if name == "" || s.clusters[name] != nil {
			continue
		}
		if at := s.removal(name); !at.IsZero() {
			left[name].RemovedAt = &at
		}
		all = append(all, *left[name])
	}
	return all
}

// survey is the status of all services, so that requests for the status neither wait for nor
// delay a pass.
type survey struct {
	services map[string]*surveyed // that exist, or have problems
	blocked  map[string]error     // by foreign objects
}

// surveyed is one service. It is immutable.
type surveyed struct {
	status statuspage.Service // without errors
	want   *Service           // without slices
}

func newSurvey() *survey {
	return &survey{services: map[string]*surveyed{}, blocked: map[string]error{}}
}

// note updates the status of a service.
func (y *survey) note(have *Observed, w *Service) {
	e := statuspage.Service{Name: w.Name, Clusters: w.Clusters, Conflicts: w.Conflicts, Held: w.Hold, Foreign: have.foreign(w), Drained: w.Drained, Needed: w.Needed}
	if !w.Absent {
		e.Origin = w.Origin.String()
	}
	if !w.Until.IsZero() {
		e.RemovedAt = &w.Until
	}
	if e.Held == "" && len(w.Former) > 0 {
		e.Held = "part of " + strings.Join(w.Former, ", ") + ", no longer configured, whose endpoints are used only while no other cluster has a ready one"
	}
	if o := have.Service; e.Held == "" && o != nil && o.ours && o.going {
		e.Held = "being deleted, and waiting for a finalizer"
	}
	for cluster, tally := range w.Tallies {
		if tally.Withdrawn > 0 {
			if e.Withdrawn == nil {
				e.Withdrawn = map[string]int{}
			}
			e.Withdrawn[cluster] = tally.Withdrawn
		}
		if tally.Rejected > 0 {
			if e.Refused == nil {
				e.Refused = map[string]string{}
			}
			e.Refused[cluster] = tally.Example
		}
	}
	if !w.Absent || !e.InOrder() || len(w.Refused) > 0 {
		of := *w
		of.Slices = nil
		y.services[w.Name] = &surveyed{e, &of}
	} else {
		delete(y.services, w.Name)
	}
	if err := inTheWay(have, w); err != nil {
		y.blocked[w.Name] = err
	} else {
		delete(y.blocked, w.Name)
	}
}

// totals returns sums over all services.
func (c *Controller) totals() totals {
	writer, failing := c.leading(), map[string]error{}
	if writer != nil {
		failing = writer.Failing()
	}
	c.mu.Lock()
	listed := maps.Clone(c.survey.services)
	c.mu.Unlock()
	t := totals{clusters: map[string]clusterTotals{}}
	for _, l := range listed {
		t.add(l)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, objects := range c.past.Open(time.Now()) {
		t.overridden += len(objects)
	}
	t.leading, t.blocked, t.failing = writer != nil, len(c.survey.blocked), len(c.survey.blocked)
	for name := range failing {
		if c.survey.blocked[name] == nil {
			t.failing++
		}
	}
	t.reports, t.reportFaults = c.state.paths.Reports(), len(c.local.faults)
	t.former, _ = cut(c.state.former(), 0)
	withdrawn := map[string]int{}
	for _, w := range c.state.paths.Withdrawals() {
		withdrawn[w.Cluster]++
	}
	waiting := c.apply.pace.Waiting()
	for name := range t.clusters { // of former ones there are no metrics
		if c.state.clusters[name] == nil {
			delete(t.clusters, name)
		}
	}
	for _, id := range c.state.order {
		cluster, of := c.state.clusters[id.Cluster], t.clusters[id.Cluster]
		of.waiting, of.bounds, of.over = waiting[id.Cluster], cluster.quota.over(), len(cluster.quota.short)
		of.drained, of.withdrawnNodes = cluster.drained, withdrawn[id.Cluster]
		t.clusters[id.Cluster] = of
	}
	return t
}

// services returns the status of all services: those with problems first, by name.
func (c *Controller) services() []statuspage.Service {
	failing := map[string]error{}
	if writer := c.leading(); writer != nil {
		failing = writer.Failing()
	}
	c.mu.Lock()
	listed, blocked, past := maps.Clone(c.survey.services), maps.Clone(c.survey.blocked), c.past
	c.mu.Unlock()
	overridden := past.Open(time.Now())
	for name := range overridden {
		if listed[name] == nil {
			listed[name] = &surveyed{status: statuspage.Service{Name: name}}
		}
	}
	for _, errs := range []map[string]error{failing, blocked} {
		for name := range errs {
			if listed[name] == nil {
				listed[name] = &surveyed{status: statuspage.Service{Name: name}}
			}
		}
	}
	all := make([]statuspage.Service, 0, len(listed))
	for name, l := range listed {
		e := l.status
		e.Overridden = overridden[name]
		if err := errors.Join(blocked[name], failing[name]); err != nil {
			e.Error = err.Error()
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b statuspage.Service) int {
		return cmp.Or(boolCompare(a.InOrder(), b.InOrder()), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// rejected returns the origins that are not copied.
func (c *Controller) rejected() []statuspage.RejectedOrigin {
	all := []statuspage.RejectedOrigin{}
	c.mu.Lock()
	defer c.mu.Unlock()
	reject := func(id origin.ID, reason string) {
		all = append(all, statuspage.RejectedOrigin{Origin: id.String(), Reason: reason})
	}
	for _, id := range c.state.order {
		set := c.state.sets[id]
		set.Keys(func(k origin.Key) {
			if o := set.Service(k); o.Reject != "" {
				reject(origin.ID{Cluster: id.Cluster, Key: k}, o.Reject)
			}
		})
	}
	for name, of := range c.state.clusters {
		for _, lacks := range of.quota.short {
			if lacks.Services > 0 {
				reject(origin.ID{Cluster: name, Key: lacks.of}, fmt.Sprintf("%s of %s is reached", cmp.Or(of.quota.full(lacks.namespace), "the maximum of services"), name))
			}
		}
	}
	for name, l := range c.survey.services {
		for _, id := range l.want.Refused {
			reject(id, fmt.Sprintf("its name %s is that of %s", name, l.want.Origin))
		}
	}
	slices.SortFunc(all, func(a, b statuspage.RejectedOrigin) int { return cmp.Compare(a.Origin, b.Origin) })
	return slices.Compact(all)
}

func cut[T any](list []T, omitted int) ([]T, int) {
	if len(list) <= maxListed {
		return list, omitted
	}
	return list[:maxListed], omitted + len(list) - maxListed
}

func (c *Controller) clusterStatus(t totals) []statuspage.MirrorCluster {
	var all []statuspage.MirrorCluster
	for _, src := range c.sources {
		name := src.Cluster
		i := slices.IndexFunc(all, func(cs statuspage.MirrorCluster) bool { return cs.Name == name })
		if i < 0 {
			of := t.clusters[name]
			cs := statuspage.MirrorCluster{Name: name, Local: true, Services: of.services, Endpoints: of.endpoints, Refused: of.refused, Withdrawn: of.withdrawn, Drained: of.drained, Bounds: of.bounds, Waiting: of.waiting}
			if r := c.remote(name); r != nil {
				cs.Local, cs.Prefix, cs.PodSubnetsMap = false, r.Prefix, r.PodSubnetsMap.String()
			}
			i, all = len(all), append(all, cs)
		}
		for _, w := range src.Watches() {
			all[i].Watches = append(all[i].Watches, watchStatus(w, w.Kind))
		}
	}
	return all
}

func watchStatus(w published.Health, kind string) statuspage.Watch {
	return statuspage.Watch{Kind: kind, Stale: w.Stale(), Connection: kube.Connection(w.Synced(), w.LastContact(), errors.Join(w.Err(), w.OverQuota()))}
}

// multiCluster returns the status of imports; nil: disabled.
func (c *Controller) multiCluster() *statuspage.MultiCluster {
	if c.multi == nil {
		return nil
	}
	st := &statuspage.MultiCluster{Imports: []statuspage.Import{}}
	switch err := c.multi.detect.Err(); {
	case err != nil && c.cfg.MultiClusterRequired:
		st.Error = err.Error()
		return st
	case err != nil:
		st.Off = err.Error()
		return st
	}
	if err := c.multi.fault(); err != nil {
		st.Error = err.Error()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	names := map[string]struct{}{}
	for name := range c.state.claims {
		names[name] = struct{}{}
	}
	c.state.local.names(func(name string) { names[name] = struct{}{} })
	for name := range names {
		if k, is := importKey(name); is {
			st.Imports = append(st.Imports, c.importStatus(k))
		}
	}
	slices.SortFunc(st.Imports, func(a, b statuspage.Import) int {
		return cmp.Or(boolCompare(a.InOrder(), b.InOrder()), cmp.Compare(a.Name, b.Name))
	})
	return st
}

// importStatus returns the status of one import. Callers hold mu.
func (c *Controller) importStatus(k origin.Key) statuspage.Import {
	l := c.state.local
	w, own := Service{Absent: true}, l.imports.Get(k.String())
	if of := c.survey.services[k.String()]; of != nil {
		w = *of.want
	}
	i := statuspage.Import{Name: k.String(), Conflicts: w.Conflicts, Missing: !l.usable(k.Namespace)}
	i.Held, _ = c.state.holdImport(own, &w)
	for _, id := range c.state.order {
		if id.Kind != published.Exported {
			continue
		}
		switch o := c.state.sets[id].Service(k); {
		case o == nil || o.Reject == "":
		case o.Reject == published.RejectNamespace:
			i.Refused = append(i.Refused, id.Cluster)
		default:
			if i.Faults == nil {
				i.Faults = map[string]string{}
			}
			i.Faults[id.Cluster] = o.Reject
		}
	}
	if own != nil && own.ours {
		i.Type, i.IPs = string(own.spec.Type), own.spec.IPs
		i.Exports = mcs.Exporting(own.places)
		for _, p := range w.Spec.Ports {
			i.Ports = append(i.Ports, p.String())
		}
	}
	for cluster, tally := range w.Tallies {
		if tally.Taken > 0 {
			if i.Endpoints == nil {
				i.Endpoints = map[string]int{}
			}
			i.Endpoints[cluster] = tally.Taken - tally.Withdrawn
		}
	}
	return i
}
