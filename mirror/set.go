package mirror

import "net/netip"

// clusterConfig is what a plan needs to know of a cluster before it has heard
// of it.
type clusterConfig struct {
	name    string
	local   bool
	prefix  string         // of its mirrors; empty for the local cluster
	subnets []netip.Prefix // of its pods; none: any address
}

// setKind says which of a cluster's services a set holds.
type setKind int

const (
	mirrorSet setKind = iota
	globalSet
)

// setID names the services of one kind of one cluster.
type setID struct {
	cluster string
	kind    setKind
}

// setView is what is known of a set at one moment.
type setView struct {
	// known is whether everything has been read since start.
	known bool
	// stale is whether the cluster has been out of contact for too long.
	stale    bool
	services []*Service
	slices   []*Slice
}

// set is what a plan remembers of a set.
type set struct {
	cluster  clusterConfig
	kind     setKind
	known    bool
	stale    bool
	services *tracker[Key, Service]
	slices   *tracker[sliceKey, Slice]
	of       map[Key]map[string]*Slice // by service and name
}

type sliceKey struct{ namespace, name string }

func (s *set) id(k Key) ID {
	if s.kind == globalSet {
		return ID{Key: k}
	}
	return ID{s.cluster.name, k}
}

// update takes in a view of the set, and notes which origins it concerns.
func (s *set) update(v setView, dirty map[ID]struct{}, everything *bool) {
	if v.known != s.known || v.stale != s.stale {
		// Whether the others' endpoints count depends on it.
		*everything = true
	}
	s.known, s.stale = v.known, v.stale
	s.services.update(v.services, func(before, now *Service) {
		if before != nil && now != nil && before.Equal(now) {
			return
		}
		dirty[s.id(either(before, now).Key)] = struct{}{}
	})
	s.slices.update(v.slices, func(before, now *Slice) {
		if before != nil && now != nil && before.Equal(now) {
			s.of[now.Service][now.Name] = now
			return
		}
		if before != nil && (now == nil || now.Service != before.Service) {
			delete(s.of[before.Service], before.Name)
			if len(s.of[before.Service]) == 0 {
				delete(s.of, before.Service)
			}
			dirty[s.id(before.Service)] = struct{}{}
		}
		if now != nil {
			if s.of[now.Service] == nil {
				s.of[now.Service] = map[string]*Slice{}
			}
			s.of[now.Service][now.Name] = now
			dirty[s.id(now.Service)] = struct{}{}
		}
	})
}

func either[T any](a, b *T) *T {
	if a != nil {
		return a
	}
	return b
}
