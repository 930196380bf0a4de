package mcs

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// Object returns the ServiceImport without a status. ips and families are those of its derived
// Service, none if it has none yet.
func (i *Import) Object(namespace, name string, ips []string, families []corev1.IPFamily) *v1beta1.ServiceImport {
	labels, annotations := maps.Clone(i.Labels), maps.Clone(i.Annotations)
	if labels == nil {
		labels = map[string]string{}
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	labels[LabelImported], annotations[AnnotExports] = "true", FormatPlaces(i.Places)
	if !i.Headless { // only then it has a derived Service
		annotations[AnnotDerived] = DerivedName(namespace, name)
	}
	o := &v1beta1.ServiceImport{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1beta1.GroupVersion.String(), Kind: v1beta1.ServiceImportKindName},
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels, Annotations: annotations},
		Spec: v1beta1.ServiceImportSpec{
			Type: typeOf(i.Headless), Ports: []v1beta1.ServicePort{}, IPs: ips, IPFamilies: families,
			SessionAffinity: affinityOf(i.AffinityTimeout), SessionAffinityConfig: affinityConfig(i.AffinityTimeout),
		},
	}
	if i.InternalTrafficPolicy != "" {
		o.Spec.InternalTrafficPolicy = &i.InternalTrafficPolicy
	}
	if i.TrafficDistribution != "" {
		o.Spec.TrafficDistribution = &i.TrafficDistribution
	}
	for _, p := range i.Ports {
		port := v1beta1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port}
		if p.AppProtocol != "" {
			port.AppProtocol = &p.AppProtocol
		}
		o.Spec.Ports = append(o.Spec.Ports, port)
	}
	return o
}

// Families returns the IP families that an import can have: those of its exports that the local
// cluster has, in the order of the cluster.
func (i *Import) Families(cluster []corev1.IPFamily) []corev1.IPFamily {
	var all []corev1.IPFamily
	for _, f := range cluster {
		if f == corev1.IPv4Protocol && i.IPv4 || f == corev1.IPv6Protocol && i.IPv6 {
			all = append(all, f)
		}
	}
	return all
}

// NodeLocal reports whether requests may be served only by endpoints on the node that they come
// from.
func (i *Import) NodeLocal() bool {
	return !i.Headless && i.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
}

// Traffic sets the fields of the derived Service by which requests find endpoints.
func (i *Import) Traffic(s *corev1.ServiceSpec) {
	policy := corev1.ServiceInternalTrafficPolicyCluster
	if i.NodeLocal() {
		policy = corev1.ServiceInternalTrafficPolicyLocal
	}
	s.InternalTrafficPolicy = &policy
	if d := i.TrafficDistribution; d != "" {
		s.TrafficDistribution = &d
	}
}

// ParseImport reads what Object returns.
func ParseImport(spec *v1beta1.ServiceImportSpec, labels, annotations map[string]string) Import {
	i := Import{
		Places: ParsePlaces(annotations[AnnotExports]),
		Labels: maps.Clone(labels), Annotations: maps.Clone(annotations),
	}
	i.Headless = spec.Type == v1beta1.Headless
	delete(i.Labels, LabelImported)
	delete(i.Annotations, AnnotExports)
	delete(i.Annotations, AnnotDerived)
	if c := spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		i.AffinityTimeout = *c.ClientIP.TimeoutSeconds
	}
	if p := spec.InternalTrafficPolicy; p != nil {
		i.InternalTrafficPolicy = *p
	}
	if p := spec.TrafficDistribution; p != nil {
		i.TrafficDistribution = *p
	}
	for _, family := range spec.IPFamilies {
		i.IPv4, i.IPv6 = i.IPv4 || family == corev1.IPv4Protocol, i.IPv6 || family == corev1.IPv6Protocol
	}
	for _, p := range spec.Ports {
		port := Port{Name: p.Name, Protocol: p.Protocol, Port: p.Port}
		if p.AppProtocol != nil {
			port.AppProtocol = *p.AppProtocol
		}
		i.Ports = append(i.Ports, port)
	}
	return i
}

func affinityConfig(timeout int32) *corev1.SessionAffinityConfig {
	if timeout <= 0 {
		return nil
	}
	return &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
}

// Owner returns the owner reference to an import of the objects that are made for it: they
// are deleted with it, also while no controller runs.
func Owner(name string, uid types.UID) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: v1beta1.GroupVersion.String(), Kind: v1beta1.ServiceImportKindName, Name: name, UID: uid}
}
