package event

import (
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"
)

// Bounds of what a Herald tells of one topic. However many facts there are, and
// however fast they change, one program makes no more requests than these; and
// as all programs see the same facts in the same order, all of their requests
// are about the same few Events.
const (
	// mostFacts is how many facts are told one by one: the first ones.
	mostFacts = 5
	// topicRate and topicBurst bound what is told of changing facts. The burst
	// has a place for the summary.
	topicRate  = rate.Limit(12.0 / 3600)
	topicBurst = mostFacts + 1
	// factRepeat is after how long a fact that still holds is told again: API
	// servers keep Events for an hour unless they are told otherwise.
	factRepeat = time.Hour
)

// Spread is how long programs that run on every node should wait at most before
// they tell something: thousands of them see it at the same moment.
const Spread = 30 * time.Second

// Fact is something that is so, and that an operator should know for as long as
// it is.
type Fact struct {
	// ID tells facts of a topic apart; two with one ID are one. It must be the
	// same in all programs that see the fact.
	ID string
	// Name is how the name of the Event ends, as in a DNS subdomain (RFC 1123).
	// An admission policy can hold it against the message, so that nobody can
	// take the name and tell something else. Empty: a hash of ID, for programs
	// of which no others take the names.
	Name string
	// Reason is that of the Event, in camel case.
	Reason string
	// Message is for people.
	Message string
}

// schedule decides which facts of one topic to tell, and when.
//
//	seen        told                                told again
//	 |-- wait --|----------------- factRepeat ----------|-- wait --|
//
// Wait is anything up to the spread. A fact that is no longer so when its time
// has come isn't told; one that comes back within the hour was told already.
type schedule struct {
	wait  func() time.Duration
	limit *rate.Limiter
	plan  map[string]planned // by ID
}

type planned struct {
	at   time.Time // when to tell it, for the first time or again
	told bool
}

func newSchedule(spread time.Duration) *schedule {
	return &schedule{
		wait:  func() time.Duration { return rand.N(spread + 1) },
		limit: rate.NewLimiter(topicRate, topicBurst),
		plan:  map[string]planned{},
	}
}

// due returns the facts to tell now, in their order. Facts are all that are so
// now; summary makes one of them when they are too many to be told one by one.
// Each that was told is to be reported back.
func (s *schedule) due(now time.Time, facts []Fact, summary func([]Fact) Fact) []Fact {
	facts = selected(facts, summary)
	current := make(map[string]bool, len(facts))
	for _, f := range facts {
		current[f.ID] = true
	}
	for id, p := range s.plan {
		if !current[id] && (!p.told || !now.Before(p.at)) {
			delete(s.plan, id)
		}
	}
	tokens := int(s.limit.TokensAt(now))
	var due []Fact
	for _, f := range facts {
		p, known := s.plan[f.ID]
		if !known {
			p = planned{at: now.Add(s.wait())}
			s.plan[f.ID] = p
		}
		if !now.Before(p.at) && len(due) < tokens {
			due = append(due, f)
		}
	}
	return due
}

// told notes that a fact was told.
func (s *schedule) told(now time.Time, f Fact) {
	s.limit.AllowN(now, 1)
	s.plan[f.ID] = planned{at: now.Add(factRepeat + s.wait()), told: true}
}

// selected returns the first facts of different IDs, behind a summary if there
// are more.
func selected(facts []Fact, summary func([]Fact) Fact) []Fact {
	var first []Fact
	seen := make(map[string]bool, mostFacts)
	for _, f := range facts {
		if seen[f.ID] {
			continue
		}
		if len(first) == mostFacts {
			return append([]Fact{summary(facts)}, first...)
		}
		seen[f.ID] = true
		first = append(first, f)
	}
	return first
}
