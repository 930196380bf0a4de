package policy

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

const (
	// Bounds of the pause between a write and its repetition, which doubles each time.
	// longestRemoval is that for an object with something that must be removed.
	firstPause, longestPause, longestRemoval = 250 * time.Millisecond, 5 * time.Minute, 10 * time.Second
	// storedPause is the pause while the API server stores something else than what is written:
	// the end of an admission policy shows in no object.
	storedPause = 10 * time.Minute
	// lasting is the time after which a write that nothing has undone counts as having lasted.
	lasting = time.Minute
	// removalPatience is the maximum time for which writes that remove addresses may fail for
	// other reasons than a refusal, such as a webhook that doesn't answer.
	removalPatience = 5 * time.Second
	// manyAttempts is the number of remembered writes beyond which those that weren't undone are
	// forgotten.
	manyAttempts = 10_000
)

// attempt is the last write of an object. While the object differs again from what is desired,
// and that is still what was written,
//
//	| the object is                         | it is written again                                |
//	| ------------------------------------- | -------------------------------------------------- |
//	| as in the response                    | after storedPause                                  |
//	| changed by others, for the nth time   | at once, then firstPause * 2^(n-2) after the last  |
//	| changed by others, after it lasted    | at once                                            |
type attempt struct {
	set     Identity
	want    *Object // nil: deleted
	stored  bool    // the response differed from want
	version string  // of the response
	at      time.Time
	undone  int       // number of earlier writes in a row that were undone
	since   time.Time // of the first one of these
	by      string    // who has undone the last one; empty: unknown
}

func (a *attempt) pause(removes bool) time.Duration {
	if a.undone == 0 {
		return 0
	}
	longest := longestPause
	if removes {
		longest = longestRemoval
	}
	return min(firstPause<<min(a.undone-1, 16), longest)
}

// open reports whether the object counts as overridden. A single change by another client is
// repaired and isn't a problem.
func (a *attempt) open(now time.Time) bool {
	return a.stored || a.undone > 1 && now.Sub(a.at) < a.pause(false)+lasting
}

func (a *attempt) override(name string) statuspage.Override {
	o := statuspage.Override{Object: "network set " + name, Since: a.since}
	if a.stored {
		o.Returned, o.Fields, o.Next = true, []string{"metadata.labels or spec.nets"}, a.at.Add(storedPause)
	} else {
		o.By, o.Next = a.by, a.at.Add(a.pause(false))
	}
	return o
}

// attempts remembers the last writes, so that one that an admission policy or another client
// undoes isn't repeated without end. It is safe for concurrent use.
type attempts struct {
	log  *slog.Logger
	rare rate.Sometimes // lines of the log

	mu      sync.Mutex
	last    map[string]*attempt  // by object
	many    int                  // at which last is swept
	failing map[string]time.Time // since when something can't be removed from an object
}

func newAttempts(log *slog.Logger) *attempts {
	return &attempts{
		log: log, rare: rate.Sometimes{First: 3, Interval: time.Minute},
		last: map[string]*attempt{}, many: manyAttempts, failing: map[string]time.Time{},
	}
}

// wait returns how long a change must wait.
func (a *attempts) wait(c *Change, now time.Time) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	last := a.last[c.Name]
	switch {
	case last == nil || !last.want.equal(c.Want):
		return 0
	case last.stored && c.Have != nil && c.Have.ResourceVersion == last.version:
		return last.at.Add(storedPause).Sub(now)
	default:
		return last.at.Add(last.pause(c.removes())).Sub(now)
	}
}

// wrote records a write and the response; nil: the object is deleted.
func (a *attempts) wrote(ctx context.Context, set Identity, c *Change, response *Observed) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	next := &attempt{set: set, want: c.Want, at: now, since: now}
	if response != nil {
		next.stored, next.version = !response.matches(c.Want), response.ResourceVersion
	}
	last := a.last[c.Name]
	if last != nil && now.Sub(last.at) < 2*last.pause(false)+lasting {
		next.undone, next.since, next.by = last.undone, last.since, last.by
		if last.want.equal(c.Want) {
			next.undone++
		}
		if c.Have != nil {
			next.by = cmp.Or(c.Have.By, next.by)
		}
	}
	if next.open(now) && (last == nil || !last.open(now)) {
		a.rare.Do(func() {
			o := next.override(c.Name)
			a.log.WarnContext(ctx, "write overridden", "set", c.Name, "cluster", set.Cluster, "why", o.String())
		})
	}
	if len(a.last) >= a.many {
		maps.DeleteFunc(a.last, func(_ string, last *attempt) bool { return !last.open(now) })
		a.many = max(manyAttempts, 2*len(a.last))
	}
	a.last[c.Name] = next
	delete(a.failing, c.Name)
}

// failed records that a write failed which removes something, and reports whether these have
// failed for removalPatience.
func (a *attempts) failed(name string, now time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failing[name].IsZero() {
		a.failing[name] = now
	}
	return now.Sub(a.failing[name]) >= removalPatience
}

// right records that an object is as desired, or gone.
func (a *attempts) right(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.failing, name)
	if last := a.last[name]; last != nil {
		last.stored = false
	}
}

// overridden returns the overridden objects by cluster, sorted.
func (a *attempts) overridden() map[string][]statuspage.Override {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := map[string][]statuspage.Override{}
	for name, last := range a.last {
		if last.open(time.Now()) {
			all[last.set.Cluster] = append(all[last.set.Cluster], last.override(name))
		}
	}
	for _, objects := range all {
		slices.SortFunc(objects, func(a, b statuspage.Override) int { return cmp.Compare(a.Object, b.Object) })
	}
	return all
}
