package policy

import (
	"fmt"

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

// Collisions returns which of the objects that a plan is made of have another name
// because theirs is taken, in their order. Have are all objects there are, by name.
// A name that isn't valid for an object is no collision, nor one that is free by
// now: an object keeps the name that it has.
func Collisions(objects []Object, have map[string]Observed) []Collision {
	var collisions []Collision
	var planned map[string]Identity
	for i := range objects {
		o := &objects[i]
		if o.Identity.isNatural(o.Name) || len(validation.IsDNS1123Subdomain(o.Identity.Natural(1))) > 0 {
			continue
		}
		if planned == nil {
			planned = make(map[string]Identity, len(objects))
			for j := range objects {
				planned[objects[j].Name] = objects[j].Identity
			}
		}
		natural := o.Identity.Natural(max(1, o.Identity.shardOf(o.Name, len(objects))))
		holder, taken := planned[natural]
		if existing, exists := have[natural]; exists && !taken {
			taken, holder = true, Identity{}
			if existing.Owned {
				holder = existing.Identity
			}
		}
		if taken && holder != o.Identity {
			collisions = append(collisions, Collision{Object: o.Name, Natural: natural, Identity: o.Identity, Holder: holder})
		}
	}
	return collisions
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
	remotes := make([]event.Remote, len(c.remotes))
	for i, r := range c.remotes {
		state, _ := r.current()
		remotes[i] = event.Remote{Name: r.Rules.Cluster, Summary: func(all []event.Condition) event.Condition {
			return event.Condition{ID: "all", Reason: "NamesTaken", Message: fmt.Sprintf(
				"%d network sets of %s have other names than they would, because those are taken; their labels say what they are",
				len(all), r.Rules.Cluster)}
		}}
		for _, collision := range state.collisions {
			remotes[i].Conditions = append(remotes[i].Conditions, collision.condition())
		}
	}
	return remotes
}
