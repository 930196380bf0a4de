package mirror

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// part is what one cluster adds to a global service.
type part struct {
	cluster    string
	origin     *Origin
	slices     map[string]*OriginSlice
	local      bool
	rank       int  // among those that were accepted before, from 1 on; 0: it wasn't
	stale      bool // out of contact for too long
	drained    bool
	remembered bool // the local object, in place of clusters of which nothing is known
	lingers    bool // those are no longer configured
}

// Conflict is what several services of one global service don't agree on. The
// first has its way, as compareParts orders them.
type Conflict struct {
	Cluster string `json:"cluster"` // whose wish is not granted
	What    string `json:"what"`
}

// compareParts orders parts: who comes first is right.
//
//  1. what is remembered: until the others were heard of, nothing that they may
//     have asked for is changed
//  2. the local cluster's
//  3. those that were accepted before, in that order
//  4. those that are new, by age, as each cluster states it, then by name
//  5. what is remembered of clusters that are no longer configured
//
// Age alone would let whoever joins last decide: it has but to state an early date.
func compareParts(a, b *part) int {
	return cmp.Or(
		boolCompare(a.lingers, b.lingers),
		-boolCompare(a.remembered, b.remembered),
		-boolCompare(a.local, b.local),
		-boolCompare(a.rank > 0, b.rank > 0),
		cmp.Compare(a.rank, b.rank),
		a.origin.Created.Compare(b.origin.Created),
		cmp.Compare(a.cluster, b.cluster),
	)
}

// merge makes one spec of those of all parts, which are sorted. Whether there is an
// address is for the first of them to say only where there is no service yet: one
// that runs keeps its kind as long as any part agrees with it, because another kind
// would be another service with another address, for all. Running says whether it
// is headless; nil: there is none.
func merge(parts []*part, running *bool) (spec Spec, localFirst bool, conflicts []Conflict) {
	first := parts[0].origin
	spec = Spec{Traits: first.Spec.Traits}
	if running != nil && slices.ContainsFunc(parts, func(p *part) bool { return p.origin.Spec.Headless == *running }) {
		spec.Headless = *running
	}
	localFirst = first.LocalFirst
	for _, p := range parts {
		object := func(format string, args ...any) {
			if p.lingers {
				return
			}
			conflicts = append(conflicts, Conflict{p.cluster, fmt.Sprintf(format, args...)})
		}
		t := p.origin.Spec.Traits
		spec.IPv4 = spec.IPv4 || t.IPv4
		spec.IPv6 = spec.IPv6 || t.IPv6
		switch {
		case t.Headless != spec.Headless:
			object("headless or not")
		case t.PublishNotReady != spec.PublishNotReady:
			object("publishNotReadyAddresses")
		case t.AffinityTimeout != spec.AffinityTimeout:
			object("session affinity")
		}
		if p.origin.LocalFirst != localFirst {
			object("routing strategy")
		}
		for _, port := range p.origin.Spec.Ports {
			if what := addPort(&spec, port); what != "" {
				object("%s", what)
			}
		}
	}
	return spec, localFirst, conflicts
}

// addPort adds a port unless it is there, and returns what stands against it.
func addPort(spec *Spec, port Port) string {
	for _, have := range spec.Ports {
		same := have.Protocol == port.Protocol && have.Port == port.Port
		switch {
		case have.Name == port.Name && same:
			if have.AppProtocol != port.AppProtocol {
				return fmt.Sprintf("appProtocol of port %s", describe(port))
			}
			return ""
		case have.Name == port.Name:
			return fmt.Sprintf("port %s: %s elsewhere", describe(port), describe(have))
		case same:
			return fmt.Sprintf("port %s: named %q elsewhere", describe(port), have.Name)
		case have.Name == "" || port.Name == "":
			// Only a single port may go without a name.
			return fmt.Sprintf("port %s beside %s", describe(port), describe(have))
		}
	}
	spec.Ports = append(spec.Ports, port)
	return ""
}

func describe(p Port) string {
	return strings.TrimSpace(fmt.Sprintf("%s %d/%s", p.Name, p.Port, p.Protocol))
}

// counting returns the parts whose endpoints count:
//
//	| part             | counts                                             |
//	| ---------------- | -------------------------------------------------- |
//	| drained          | where no other one has an endpoint that is ready    |
//	| out of contact   | where none in contact has one, nor a drained one    |
//	| any other        | always                                             |
//
// An empty service would be worse than an outdated one, or one of a cluster that is
// drained. The others are those that were left out.
func counting(parts []*part, ready func(p *part) bool) (counting, others []*part) {
	for _, out := range []func(p *part) bool{
		func(p *part) bool { return p.stale || p.drained },
		func(p *part) bool { return p.stale },
	} {
		counting, others = nil, nil
		for _, p := range parts {
			if out(p) {
				others = append(others, p)
			} else {
				counting = append(counting, p)
			}
		}
		if len(others) == 0 || slices.ContainsFunc(counting, ready) {
			return counting, others
		}
	}
	return parts, nil
}
