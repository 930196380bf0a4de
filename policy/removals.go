package policy

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/keep"
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

// failed records that a write failed which removes something, and reports whether these have
// failed for removalPatience.
func (r *removals) failed(name string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.failing[name].IsZero() {
		r.failing[name] = now
	}
	return now.Sub(r.failing[name]) >= removalPatience
}

// over records that an object was written, is as desired, or gone.
func (r *removals) over(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.failing, name)
}

// attempt returns a change as keep.Overrides identifies it.
func (c *Change) attempt() keep.Write {
	w := keep.Write{Object: "network set " + c.Name, Have: version(c.Have), Want: fingerprint(c.Want), Urgent: c.removes()}
	if c.Have != nil {
		w.By = c.Have.By
	}
	return w
}

// outcome returns the fingerprint of a response; nil: the object is deleted.
func (c *Change) outcome(response *Observed) uint64 {
	if response == nil || response.matches(c.Want) {
		return fingerprint(c.Want)
	}
	return version(response)
}

// version returns a fingerprint of the version of an object; 0: it doesn't exist.
func version(o *Observed) uint64 {
	if o == nil {
		return 0
	}
	sum := fnv.New64a()
	_, _ = fmt.Fprintf(sum, "%q %q", o.UID, o.ResourceVersion)
	return sum.Sum64()
}

// fingerprint returns that of a desired object; 0: it must not exist.
func fingerprint(o *Object) uint64 {
	if o == nil {
		return 0
	}
	sum := fnv.New64a()
	_, _ = fmt.Fprintf(sum, "%q", []string{o.Identity.Cluster, o.Identity.Namespace, o.Identity.Name})
	_ = binary.Write(sum, binary.BigEndian, int64(len(o.Addrs)))
	for _, addr := range o.Addrs {
		bytes := addr.As16()
		_, _ = sum.Write(bytes[:])
	}
	return sum.Sum64()
}
