package policy

import (
	"sync"
	"time"
)

// removalPatience is the maximum time for which writes that remove addresses may fail for
// other reasons than a refusal, such as a webhook that doesn't answer.
const removalPatience = 5 * time.Second

// removals remembers since when something can't be removed from an object. It is safe for
// concurrent use.
type removals struct {
	mu      sync.Mutex
	failing map[string]time.Time
}

func newRemovals() *removals { return &removals{failing: map[string]time.Time{}} }

// failed records that a write failed which removes something, and began at a time. It reports
// whether these have failed for removalPatience.
func (r *removals) failed(name string, began time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failing[name].IsZero() {
		r.failing[name] = began
	}
	return time.Since(r.failing[name]) >= removalPatience
}

// over records that an object was written, is as desired, or gone.
func (r *removals) over(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failing, name)
}

// objectOf names a set in keep.Overrides.
func objectOf(name string) string { return "network set " + name }
