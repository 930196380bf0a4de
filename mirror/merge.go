package mirror

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/internal/status"
	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// part is the service of one cluster in a global service.
type part struct {
	set          *set // nil for what is remembered
	cluster      string
	origin       *origin.Service
	slices       map[string]*origin.Slice
	local        bool
	rank         int  // position in the order of acceptance, from 1; 0: new
	stale        bool // no contact for StaleAfter, or no longer configured
	drained      bool
	remembered   bool // the local object, for clusters whose state is unknown
	unconfigured bool // these clusters are no longer configured
	// names are those of the ports that a remembered part serves, by the names in its slices;
	// nil: it serves all of them.
	names map[string]string
}

// compareParts orders parts by precedence.
//
//  1. the remembered part: nothing changes before the other clusters have synced
//  2. the local cluster
//  3. accepted clusters, in the order of acceptance
//  4. new clusters, by creation time, which each cluster states itself, then by name
//  5. the remembered part of clusters that are no longer configured
//
// By creation time alone, a new cluster could decide by stating an early time.
func compareParts(a, b *part) int {
	return cmp.Or(
		boolCompare(a.unconfigured, b.unconfigured),
		-boolCompare(a.remembered, b.remembered),
		-boolCompare(a.local, b.local),
		-boolCompare(a.rank > 0, b.rank > 0),
		cmp.Compare(a.rank, b.rank),
		a.origin.Created.Compare(b.origin.Created),
		cmp.Compare(a.cluster, b.cluster),
	)
}

// merge merges the specs of sorted parts. An existing service stays headless, or not, as
// long as one part agrees, because a change would replace the service and its address for
// all clients. running is whether the existing service is headless; nil: there is none.
func merge(parts []*part, running *bool) (spec origin.Spec, localFirst bool, conflicts []status.Conflict) {
	first := parts[0].origin
	spec = origin.Spec{Traits: first.Spec.Traits}
	if running != nil && slices.ContainsFunc(parts, func(p *part) bool { return p.origin.Spec.Headless == *running }) {
		spec.Headless = *running
	}
	localFirst = first.LocalFirst
	for _, p := range parts {
		object := func(format string, args ...any) {
			if p.unconfigured {
				return
			}
			conflicts = append(conflicts, status.Conflict{Cluster: p.cluster, What: fmt.Sprintf(format, args...)})
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

// addPort adds a port unless spec has it, and returns a conflict, if any.
func addPort(spec *origin.Spec, port origin.Port) string {
	for _, have := range spec.Ports {
		same := have.Protocol == port.Protocol && have.Port == port.Port
		switch {
		case have.Name == port.Name && same:
			if have.AppProtocol != port.AppProtocol {
				return fmt.Sprintf("appProtocol of port %s", port)
			}
			return ""
		case have.Name == port.Name:
			return fmt.Sprintf("port %s: %s elsewhere", port, have)
		case same:
			return fmt.Sprintf("port %s: named %q elsewhere", port, have.Name)
		case have.Name == "" || port.Name == "":
			// Only a single port may go without a name.
			return fmt.Sprintf("port %s beside %s", port, have)
		}
	}
	spec.Ports = append(spec.Ports, port)
	return ""
}
