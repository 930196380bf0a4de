package mirror

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
)

// identity is what every object of the mirror namespace is remembered with.
type identity struct {
	name    string
	uid     types.UID
	version string // resourceVersion
	sum     sum
	// ours is whether the object carries our marks. Others' are never touched.
	ours bool
}

// ownService is a Service of the mirror namespace, as it is.
type ownService struct {
	identity
	id         ID     // origin; no cluster when it isn't known
	prefix     string // what is known of a mirror of the original tool
	global     bool
	clusters   []string // of a global service
	accepted   []string // those of them that are remote, the first accepted first; none: not known
	localFirst bool
	family     corev1.IPFamily // of its first address
	spec       Spec
}

// ownSlice is an EndpointSlice of the mirror namespace, as it is.
type ownSlice struct {
	identity
	service string
	family  discoveryv1.AddressType
	cluster string // where it is from; empty when it isn't known
}

func (h summer) ownService(s *corev1.Service) *ownService {
	o := &ownService{
		identity:   identity{name: s.Name, uid: s.UID, version: s.ResourceVersion, sum: h.service(s)},
		id:         ID{s.Annotations[annotCluster], Key{s.Annotations[annotNamespace], s.Annotations[annotName]}},
		prefix:     s.Labels[labelPrefix],
		global:     s.Labels[labelGlobal] == labelValue || s.Annotations[annotClusters] != "",
		localFirst: s.Spec.TrafficDistribution != nil,
		family:     primary(s),
		spec:       trimSpec(&s.Spec),
	}
	if o.global && o.id.Name == "" {
		// The original tool says it in the name alone.
		rest := strings.TrimPrefix(s.Name, globalPrefix+"-")
		o.id.Namespace, o.id.Name, _ = strings.Cut(rest, "-"+separator+"-")
	}
	if list := s.Annotations[annotClusters]; list != "" {
		o.clusters = strings.Split(list, ",")
	}
	if list := s.Annotations[annotAccepted]; list != "" {
		o.accepted = strings.Split(list, ",")
	}
	o.ours = o.global || s.Labels[labelMirrored] == labelValue || o.id.Cluster != ""
	return o
}

func (h summer) ownSlice(s *discoveryv1.EndpointSlice) *ownSlice {
	cluster := s.Annotations[annotCluster]
	if cluster == "" {
		cluster = s.Labels[legacySliceFrom]
	}
	return &ownSlice{
		identity: identity{
			name: s.Name, uid: s.UID, version: s.ResourceVersion, sum: h.slice(s),
			ours: s.Labels[discoveryv1.LabelManagedBy] == managedBy || s.Annotations[annotCluster] != "",
		},
		service: s.Labels[discoveryv1.LabelServiceName],
		family:  s.AddressType,
		cluster: cluster,
	}
}

// primary returns the family of a service's first address.
func primary(s *corev1.Service) corev1.IPFamily {
	if len(s.Spec.IPFamilies) == 0 {
		return ""
	}
	return s.Spec.IPFamilies[0]
}
