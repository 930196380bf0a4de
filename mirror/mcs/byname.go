package mcs

import "fmt"

// mergeByName sets the ports of a global service, whose endpoints serve each port on that of their
// own cluster with its name: the local offer's, then those of the others by rank. It returns what
// the offers have otherwise.
func (i *Import) mergeByName(own *Offer, offers []Offer) Conflict {
	conflict := Conflict{Oldest: offers[0].Cluster}
	take := func(o *Offer) {
		object := func(differs bool, what string) {
			if differs && !o.remembered {
				conflict.Differences = append(conflict.Differences, Difference{o.Cluster, what})
			}
		}
		object(o.Headless != i.Headless, "headless or not")
		object(o.PublishNotReady != i.PublishNotReady, "publishNotReadyAddresses")
		object(o.AffinityTimeout != i.AffinityTimeout, "session affinity")
		object(o.LocalFirst != i.LocalFirst, "routing strategy")
		for _, p := range o.Ports {
			what := i.addByName(p)
			object(what != "", what)
		}
	}
	if own != nil {
		take(own)
	}
	for n := range offers {
		if o := &offers[n]; o != own {
			take(o)
		}
	}
	return conflict
}

// addByName adds a port unless it exists, and returns why it differs from that or can't be added;
// empty: neither.
func (i *Import) addByName(p Port) string {
	for _, have := range i.Ports {
		switch same := have.Number() == p.Number(); {
		case have.Name == p.Name && same:
			if have.AppProtocol != p.AppProtocol {
				return fmt.Sprintf("appProtocol of port %s", p)
			}
			return ""
		case have.Name == p.Name:
			return fmt.Sprintf("port %s: %s elsewhere", p, have)
		case same:
			return fmt.Sprintf("port %s: named %q elsewhere", p, have.Name)
		case have.Name == "" || p.Name == "":
			// Only a single port may go without a name.
			return fmt.Sprintf("port %s beside %s", p, have)
		}
	}
	i.Ports = append(i.Ports, p)
	return ""
}
