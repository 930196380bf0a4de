package mcs

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Import is the desired state of a ServiceImport, except its addresses.
type Import struct {
	Headless              bool
	Ports                 []Port
	AffinityTimeout       int32 // as in Offer
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy
	TrafficDistribution   string
	IPv4, IPv6            bool
	Labels, Annotations   map[string]string
	// Exports are those of the offers, by rank.
	Exports []Incumbent
}

// Conflict is what the exports of an import disagree about. The zero value is no conflict.
type Conflict struct {
	// Reasons are those of the API, in its order.
	Reasons []v1beta1.ServiceExportConditionReason
	// Differences are from what was decided, by rank of the cluster.
	Differences []Difference
}

// Difference is what one cluster exports otherwise.
type Difference struct{ Cluster, What string }

// reasons are all reasons for a conflict, in the order in which they are written.
//
//nolint:gochecknoglobals // Go has no constants of this type.
var reasons = []v1beta1.ServiceExportConditionReason{
	v1beta1.ServiceExportReasonPortConflict, v1beta1.ServiceExportReasonTypeConflict,
	v1beta1.ServiceExportReasonSessionAffinityConflict, v1beta1.ServiceExportReasonSessionAffinityConfigConflict,
	v1beta1.ServiceExportReasonAnnotationsConflict, v1beta1.ServiceExportReasonLabelsConflict,
	v1beta1.ServiceExportReasonInternalTrafficPolicyConflict, v1beta1.ServiceExportReasonTrafficDistributionConflict,
	v1beta1.ServiceExportReasonIPFamilyConflict,
}

// Merge returns the import of at least one ranked offer, and what they disagree about. Ports
// are united; everything else is the first one's. A running import stays headless, or not, as
// long as one offer agrees, because a change replaces its addresses for all clients. running
// is whether the running import is headless; nil: there is none.
func Merge(offers []Offer, running *bool) (Import, Conflict) {
	first := &offers[0]
	i := Import{
		Headless: first.Headless, AffinityTimeout: first.AffinityTimeout,
		InternalTrafficPolicy: first.InternalTrafficPolicy, TrafficDistribution: first.TrafficDistribution,
		Labels: first.Labels, Annotations: first.Annotations,
	}
	if running != nil && slices.ContainsFunc(offers, func(o Offer) bool { return o.Headless == *running }) {
		i.Headless = *running
	}
	found := map[v1beta1.ServiceExportConditionReason]bool{}
	var conflict Conflict
	for n := range offers {
		o := &offers[n]
		i.Exports = append(i.Exports, Incumbent{o.Cluster, o.Mark})
		i.IPv4, i.IPv6 = i.IPv4 || o.IPv4, i.IPv6 || o.IPv6
		var what []string
		for _, p := range o.Ports {
			if why := i.add(p); why != "" {
				what = append(what, why)
			}
		}
		object := func(reason v1beta1.ServiceExportConditionReason, differs bool, text string) {
			if differs {
				found[reason] = true
				what = append(what, text)
			}
		}
		object(v1beta1.ServiceExportReasonPortConflict, !samePorts(o.Ports, first.Ports), "ports "+list(o.Ports))
		object(v1beta1.ServiceExportReasonTypeConflict, o.Headless != i.Headless, "type "+string(typeOf(o.Headless)))
		object(v1beta1.ServiceExportReasonSessionAffinityConflict, (o.AffinityTimeout > 0) != (i.AffinityTimeout > 0), "session affinity "+string(affinityOf(o.AffinityTimeout)))
		object(v1beta1.ServiceExportReasonSessionAffinityConfigConflict, o.AffinityTimeout > 0 && i.AffinityTimeout > 0 && o.AffinityTimeout != i.AffinityTimeout, fmt.Sprintf("session affinity of %d s", o.AffinityTimeout))
		object(v1beta1.ServiceExportReasonAnnotationsConflict, !maps.Equal(o.Annotations, i.Annotations), "exported annotations")
		object(v1beta1.ServiceExportReasonLabelsConflict, !maps.Equal(o.Labels, i.Labels), "exported labels")
		object(v1beta1.ServiceExportReasonInternalTrafficPolicyConflict, o.InternalTrafficPolicy != i.InternalTrafficPolicy, fmt.Sprintf("internalTrafficPolicy %q", o.InternalTrafficPolicy))
		object(v1beta1.ServiceExportReasonTrafficDistributionConflict, o.TrafficDistribution != i.TrafficDistribution, fmt.Sprintf("trafficDistribution %q", o.TrafficDistribution))
		object(v1beta1.ServiceExportReasonIPFamilyConflict, o.IPv4 != first.IPv4 || o.IPv6 != first.IPv6, "IP families")
		if len(what) > 0 {
			conflict.Differences = append(conflict.Differences, Difference{o.Cluster, strings.Join(what, ", ")})
		}
	}
	for _, reason := range reasons {
		if found[reason] {
			conflict.Reasons = append(conflict.Reasons, reason)
		}
	}
	return i, conflict
}

// add adds a port unless it is there, and returns why it can't be added, if so.
func (i *Import) add(p Port) string {
	for _, have := range i.Ports {
		same := have.Protocol == p.Protocol && have.Port == p.Port
		switch {
		case have.Name == p.Name && same:
			return ""
		case have.Name == p.Name, same:
			return fmt.Sprintf("port %v, which is %v elsewhere", p, have)
		case have.Name == "" || p.Name == "":
			// Only a single port may go without a name.
			return fmt.Sprintf("port %v beside %v", p, have)
		}
	}
	if len(i.Ports) == maxPorts {
		return fmt.Sprintf("port %v, after %d others", p, maxPorts)
	}
	i.Ports = append(i.Ports, p)
	return ""
}

// maxPorts is the maximum number of ports of a Service that Kubernetes accepts in practice:
// a slice of it must name each of them.
const maxPorts = 100

// Serves reports whether an offer's endpoints serve a port of the import: whether the offer
// has the port with the number and protocol that won.
func (i *Import) Serves(o *Offer, name string) bool {
	same := func(a Port) func(Port) bool {
		return func(b Port) bool { return a.Name == b.Name && a.Protocol == b.Protocol && a.Port == b.Port }
	}
	for _, p := range o.Ports {
		if p.Name == name && slices.ContainsFunc(i.Ports, same(p)) {
			return true
		}
	}
	return false
}

// samePorts reports whether two lists have the same ports, in any order. Names are unique in
// each.
func samePorts(a, b []Port) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p Port) bool { return !slices.Contains(b, p) })
}

func list(ports []Port) string {
	text := make([]string, 0, maxNamed)
	for _, p := range ports[:min(len(ports), maxNamed)] {
		text = append(text, p.String())
	}
	if len(ports) > maxNamed {
		text = append(text, fmt.Sprintf("and %d more", len(ports)-maxNamed))
	}
	return strings.Join(text, ", ")
}

func typeOf(headless bool) v1beta1.ServiceImportType {
	if headless {
		return v1beta1.Headless
	}
	return v1beta1.ClusterSetIP
}

func affinityOf(timeout int32) corev1.ServiceAffinity {
	if timeout > 0 {
		return corev1.ServiceAffinityClientIP
	}
	return corev1.ServiceAffinityNone
}
