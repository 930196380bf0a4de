package mirror

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// stuckAfter is how long one service may take: several writes that each time
// out.
const stuckAfter = 5 * time.Minute

// state is what the workers are doing, and what went wrong.
type state struct {
	mu      sync.Mutex
	running map[string]time.Time
	failing map[string]error
	holding map[string]string
	foreign map[string][]string
}

func newState() *state {
	return &state{
		running: map[string]time.Time{}, failing: map[string]error{},
		holding: map[string]string{}, foreign: map[string][]string{},
	}
}

func (s *state) begin(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running[name] = time.Now()
}

// end notes how it went, and returns how it went the time before.
func (s *state) end(name string, err error) (before error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, name)
	before = s.failing[name]
	if err == nil {
		delete(s.failing, name)
	} else {
		s.failing[name] = err
	}
	return before
}

// pause ends what begin began, with nothing new to say about it.
func (s *state) pause(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, name)
}

func (s *state) stuck(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for name, since := range s.running {
		if now.Sub(since) > stuckAfter {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	slices.Sort(names)
	return fmt.Errorf("writing for more than %v: %s", stuckAfter, strings.Join(names, ", "))
}

// note remembers what keeps a service from being what it must be.
func (c *Controller) note(j *job) {
	c.state.mu.Lock()
	defer c.state.mu.Unlock()
	if j.hold == "" {
		delete(c.state.holding, j.name)
	} else {
		c.state.holding[j.name] = j.hold
	}
	if len(j.foreign) == 0 {
		delete(c.state.foreign, j.name)
	} else {
		c.state.foreign[j.name] = j.foreign
	}
}

// isForeign reports whether an error is about an object that isn't ours.
func isForeign(err error) bool { return errors.Is(err, errForeign) }

// String says what a kind of services is called in logs.
func (k setKind) String() string {
	if k == globalSet {
		return "global services"
	}
	return "services to mirror"
}

// remembers reports whether anything in the mirror namespace comes from a set.
func (p *plan) remembers(id setID) bool {
	for _, group := range p.own.services.groups {
		for _, o := range group {
			if !o.ours {
				continue
			}
			if id.kind == globalSet && o.global && slices.Contains(o.clusters, id.cluster) ||
				id.kind == mirrorSet && !o.global && p.clusterOf(o) == id.cluster {
				return true
			}
		}
	}
	return false
}
