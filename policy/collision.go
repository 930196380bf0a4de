package policy

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
)

// Collision is an object that has a hash at the end of its name because something
// else has the name that it would have.
type Collision struct {
	Object   string
	Natural  string
	Identity Identity
	// Holder is the set that has the name; the zero Identity is an object that
	// isn't ours.
	Holder Identity
}

// collision returns what has the name that an object would have; false: nothing. A
// name that isn't valid for an object is no collision, nor one that is free by now: an
// object keeps the name that it has.
func collision(object string, id Identity, get func(name string) *Observed) (Collision, bool) {
	if len(validation.IsDNS1123Subdomain(id.Natural(1))) > 0 {
		return Collision{}, false
	}
	natural := id.Natural(max(1, id.shardOf(object, manyShards)))
	o := get(natural)
	if o == nil || o.Owned && o.Identity == id {
		return Collision{}, false
	}
	return Collision{Object: object, Natural: natural, Identity: id, Holder: o.Identity}, true
}

// condition is what an Event says of a collision.
func (c Collision) condition() event.Condition {
	holder := "an object that isn't ours has"
	if c.Holder != (Identity{}) {
		holder = fmt.Sprintf("%v has", c.Holder)
	}
	return event.Condition{
		ID: c.Identity.String() + " " + c.Natural, Reason: "NameTaken",
		Message: fmt.Sprintf("the network set of %v is %s: %s the name %s", c.Identity, c.Object, holder, c.Natural),
	}
}

// conditions returns what Events say of the sets of each remote.
func (c *Controller) conditions() []event.Remote {
	remotes := make([]event.Remote, 0, len(c.Remotes))
	for i := range c.Remotes {
		name := c.Remotes[i].Rules.Cluster
		remote := event.Remote{Name: name, Summary: func(all []event.Condition) event.Condition {
			return event.Condition{ID: "all", Reason: "NamesTaken", Message: fmt.Sprintf(
				"%d network sets of %s have other names than they would, because those are taken; their labels say what they are",
				len(all), name)}
		}}
		r := c.remotes[name]
		r.mu.Lock()
		renamed := maps.Clone(r.renamed)
		r.mu.Unlock()
		for _, object := range slices.Sorted(maps.Keys(renamed)) {
			if taken, is := collision(object, renamed[object], c.ledger.Get); is {
				remote.Conditions = append(remote.Conditions, taken.condition())
			}
		}
		remotes = append(remotes, remote)
	}
	return remotes
}
