package mirror

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/mirror/feeds"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// maxListed is the maximum number of entries of each list in a Status.
const maxListed = 500

// Status returns the controller's status.
func (c *Controller) Status() status.Mirror {
	t := c.totals()
	s := status.Mirror{Leading: t.leading, Clusters: c.clusterStatus(t), Services: c.services(), Rejected: c.rejected()}
	// Services with problems are first, and stay when the list is truncated.
	s.Services, s.Omitted = cut(s.Services, s.Omitted)
	s.Rejected, s.Omitted = cut(s.Rejected, s.Omitted)
	c.mu.Lock()
	s.Paths, s.Former, s.Departed = c.pathStatus(), c.former(), c.departed
	c.mu.Unlock()
	s.Paths.Withdrawn, s.Omitted = cut(s.Paths.Withdrawn, s.Omitted)
	s.Former, s.Omitted = cut(s.Former, s.Omitted)
	if s.MultiCluster = c.multiCluster(); s.MultiCluster != nil {
		s.MultiCluster.Imports, s.Omitted = cut(s.MultiCluster.Imports, s.Omitted)
	}
	return s
}

// former returns the clusters that are no longer configured. Callers hold mu.
func (c *Controller) former() []status.FormerCluster {
	var all []status.FormerCluster
	s := c.snapshot
	for _, name := range slices.Sorted(maps.Keys(s.local.made)) {
		if name == "" || s.clusters[name] {
			continue
		}
		of := status.FormerCluster{Name: name, Services: s.local.made[name].services, Slices: s.local.made[name].slices}
		if at := s.removal(name); !at.IsZero() {
			of.RemovedAt = &at
		}
		all = append(all, of)
	}
	return all
}

// survey is the status of all services, updated incrementally, so that requests for the
// status neither wait for nor delay a pass.
type survey struct {
	services map[string]*surveyed // that exist, or have problems
	blocked  map[string]error     // by foreign objects
	totals   totals
}

// surveyed is one service. It is immutable.
type surveyed struct {
	status status.Service // without errors
	want   *Service
}

func newSurvey() *survey {
	return &survey{services: map[string]*surveyed{}, blocked: map[string]error{}, totals: totals{clusters: map[string]clusterTotals{}}}
}

// note updates the status of a service.
func (y *survey) note(have *Observed, w *Service) {
	if last := y.services[w.Name]; last != nil {
		y.totals.add(last, -1)
		delete(y.services, w.Name)
	}
	e := status.Service{Name: w.Name, Clusters: w.Clusters, Conflicts: w.Conflicts, Held: w.Hold, Foreign: have.foreign(w), Drained: w.Drained, Needed: w.Needed}
	if !w.Absent {
		e.Origin = w.Origin.String()
	}
	if w.Instead != nil {
		e.Instead = w.Instead.String()
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
	if !w.Absent || !e.InOrder() {
		l := &surveyed{e, w}
		y.services[w.Name] = l
		y.totals.add(l, 1)
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
	defer c.mu.Unlock()
	t := c.survey.totals
	t.overridden = 0
	for _, objects := range c.past.Open(time.Now()) {
		t.overridden += len(objects)
	}
	t.leading, t.blocked, t.failing = writer != nil, len(c.survey.blocked), len(c.survey.blocked)
	for name := range failing {
		if c.survey.blocked[name] == nil {
			t.failing++
		}
	}
	t.clusters = map[string]clusterTotals{}
	t.reports, t.reportFaults = c.snapshot.paths.Reports(), len(c.local.faults)
	t.former, _ = cut(c.former(), 0)
	withdrawn := map[string]int{}
	for _, w := range c.snapshot.paths.Withdrawals() {
		withdrawn[w.Cluster]++
	}
	waiting := c.apply.pace.Waiting()
	for _, id := range c.snapshot.order {
		of := c.survey.totals.clusters[id.cluster]
		of.waiting = waiting[id.cluster]
		of.bounds, of.drained, of.withdrawnNodes = c.over[id.cluster], c.snapshot.drained[id.cluster], withdrawn[id.cluster]
		if r := c.memo.quotas[id.cluster]; r != nil {
			of.over = r.missing()
		}
		t.clusters[id.cluster] = of
	}
	return t
}

// services returns the status of all services: those with problems first, by name.
func (c *Controller) services() []status.Service {
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
			listed[name] = &surveyed{status: status.Service{Name: name}}
		}
	}
	for _, errs := range []map[string]error{failing, blocked} {
		for name := range errs {
			if listed[name] == nil {
				listed[name] = &surveyed{status: status.Service{Name: name}}
			}
		}
	}
	all := make([]status.Service, 0, len(listed))
	for name, l := range listed {
		e := l.status
		e.Overridden = overridden[name]
		if err := errors.Join(blocked[name], failing[name]); err != nil {
			e.Error = err.Error()
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b status.Service) int {
		return cmp.Or(boolCompare(a.InOrder(), b.InOrder()), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// rejected returns the origins that are not copied.
func (c *Controller) rejected() []status.RejectedOrigin {
	all := []status.RejectedOrigin{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.snapshot.order {
		for k, o := range c.snapshot.sets[id].origins {
			reason := o.Reject
			if reason == "" && c.memo.waits(id, k) {
				reason = fmt.Sprintf("%s of %s is reached", cmp.Or(c.memo.quotas[id.cluster].full(k.Namespace), "the maximum of services"), id.cluster)
			}
			if reason != "" {
				all = append(all, status.RejectedOrigin{Origin: origin.ID{Cluster: id.cluster, Key: k}.String(), Reason: reason})
			}
		}
	}
	slices.SortFunc(all, func(a, b status.RejectedOrigin) int { return cmp.Compare(a.Origin, b.Origin) })
	return slices.Compact(all)
}

func cut[T any](list []T, omitted int) ([]T, int) {
	if len(list) <= maxListed {
		return list, omitted
	}
	return list[:maxListed], omitted + len(list) - maxListed
}

func (c *Controller) clusterStatus(t totals) []status.MirrorCluster {
	var all []status.MirrorCluster
	for _, src := range c.sources {
		name := src.id.cluster
		i := slices.IndexFunc(all, func(cs status.MirrorCluster) bool { return cs.Name == name })
		if i < 0 {
			of := t.clusters[name]
			cs := status.MirrorCluster{Name: name, Local: true, Services: of.services, Endpoints: of.endpoints, Refused: of.refused, Withdrawn: of.withdrawn, Drained: of.drained, Bounds: of.bounds, Waiting: of.waiting}
			if r := c.remote(name); r != nil {
				cs.Local, cs.Prefix, cs.PodSubnetsMap = false, r.Prefix, r.PodSubnetsMap.String()
			}
			i, all = len(all), append(all, cs)
		}
		if src.exports != nil {
			if !c.multi.served.IsOpen() {
				continue
			}
			all[i].Watches = append(all[i].Watches, watchStatus(src.exports, "service exports"))
			if !src.gate.IsOpen() {
				continue // nothing else is read of a cluster that exports nothing
			}
		}
		all[i].Watches = append(all[i].Watches,
			watchStatus(src.origins, src.id.kind.String()),
			watchStatus(src.slices, "endpoint slices of "+src.id.kind.String()))
	}
	return all
}

func watchStatus(w feeds.Health, kind string) status.Watch {
	s := status.Watch{Kind: kind, Synced: w.Synced(), Stale: w.Stale()}
	if last := w.LastContact(); !last.IsZero() {
		s.LastContact = &last
	}
	if err := errors.Join(w.Err(), w.OverQuota()); err != nil {
		s.Error = err.Error()
	}
	return s
}
