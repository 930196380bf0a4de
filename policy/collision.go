package policy

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
)

// Collision is an object with a hash in its name because another object has its natural
// name.
type Collision struct {
	Object   string
	Natural  string
	Identity Identity
	// Holder is the set that has the name; the zero Identity is a foreign object.
	Holder Identity
}

// collision returns the collision of an object; false: none. An invalid natural name is no
// collision, nor one that has become free: objects keep their names.
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

// condition returns the Event's content for a collision.
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

// conditions returns the conditions of each remote, for Events.
func (c *Controller) conditions() []event.Remote {
	remotes := make([]event.Remote, 0, len(c.Remotes))
	overridden := c.overridden()
	for i := range c.Remotes {
		name := c.Remotes[i].Rules.Cluster
		remote := event.Remote{Name: name, Summary: func(all []event.Condition) event.Condition {
			return summary(name, all)
		}}
		for j := range overridden[name] {
			o := &overridden[name][j]
			remote.Conditions = append(remote.Conditions, event.Condition{ID: "overridden " + o.Object, Reason: "Overridden", Message: o.String()})
		}
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

// summary returns the condition for many.
func summary(remote string, all []event.Condition) event.Condition {
	taken := 0
	for i := range all {
		if all[i].Reason == "NameTaken" {
			taken++
		}
	}
	c := event.Condition{ID: "all", Reason: "NamesTaken", Message: fmt.Sprintf(
		"%d network sets of %s have other names than they would, because those are taken; their labels say what they are", taken, remote)}
	if n := len(all) - taken; n > 0 {
		others := fmt.Sprintf("%d network sets of %s are changed again after each write, by an admission policy or another client", n, remote)
		if c.Reason = "Overridden"; taken > 0 {
			others += "; " + c.Message
		}
		c.Message = others
	}
	return c
}
