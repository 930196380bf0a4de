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
	// Spread is for programs that run on every node: thousands of them see a condition
	// at the same time.
	Spread = 30 * time.Second
	// period is the interval between passes, retry the minimum wait after a failure.
	period, retry = 2 * time.Second, 5 * time.Second
	// passTimeout bounds one pass, so that the liveness check doesn't fail while the API
	// server is slow.
	passTimeout = 30 * time.Second
)

// Bounds of the requests per remote and process, however many conditions there are and
// however fast they change. All processes see the same conditions in the same order, so
// their requests are about the same few Events.
const (
	// mostConditions is the number of conditions with an Event each: the first ones.
	mostConditions = 5
	// remoteRate and remoteBurst bound the requests. The burst includes the summary.
	remoteRate  = rate.Limit(12.0 / 3600)
	remoteBurst = mostConditions + 1
	// repeat is the interval at which a condition that still holds is written again: API
	// servers keep Events for an hour by default.
	repeat = time.Hour
)

// Condition is a problem that operators should know of while it persists.
type Condition struct {
	// ID identifies the condition within its remote. It must be the same in all processes
	// that see the condition.
	ID string
	// Name is the suffix of the Event's name, as in a DNS subdomain (RFC 1123). An
	// admission policy can compare it with the message, so that another account can't
	// create an Event of that name with another message. Empty: a hash of ID, for programs
	// whose namespace other accounts can't write Events to.
	Name string
	// Reason is the Event's reason, in camel case.
	Reason  string
	Message string
}

// Remote has the conditions of one remote cluster. Many conditions, or rejected Events,
// of one remote don't delay those of others.
type Remote struct {
	// Name is part of the Events' names: a DNS label.
	Name string
	// Conditions are all that hold now, in the same order in all processes.
	Conditions []Condition
	// Summary returns the condition to write in addition to the first mostConditions.
	Summary func(all []Condition) Condition
}

// Loop returns the configuration of a loop that writes conditions. The name of a
// condition's Event is the same in all processes: of a thousand that see it one creates
// the Event, the others get AlreadyExists. Each pass calls remotes. The caller sets the
// Logger.
func (r *Recorder) Loop(remotes func() []Remote) reconcile.Config {
	return reconcile.Config{
		Name: "events", Trigger: reconcile.NewTrigger(), Resync: period, BackoffMin: retry,
		Reconcile: func(ctx context.Context) error { return r.pass(ctx, time.Now(), remotes()) },
	}
}

// pass writes the due conditions of each remote, up to the remote's first failure:
// usually the API server then rejects the others as well.
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

// name returns the name of a condition's Event.
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
// Wait is random, up to the spread. A condition that has ended by then isn't written; one
// that returns within the hour isn't written again.
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

// due returns the conditions to write now, in order. The caller calls wrote for each one
// written.
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

// wrote records that a condition was written.
func (s *schedule) wrote(now time.Time, c Condition) {
	s.limit.AllowN(now, 1)
	s.plan[c.ID] = planned{at: now.Add(repeat + s.wait()), written: true}
}
