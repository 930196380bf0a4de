package event

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/time/rate"

	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
)

const (
	// Spread is that of programs that run on every node: thousands of them see a
	// condition at the same moment.
	Spread = 30 * time.Second
	// period is how often conditions are looked at, and retry how long a failure
	// holds that up at least.
	period, retry = 2 * time.Second, 5 * time.Second
	// passTimeout bounds one pass, so that a slow API server doesn't make the
	// program seem stuck.
	passTimeout = 30 * time.Second
)

// Bounds of what is written of one remote. However many conditions there are, and
// however fast they change, one program makes no more requests than these; and
// as all programs see the same conditions in the same order, all of their requests
// are about the same few Events.
const (
	// mostConditions is how many are written one by one: the first ones.
	mostConditions = 5
	// remoteRate and remoteBurst bound those that change. The burst has a place for
	// the summary.
	remoteRate  = rate.Limit(12.0 / 3600)
	remoteBurst = mostConditions + 1
	// repeat is after how long a condition that still holds is written again: API
	// servers keep Events for an hour unless their settings say otherwise.
	repeat = time.Hour
)

// Condition is something that an operator should know for as long as it holds.
type Condition struct {
	// ID tells conditions of a remote apart; two with one ID are one. It must be the
	// same in all programs that see the condition.
	ID string
	// Name is how the name of the Event ends, as in a DNS subdomain (RFC 1123).
	// An admission policy can hold it against the message, so that nobody can
	// take the name and say something else. Empty: a hash of ID, for programs
	// of which no others take the names.
	Name string
	// Reason is that of the Event, in camel case.
	Reason string
	// Message is for people.
	Message string
}

// Remote is what holds of one remote cluster. One with a great many conditions, or
// whose Events are rejected, doesn't hold up those of others.
type Remote struct {
	// Name is part of the Events' names: a DNS label.
	Name string
	// Conditions are all that hold now, in an order that is the same in all programs
	// that see them.
	Conditions []Condition
	// Summary returns what to write beside the first conditions when they are many.
	Summary func(all []Condition) Condition
}

// Loop describes the loop that writes conditions, each under a name that is the same in
// all programs: of a thousand that see it one makes the Event, and the others find it.
// Remotes are read at each pass. The caller adds a logger, which gets failures when they
// begin, change and end.
func (r *Recorder) Loop(remotes func() []Remote) reconcile.Config {
	return reconcile.Config{
		Name: "events", Trigger: reconcile.NewTrigger(), Resync: period, BackoffMin: retry,
		Reconcile: func(ctx context.Context) error { return r.pass(ctx, time.Now(), remotes()) },
	}
}

// pass writes what is due of each remote, up to its first failure: as a rule the API
// server that doesn't take one Event takes no other.
func (r *Recorder) pass(ctx context.Context, now time.Time, remotes []Remote) error {
	ctx, cancel := context.WithTimeout(ctx, passTimeout)
	defer cancel()
	var errs []error
	for i := range remotes {
		remote := &remotes[i]
		s := r.remotes[remote.Name]
		if s == nil {
			s = newSchedule(r.Spread)
			r.remotes[remote.Name] = s
		}
		for _, c := range s.due(now, remote.Conditions, remote.Summary) {
			if err := r.create(ctx, r.name(remote.Name, c), r.About, c.Reason, c.Message); err != nil {
				errs = append(errs, err)
				break
			}
			s.wrote(now, c)
		}
	}
	return errors.Join(errs...)
}

// name returns the name of the Event of a condition.
func (r *Recorder) name(remote string, c Condition) string {
	end := c.Name
	if end == "" {
		sum := sha256.Sum256(fmt.Appendf(nil, "%q %q", remote, c.ID))
		end = hex.EncodeToString(sum[:8])
	}
	return fmt.Sprintf("%s.%s.%s", r.Component, remote, end)
}

// schedule decides which conditions of one remote to write, and when.
//
//	seen        written                         written again
//	 |-- wait --|------------- repeat -------------|-- wait --|
//
// Wait is anything up to the spread. A condition that no longer holds when its time
// has come isn't written; one that comes back within the hour was written already.
type schedule struct {
	wait  func() time.Duration
	limit *rate.Limiter
	plan  map[string]planned // by ID
}

type planned struct {
	at      time.Time // when to write it, for the first time or again
	written bool
}

func newSchedule(spread time.Duration) *schedule {
	return &schedule{
		wait:  func() time.Duration { return rand.N(spread + 1) },
		limit: rate.NewLimiter(remoteRate, remoteBurst),
		plan:  map[string]planned{},
	}
}

// due returns the conditions to write now, in their order, of all that hold. Each that
// was written is to be reported by wrote.
func (s *schedule) due(now time.Time, all []Condition, summary func([]Condition) Condition) []Condition {
	current := map[string]bool{}
	var first []Condition
	for _, c := range all {
		if current[c.ID] {
			continue
		}
		if len(first) == mostConditions {
			first = append([]Condition{summary(all)}, first...)
			current[first[0].ID] = true
			break
		}
		current[c.ID] = true
		first = append(first, c)
	}
	for id, p := range s.plan {
		if !current[id] && (!p.written || !now.Before(p.at)) {
			delete(s.plan, id)
		}
	}
	tokens := int(s.limit.TokensAt(now))
	var due []Condition
	for _, c := range first {
		p, known := s.plan[c.ID]
		if !known {
			p = planned{at: now.Add(s.wait())}
			s.plan[c.ID] = p
		}
		if !now.Before(p.at) && len(due) < tokens {
			due = append(due, c)
		}
	}
	return due
}

// wrote notes that a condition was written.
func (s *schedule) wrote(now time.Time, c Condition) {
	s.limit.AllowN(now, 1)
	s.plan[c.ID] = planned{at: now.Add(repeat + s.wait()), written: true}
}
