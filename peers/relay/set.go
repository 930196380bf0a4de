package relay

import (
	"sync"

	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// set has the objects of one cluster that are desired, and those that exist. It is safe for
// concurrent use.
type set struct {
	gone bool // the cluster isn't configured: no object may exist

	mu      sync.Mutex
	known   bool                      // the nodes have been read since start
	desired map[string]*v1alpha1.Spec // nodes, by name of their object
	exist   map[string]struct{}       // objects with nodes
	both    int                       // desired nodes whose objects exist
	waiting bool                      // nodes wait for the count
}

func newSet(gone bool) *set {
	return &set{gone: gone, desired: map[string]*v1alpha1.Spec{}, exist: map[string]struct{}{}}
}

// desire sets what is desired of a node's object; nil: it is not.
func (s *set) desire(object string, spec *v1alpha1.Spec) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.desired[object]
	_, exists := s.exist[object]
	if spec != nil {
		s.desired[object] = spec
	} else {
		delete(s.desired, object)
	}
	s.count(exists, was, spec != nil)
}

// observe sets whether an object exists.
func (s *set) observe(object string, exists bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, was := s.exist[object]
	_, desired := s.desired[object]
	if exists {
		s.exist[object] = struct{}{}
	} else {
		delete(s.exist, object)
	}
	s.count(desired, was, exists)
}

// count updates both. Callers hold mu.
func (s *set) count(other, was, is bool) {
	if other && was {
		s.both--
	}
	if other && is {
		s.both++
	}
}

// either returns the number of nodes that are desired or exist. Callers hold mu.
func (s *set) either() int { return len(s.desired) + len(s.exist) - s.both }

// next returns the desired content of an object; nil: it must not exist. It is not due while others
// have to be written first. Counted is the observed count; negative: there is none.
//
//	object                    content            due
//	desired node that exists  the node           at once
//	another desired node      the node           when it is counted
//	count                     of nodes that are  at once
//	                          desired or exist
//	another node              none               at once
//	any of a gone cluster     none               at once
//
// So the count is never less than the number of objects, and exceeds it while the object of a
// desired node is missing, also one that another client has deleted, and also after a relay was
// killed between any two writes. A watch shows writes in their order: whatever an agent sees is
// complete, or says that it isn't.
func (s *set) next(cluster, object string, counted int) (want *v1alpha1.Spec, due bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	isCount := object == v1alpha1.CountName(cluster)
	switch {
	case s.gone:
		return nil, true
	case !s.known:
		return nil, false
	case isCount:
		return &v1alpha1.Spec{Cluster: cluster, Count: s.either()}, true
	}
	want = s.desired[object]
	if want == nil {
		return nil, true
	}
	_, exists := s.exist[object]
	due = exists || counted >= s.either()
	s.waiting = s.waiting || !due
	return want, due
}

// ready returns the objects that are due now that the count is counted.
func (s *set) ready(counted int) (objects []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting && counted >= s.either() {
		s.waiting = false
		for object := range s.desired {
			if _, exists := s.exist[object]; !exists {
				objects = append(objects, object)
			}
		}
	}
	return objects
}

// all returns the names of all objects that exist or are desired, but for the count.
func (s *set) all() (objects []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for object := range s.desired {
		objects = append(objects, object)
	}
	for object := range s.exist {
		if s.desired[object] == nil {
			objects = append(objects, object)
		}
	}
	return objects
}

// read records that the nodes have been read.
func (s *set) read() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known = true
}

// size returns the number of desired nodes, and of objects with nodes, and whether the former are
// known.
func (s *set) size() (nodes, objects int, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.desired), len(s.exist), s.known
}
