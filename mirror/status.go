package mirror

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"time"
)

// maxListed is how many entries each list of a Status has at most.
const maxListed = 500

// Status is what a controller knows and does, for people and /status.
type Status struct {
	Leading  bool            `json:"leading"`
	Clusters []ClusterStatus `json:"clusters"`
	Services []ServiceStatus `json:"services"`
	// Rejected are origins that are not copied.
	Rejected []RejectedStatus `json:"rejected"`
	// Omitted counts what the lists are too long for.
	Omitted int `json:"omitted,omitempty"`
}

// ClusterStatus is how one cluster is.
type ClusterStatus struct {
	Name      string        `json:"name"`
	Local     bool          `json:"local,omitempty"`
	Prefix    string        `json:"prefix,omitempty"`
	Watches   []WatchStatus `json:"watches"`
	Services  int           `json:"services"`
	Endpoints int           `json:"endpoints"`
	Refused   int           `json:"refused"`
}

// WatchStatus is how what is read of one kind in one cluster is.
type WatchStatus struct {
	Kind        string     `json:"kind"`
	Synced      bool       `json:"synced"`
	Stale       bool       `json:"stale,omitempty"`
	LastContact *time.Time `json:"lastContact,omitempty"`
	Error       string     `json:"error,omitempty"`
}

// ServiceStatus is one local service. Of those that are in order only the
// first are listed.
type ServiceStatus struct {
	Name      string     `json:"name"`
	Origin    string     `json:"origin,omitempty"`
	Clusters  []string   `json:"clusters,omitempty"`
	Conflicts []Conflict `json:"conflicts,omitempty"`
	// Instead is whose name this would have been.
	Instead string `json:"nameTakenBy,omitempty"`
	// Refused has an example of the endpoints left out, by cluster.
	Refused map[string]string `json:"refused,omitempty"`
	// Foreign are endpoint slices of others that lead to this service.
	Foreign []string `json:"foreignSlices,omitempty"`
	Held    string   `json:"held,omitempty"`
	Error   string   `json:"error,omitempty"`
}

// RejectedStatus is one origin that is not copied.
type RejectedStatus struct {
	Origin string `json:"origin"`
	Reason string `json:"reason"`
}

func (s *ServiceStatus) inOrder() bool {
	return len(s.Conflicts) == 0 && s.Instead == "" && len(s.Refused) == 0 && len(s.Foreign) == 0 && s.Held == "" && s.Error == ""
}

// Status returns the controller's status.
func (c *Controller) Status() Status {
	t := c.totals()
	s := Status{Leading: t.leading, Clusters: c.clusterStatus(t), Services: []ServiceStatus{}, Rejected: []RejectedStatus{}}

	all := map[string]*ServiceStatus{}
	entry := func(name string) *ServiceStatus {
		if all[name] == nil {
			all[name] = &ServiceStatus{Name: name}
		}
		return all[name]
	}
	c.mu.Lock()
	for name, tg := range c.plan.names {
		e := entry(name)
		e.Origin, e.Clusters, e.Conflicts = tg.id.String(), tg.clusters, tg.conflicts
		if tg.instead != nil {
			e.Instead = tg.instead.String()
		}
		for cluster, sum := range tg.tallies {
			if sum.refused == 0 {
				continue
			}
			if e.Refused == nil {
				e.Refused = map[string]string{}
			}
			e.Refused[cluster] = sum.example
		}
	}
	for _, id := range c.plan.order {
		set := c.plan.sets[id]
		for _, svc := range set.services.seen {
			if svc.Reject != "" {
				s.Rejected = append(s.Rejected, RejectedStatus{ID{id.cluster, svc.Key}.String(), svc.Reject})
			}
		}
	}
	c.mu.Unlock()
	c.state.mu.Lock()
	for name, why := range c.state.holding {
		entry(name).Held = why
	}
	for name, foreign := range c.state.foreign {
		entry(name).Foreign = foreign
	}
	for name, err := range c.state.failing {
		entry(name).Error = err.Error()
	}
	c.state.mu.Unlock()

	for _, name := range slices.Sorted(maps.Keys(all)) {
		s.Services = append(s.Services, *all[name])
	}
	// What is wrong comes first, and stays when the list is cut off.
	slices.SortStableFunc(s.Services, func(a, b ServiceStatus) int {
		return boolCompare(a.inOrder(), b.inOrder())
	})
	slices.SortFunc(s.Rejected, func(a, b RejectedStatus) int { return cmp.Compare(a.Origin, b.Origin) })
	s.Rejected = slices.Compact(s.Rejected)
	s.Services, s.Omitted = cut(s.Services, s.Omitted)
	s.Rejected, s.Omitted = cut(s.Rejected, s.Omitted)
	return s
}

func cut[T any](list []T, omitted int) ([]T, int) {
	if len(list) <= maxListed {
		return list, omitted
	}
	return list[:maxListed], omitted + len(list) - maxListed
}

func (c *Controller) clusterStatus(t totals) []ClusterStatus {
	var all []ClusterStatus
	now := time.Now()
	for _, s := range c.sources {
		name := s.id.cluster
		i := slices.IndexFunc(all, func(cs ClusterStatus) bool { return cs.Name == name })
		if i < 0 {
			of := t.clusters[name]
			cs := ClusterStatus{Name: name, Local: true, Services: of.services, Endpoints: of.endpoints, Refused: of.refused}
			if r := c.remote(name); r != nil {
				cs.Local, cs.Prefix = false, r.Prefix
			}
			i, all = len(all), append(all, cs)
		}
		view := s.view(c.staleAfter(name), c.started, now)
		all[i].Watches = append(all[i].Watches,
			watchStatus(s.services, s.id.kind.String(), view.stale),
			watchStatus(s.slices, "endpoint slices of "+s.id.kind.String(), view.stale))
	}
	return all
}

// contact is what a watch knows of its cluster.
type contact interface {
	Synced() bool
	LastContact() time.Time
	Err() error
	Crowded() error
}

func watchStatus(w contact, kind string, stale bool) WatchStatus {
	s := WatchStatus{Kind: kind, Synced: w.Synced(), Stale: stale}
	if last := w.LastContact(); !last.IsZero() {
		s.LastContact = &last
	}
	if err := errors.Join(w.Err(), w.Crowded()); err != nil {
		s.Error = err.Error()
	}
	return s
}
