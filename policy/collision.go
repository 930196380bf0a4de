package policy

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/event"
)

// collision returns the condition of an object with a hash in its name because another object has
// its natural name; false: there is none. An invalid natural name is no collision, nor one that
// has become free: objects keep their names.
func collision(object string, id Identity, get func(name string) *Observed) (event.Condition, bool) {
	if len(validation.IsDNS1123Subdomain(id.Natural(1))) > 0 {
		return event.Condition{}, false
	}
	natural := id.Natural(max(1, id.shardOf(object, manyShards)))
	o := get(natural)
	if o == nil || o.Owned && o.Identity == id {
		return event.Condition{}, false
	}
	holder := "an object that isn't ours has"
	if o.Owned {
		holder = fmt.Sprintf("%v has", o.Identity)
	}
	return event.Condition{
		ID: id.String() + " " + natural, Reason: "NameTaken",
		Message: fmt.Sprintf("the network set of %v is %s: %s the name %s", id, object, holder, natural),
	}, true
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
		sets := c.owned.all(func(cluster string) bool { return cluster == name })
		for _, object := range slices.Sorted(maps.Keys(sets)) {
			if sets[object].isNatural(object) {
				continue
			}
			if taken, is := collision(object, sets[object], c.ledger.Get); is {
				remote.Conditions = append(remote.Conditions, taken)
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
