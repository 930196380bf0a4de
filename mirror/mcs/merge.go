package mcs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Import is the desired state of a ServiceImport, except its addresses.
type Import struct {
	Spec
	LocalFirst            bool // as in Offer; not in ServiceImports
	InternalTrafficPolicy corev1.ServiceInternalTrafficPolicy
	TrafficDistribution   string
	Labels, Annotations   map[string]string
	// Places are those of the exports, the first one first.
	Places []Place
}

// Conflict is what the exports of an import disagree about. Without reasons there is none.
type Conflict struct {
	// Oldest is the cluster of the first export by rank.
	Oldest string
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

// Exports are the exports of one namespace and name, as one cluster knows them.
type Exports struct {
	// Local is the cluster that the import is for.
	Local string
	// Offers are those of the clusters that are known, in any order.
	Offers []Offer
	// Places are those of the running import, or of one that has just gone.
	Places []Place
	// Running is the running import; nil: there is none.
	Running *Import
	// Unknown are clusters that may export, and can't be asked.
	Unknown []string
	// ByName is whether the ports of clusters are the same if their names are, as in global
	// services.
	ByName bool
	Now    time.Time
}

// Merge returns the import of at least one export, and what they disagree about:
//
//	| of the import | is                                                                      |
//	| ------------- | ----------------------------------------------------------------------- |
//	| ports         | the local export's, then those of the others by rank, without its own   |
//	| type          | that of the running one as long as an offer agrees, because a change replaces its addresses for all clients; else the first one's; but ClusterSetIP if the local export is |
//	| IP families   | those of all                                                            |
//	| all else      | the local export's; without one, the first one's                        |
//
// With ByName, the type is the running one as long as an offer agrees, the local one or another.
//
// The local export comes first for requests from its own cluster: what others state makes no
// cluster stop serving itself.
func (e *Exports) Merge() (Import, Conflict) {
	offers, places := e.rank()
	first, own := &offers[0], (*Offer)(nil)
	if at := slices.IndexFunc(offers, func(o Offer) bool { return o.Cluster == e.Local && !o.remembered }); at >= 0 {
		own = &offers[at]
	}
	i := Import{Places: places}
	i.Headless = first.Headless
	if r := e.Running; r != nil && slices.ContainsFunc(offers, func(o Offer) bool { return o.Headless == r.Headless }) {
		i.Headless = r.Headless
	}
	decides := first
	if own != nil {
		decides, i.Headless = own, i.Headless && (own.Headless || e.ByName)
	}
	i.PublishNotReady, i.LocalFirst = decides.PublishNotReady, decides.LocalFirst
	i.AffinityTimeout, i.Labels, i.Annotations = decides.AffinityTimeout, decides.Labels, decides.Annotations
	i.InternalTrafficPolicy, i.TrafficDistribution = decides.InternalTrafficPolicy, decides.TrafficDistribution
	for n := range offers {
		i.IPv4, i.IPv6 = i.IPv4 || offers[n].IPv4, i.IPv6 || offers[n].IPv6
	}
	if e.ByName {
		conflict := i.mergeByName(own, offers)
		return i, conflict
	}
	i.Ports = united(own, offers)
	for n := range offers {
		i.Places[placeOf(i.Places, offers[n].Cluster)].Ports = i.serves(&offers[n])
	}
	conflict := i.conflict(decides, offers)
	return i, conflict
}

// united returns the ports of an import of ranked offers.
//
// Ports of one number and protocol are one port, whatever their names: the first name wins. Of
// ports of one name and different numbers only the first one is served; in the cluster of the
// local export also its own, which keeps the name.
func united(own *Offer, offers []Offer) []Port {
	var all []Port
	for n := range offers {
		for _, p := range offers[n].Ports {
			all = with(all, p)
		}
	}
	if own == nil {
		return all
	}
	var ports []Port
	for _, p := range own.Ports {
		ports = with(ports, p)
	}
	for _, p := range all {
		if named(ports, p.Name) {
			p.Name = beside(p)
		}
		ports = with(ports, p)
	}
	return ports
}

// with returns ports with another one, if it can be added.
func with(ports []Port, p Port) []Port {
	has := slices.ContainsFunc(ports, func(have Port) bool { return have.Number() == p.Number() })
	// Only a single port may go without a name.
	unnamed := len(ports) > 0 && (p.Name == "" || ports[0].Name == "")
	if has || unnamed || named(ports, p.Name) || len(ports) == maxPorts {
		return ports
	}
	return append(ports, p)
}

func named(ports []Port, name string) bool {
	return slices.ContainsFunc(ports, func(p Port) bool { return p.Name == name })
}

// beside returns the name of a port beside another one that has its name, as in "http-80".
func beside(p Port) string {
	number := fmt.Sprintf("-%d", p.Port)
	name := cmp.Or(p.Name, "port")
	return strings.TrimRight(name[:min(len(name), validation.DNS1123LabelMaxLength-len(number))], "-") + number
}

// maxPorts is the maximum number of ports of a Service that Kubernetes accepts in practice:
// a slice of it must name each of them.
const maxPorts = 100

// serves returns the ports of the import that an offer has; nil: all of them.
func (i *Import) serves(o *Offer) []Number {
	served := []Number{}
	for _, p := range i.Ports {
		if slices.ContainsFunc(o.Ports, func(has Port) bool { return has.Number() == p.Number() }) {
			served = append(served, p.Number())
		}
	}
	if len(served) == len(i.Ports) {
		return nil
	}
	return served
}

// Name returns the name in the import of a port of an offer, which its endpoints serve under
// that name; false: they don't serve it.
func (i *Import) Name(o *Offer, name string) (in string, served bool) {
	of := slices.IndexFunc(o.Ports, func(p Port) bool { return p.Name == name })
	if of < 0 {
		return "", false
	}
	return i.nameOf(o.Ports[of].Number())
}

func (i *Import) nameOf(n Number) (string, bool) {
	at := slices.IndexFunc(i.Ports, func(p Port) bool { return p.Number() == n })
	if at < 0 {
		return "", false
	}
	return i.Ports[at].Name, true
}

// conflict returns what the offers have otherwise than the one that decides.
func (i *Import) conflict(decides *Offer, offers []Offer) Conflict {
	found := map[v1beta1.ServiceExportConditionReason]bool{}
	conflict := Conflict{Oldest: offers[0].Cluster}
	for n := range offers {
		o := &offers[n]
		var what []string
		object := func(reason v1beta1.ServiceExportConditionReason, differs bool, text string) {
			if differs {
				found[reason] = true
				what = append(what, text)
			}
		}
		if !samePorts(o.Ports, decides.Ports) {
			what = i.lost(o)
			object(v1beta1.ServiceExportReasonPortConflict, true, "ports "+list(o.Ports))
		}
		object(v1beta1.ServiceExportReasonTypeConflict, o.Headless != i.Headless, "type "+string(typeOf(o.Headless)))
		object(v1beta1.ServiceExportReasonSessionAffinityConflict, (o.AffinityTimeout > 0) != (i.AffinityTimeout > 0), "session affinity "+string(affinityOf(o.AffinityTimeout)))
		object(v1beta1.ServiceExportReasonSessionAffinityConfigConflict, o.AffinityTimeout > 0 && i.AffinityTimeout > 0 && o.AffinityTimeout != i.AffinityTimeout, fmt.Sprintf("session affinity of %d s", o.AffinityTimeout))
		object(v1beta1.ServiceExportReasonAnnotationsConflict, !maps.Equal(o.Annotations, i.Annotations), "exported annotations")
		object(v1beta1.ServiceExportReasonLabelsConflict, !maps.Equal(o.Labels, i.Labels), "exported labels")
		object(v1beta1.ServiceExportReasonInternalTrafficPolicyConflict, o.InternalTrafficPolicy != i.InternalTrafficPolicy, fmt.Sprintf("internalTrafficPolicy %q", o.InternalTrafficPolicy))
		object(v1beta1.ServiceExportReasonTrafficDistributionConflict, o.TrafficDistribution != i.TrafficDistribution, fmt.Sprintf("trafficDistribution %q", o.TrafficDistribution))
		object(v1beta1.ServiceExportReasonIPFamilyConflict, o.IPv4 != decides.IPv4 || o.IPv6 != decides.IPv6, "IP families")
		if len(what) > 0 {
			conflict.Differences = append(conflict.Differences, Difference{o.Cluster, strings.Join(what, ", ")})
		}
	}
	for _, reason := range reasons {
		if found[reason] {
			conflict.Reasons = append(conflict.Reasons, reason)
		}
	}
	return conflict
}

// lost returns the ports of an offer that aren't served, or under another name.
func (i *Import) lost(o *Offer) (what []string) {
	for _, p := range o.Ports {
		switch name, served := i.nameOf(p.Number()); {
		case len(what) == maxNamed:
			return what
		case !served:
			what = append(what, fmt.Sprintf("port %v, which is not served", p))
		case name == "" && p.Name != "":
			what = append(what, fmt.Sprintf("port %v, which is served without a name", p))
		case name != p.Name:
			what = append(what, fmt.Sprintf("port %v, which is served as %q", p, name))
		}
	}
	return what
}

// samePorts reports whether two lists have the same ports for clients, in any order. Names are
// unique in each.
func samePorts(a, b []Port) bool {
	differs := func(p Port) bool {
		return !slices.ContainsFunc(b, func(q Port) bool {
			q.Target = p.Target
			return p == q
		})
	}
	return len(a) == len(b) && !slices.ContainsFunc(a, differs)
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
