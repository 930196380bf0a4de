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
)

// maxListed is the maximum number of entries of each list in a Status.
const maxListed = 500

// Status is the status of a controller, for /status.
type Status struct {
	Leading  bool            `json:"leading"`
	Clusters []ClusterStatus `json:"clusters"`
	Services []ServiceStatus `json:"services"`
	// Rejected are origins that are not copied.
	Rejected []RejectedStatus `json:"rejected"`
	// Former are clusters that are no longer configured, and of which objects are left.
	// Departed are configured ones that are ignored because they left.
	Former   []FormerCluster `json:"former,omitempty"`
	Departed []string        `json:"departed,omitempty"`
	Paths    PathStatus      `json:"paths"`
	// MultiCluster is that of the Multi-Cluster Services API; nil: disabled.
	MultiCluster *MultiClusterStatus `json:"multiCluster,omitempty"`
	// Omitted is the number of entries beyond maxListed.
	Omitted int `json:"omitted,omitempty"`
}

// ClusterStatus is the status of one cluster.
type ClusterStatus struct {
	Name      string        `json:"name"`
	Local     bool          `json:"local,omitempty"`
	Prefix    string        `json:"prefix,omitempty"`
	Watches   []WatchStatus `json:"watches"`
	Services  int           `json:"services"`
	Endpoints int           `json:"endpoints"`
	Refused   int           `json:"refused"`
	// Withdrawn is the number of endpoints on nodes with broken paths.
	Withdrawn int `json:"withdrawn,omitempty"`
	// Drained: the cluster is marked as drained.
	Drained bool `json:"drained,omitempty"`
	// Bounds is what is omitted because of the quota.
	Bounds string `json:"bounds,omitempty"`
}

// WatchStatus is the status of the watch of one kind in one cluster.
type WatchStatus struct {
	Kind        string     `json:"kind"`
	Synced      bool       `json:"synced"`
	Stale       bool       `json:"stale,omitempty"`
	LastContact *time.Time `json:"lastContact,omitempty"`
	Error       string     `json:"error,omitempty"`
}

// ServiceStatus is one local service. Services with problems are listed first.
type ServiceStatus struct {
	Name      string     `json:"name"`
	Origin    string     `json:"origin,omitempty"`
	Clusters  []string   `json:"clusters,omitempty"`
	Conflicts []Conflict `json:"conflicts,omitempty"`
	// Instead is the origin that has this one's default name.
	Instead string `json:"nameTakenBy,omitempty"`
	// Refused has an example of the rejected endpoints, by cluster.
	Refused map[string]string `json:"refused,omitempty"`
	// Foreign are foreign endpoint slices of this service.
	Foreign []string `json:"foreignSlices,omitempty"`
	// Withdrawn is the number of endpoints on nodes with broken paths, by cluster. Drained
	// are the clusters with endpoints that are omitted because they are drained.
	Withdrawn map[string]int `json:"withdrawn,omitempty"`
	Drained   []string       `json:"drained,omitempty"`
	// Needed are families, and ports, for which a drained, stale or removed cluster is still
	// used because no other one has a ready endpoint, by cluster; at most maxNeeded each.
	Needed map[string][]string `json:"needed,omitempty"`
	Held   string              `json:"held,omitempty"`
	// Overridden are objects of the service that others change again, each time they are
	// written; known to the leader only.
	Overridden []status.Override `json:"overridden,omitempty"`
	// RemovedAt is when the removal of the service is no longer held.
	RemovedAt *time.Time `json:"removedAt,omitempty"`
	Error     string     `json:"error,omitempty"`
}

// FormerCluster is a cluster that is no longer configured.
type FormerCluster struct {
	Name string `json:"name"`
	// Services are its mirrors, Slices those and its part of global services.
	Services int `json:"services"`
	Slices   int `json:"slices"`
	// RemovedAt is when they are removed; nil: now.
	RemovedAt *time.Time `json:"removedAt,omitempty"`
}

// RejectedStatus is one origin that is not copied.
type RejectedStatus struct {
	Origin string `json:"origin"`
	Reason string `json:"reason"`
}

func (s *ServiceStatus) inOrder() bool {
	return len(s.Conflicts) == 0 && s.Instead == "" && len(s.Refused) == 0 && len(s.Withdrawn) == 0 && len(s.Foreign) == 0 && s.Held == "" && len(s.Overridden) == 0 && s.Error == ""
}

// Status returns the controller's status.
func (c *Controller) Status() Status {
	t := c.totals()
	s := Status{Leading: t.leading, Clusters: c.clusterStatus(t), Services: c.services(), Rejected: c.rejected()}
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
func (c *Controller) former() []FormerCluster {
	var all []FormerCluster
	s := c.snapshot
	for _, name := range slices.Sorted(maps.Keys(s.local.made)) {
		if name == "" || s.clusters[name] {
			continue
		}
		of := FormerCluster{Name: name, Services: s.local.made[name].services, Slices: s.local.made[name].slices}
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
	status ServiceStatus // without errors
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
	e := ServiceStatus{Name: w.Name, Clusters: w.Clusters, Conflicts: w.Conflicts, Held: w.Hold, Foreign: have.foreign(w), Drained: w.Drained, Needed: w.Needed}
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
	if !w.Absent || !e.inOrder() {
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
	t.reports, t.reportFaults = len(c.snapshot.paths.counted), len(c.local.faults)
	t.former, _ = cut(c.former(), 0)
	withdrawn := c.snapshot.paths.withdrawnNodes()
	for _, id := range c.snapshot.order {
		of := c.survey.totals.clusters[id.cluster]
		of.bounds, of.drained, of.withdrawnNodes = c.over[id.cluster], c.snapshot.drained[id.cluster], withdrawn[id.cluster]
		if r := c.memo.quotas[id.cluster]; r != nil {
			of.over = r.missing()
		}
		t.clusters[id.cluster] = of
	}
	return t
}

// services returns the status of all services: those with problems first, by name.
func (c *Controller) services() []ServiceStatus {
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
			listed[name] = &surveyed{status: ServiceStatus{Name: name}}
		}
	}
	for _, errs := range []map[string]error{failing, blocked} {
		for name := range errs {
			if listed[name] == nil {
				listed[name] = &surveyed{status: ServiceStatus{Name: name}}
			}
		}
	}
	all := make([]ServiceStatus, 0, len(listed))
	for name, l := range listed {
		e := l.status
		e.Overridden = overridden[name]
		if err := errors.Join(blocked[name], failing[name]); err != nil {
			e.Error = err.Error()
		}
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b ServiceStatus) int {
		return cmp.Or(boolCompare(a.inOrder(), b.inOrder()), cmp.Compare(a.Name, b.Name))
	})
	return all
}

// rejected returns the origins that are not copied.
func (c *Controller) rejected() []RejectedStatus {
	all := []RejectedStatus{}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range c.snapshot.order {
		for k, o := range c.snapshot.sets[id].origins {
			reason := o.Reject
			if reason == "" && c.memo.waits(id, k) {
				reason = fmt.Sprintf("the maximum of %d services of %s is reached", c.memo.quotas[id.cluster].bounds.Services, id.cluster)
			}
			if reason != "" {
				all = append(all, RejectedStatus{ID{id.cluster, k}.String(), reason})
			}
		}
	}
	slices.SortFunc(all, func(a, b RejectedStatus) int { return cmp.Compare(a.Origin, b.Origin) })
	return slices.Compact(all)
}

func cut[T any](list []T, omitted int) ([]T, int) {
	if len(list) <= maxListed {
		return list, omitted
	}
	return list[:maxListed], omitted + len(list) - maxListed
}

func (c *Controller) clusterStatus(t totals) []ClusterStatus {
	var all []ClusterStatus
	for _, src := range c.sources {
		name := src.id.cluster
		i := slices.IndexFunc(all, func(cs ClusterStatus) bool { return cs.Name == name })
		if i < 0 {
			of := t.clusters[name]
			cs := ClusterStatus{Name: name, Local: true, Services: of.services, Endpoints: of.endpoints, Refused: of.refused, Withdrawn: of.withdrawn, Drained: of.drained, Bounds: of.bounds}
			if r := c.remote(name); r != nil {
				cs.Local, cs.Prefix = false, r.Prefix
			}
			i, all = len(all), append(all, cs)
		}
		if src.exports != nil {
			all[i].Watches = append(all[i].Watches, watchStatus(src.exports, "service exports"))
			if !src.gate.isOpen() {
				continue // nothing else is read of a cluster that exports nothing
			}
		}
		all[i].Watches = append(all[i].Watches,
			watchStatus(src.origins, src.id.kind.String()),
			watchStatus(src.slices, "endpoint slices of "+src.id.kind.String()))
	}
	return all
}

// health is the status of a feed.
type health interface {
	Synced() bool
	Stale() bool
	LastContact() time.Time
	Err() error
	OverQuota() error
}

func watchStatus(w health, kind string) WatchStatus {
	s := WatchStatus{Kind: kind, Synced: w.Synced(), Stale: w.Stale()}
	if last := w.LastContact(); !last.IsZero() {
		s.LastContact = &last
	}
	if err := errors.Join(w.Err(), w.OverQuota()); err != nil {
		s.Error = err.Error()
	}
	return s
}
