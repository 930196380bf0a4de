package kube

import (
	"bytes"
	"encoding/json"
	"errors"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	multiclusterv1 "sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// What is read of the objects of other clusters. The JSON decoder skips all other fields, so
// that an object takes little more memory than its text, whatever a hostile cluster sends: a
// list, whose elements may be much larger than their text, is a many, and a map a texts.

type nodeRead struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		PodCIDR  string       `json:"podCIDR"`
		PodCIDRs many[string] `json:"podCIDRs"`
	} `json:"spec"`
}

func (n *nodeRead) object() runtime.Object {
	return &corev1.Node{
		ObjectMeta: n.Metadata.object(),
		Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
	}
}

// nodeMetadata is what is read of a node as metadata only.
type nodeMetadata struct {
	Metadata metadata `json:"metadata"`
}

func (n *nodeMetadata) object() runtime.Object {
	return &metav1.PartialObjectMetadata{ObjectMeta: n.Metadata.object()}
}

type podRead struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		HostNetwork bool   `json:"hostNetwork"`
		NodeName    string `json:"nodeName"`
	} `json:"spec"`
	Status struct {
		Phase  corev1.PodPhase    `json:"phase"`
		PodIP  string             `json:"podIP"`
		PodIPs many[corev1.PodIP] `json:"podIPs"`
	} `json:"status"`
}

func (p *podRead) object() runtime.Object {
	return &corev1.Pod{
		ObjectMeta: p.Metadata.object(),
		Spec:       corev1.PodSpec{HostNetwork: p.Spec.HostNetwork, NodeName: p.Spec.NodeName},
		Status:     corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs},
	}
}

type serviceRead struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		Type                     corev1.ServiceType            `json:"type"`
		ClusterIP                string                        `json:"clusterIP"`
		Ports                    many[corev1.ServicePort]      `json:"ports"`
		IPFamilies               many[corev1.IPFamily]         `json:"ipFamilies"`
		SessionAffinity          corev1.ServiceAffinity        `json:"sessionAffinity"`
		SessionAffinityConfig    *corev1.SessionAffinityConfig `json:"sessionAffinityConfig"`
		PublishNotReadyAddresses bool                          `json:"publishNotReadyAddresses"`

		InternalTrafficPolicy *corev1.ServiceInternalTrafficPolicy `json:"internalTrafficPolicy"`
		TrafficDistribution   *string                              `json:"trafficDistribution"`
	} `json:"spec"`
}

func (s *serviceRead) object() runtime.Object {
	return &corev1.Service{ObjectMeta: s.Metadata.object(), Spec: corev1.ServiceSpec{
		Type: s.Spec.Type, ClusterIP: s.Spec.ClusterIP, Ports: s.Spec.Ports, IPFamilies: s.Spec.IPFamilies,
		SessionAffinity: s.Spec.SessionAffinity, SessionAffinityConfig: s.Spec.SessionAffinityConfig,
		PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses,
		InternalTrafficPolicy:    s.Spec.InternalTrafficPolicy, TrafficDistribution: s.Spec.TrafficDistribution,
	}}
}

type exportRead struct {
	Metadata metadata `json:"metadata"`
	Spec     struct {
		ExportedLabels      texts `json:"exportedLabels"`
		ExportedAnnotations texts `json:"exportedAnnotations"`
	} `json:"spec"`
	Status struct {
		Conditions many[metav1.Condition] `json:"conditions"`
	} `json:"status"`
}

func (e *exportRead) object() runtime.Object {
	return &multiclusterv1.ServiceExport{
		ObjectMeta: e.Metadata.object(),
		Spec:       multiclusterv1.ServiceExportSpec{ExportedLabels: e.Spec.ExportedLabels, ExportedAnnotations: e.Spec.ExportedAnnotations},
		Status:     multiclusterv1.ServiceExportStatus{Conditions: e.Status.Conditions},
	}
}

type sliceRead struct {
	Metadata    metadata                       `json:"metadata"`
	AddressType discoveryv1.AddressType        `json:"addressType"`
	Endpoints   many[discoveryv1.Endpoint]     `json:"endpoints"`
	Ports       many[discoveryv1.EndpointPort] `json:"ports"`
}

func (s *sliceRead) object() runtime.Object {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: s.Metadata.object(), AddressType: s.AddressType, Endpoints: s.Endpoints, Ports: s.Ports,
	}
}

type metadata struct {
	Name              string       `json:"name"`
	Namespace         string       `json:"namespace"`
	UID               types.UID    `json:"uid"`
	ResourceVersion   string       `json:"resourceVersion"`
	Generation        int64        `json:"generation"`
	CreationTimestamp metav1.Time  `json:"creationTimestamp"`
	DeletionTimestamp *metav1.Time `json:"deletionTimestamp"`
	Labels            texts        `json:"labels"`
	Annotations       texts        `json:"annotations"`
}

func (m *metadata) object() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: m.Name, Namespace: m.Namespace, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp, Labels: m.Labels, Annotations: m.Annotations,
	}
}

// maxCommas is the maximum number of commas in the text of a many, and so of its elements. A
// slice of 1,000 endpoints, the most that API servers accept, has some 20,000.
const maxCommas = 100_000

var errTooMany = errors.New("list of too many elements")

// many is a list whose elements take about 100 bytes of memory, and as little as two bytes of
// text.
type many[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (m *many[T]) UnmarshalJSON(text []byte) error {
	if bytes.Count(text, []byte{','}) > maxCommas {
		return errTooMany
	}
	return json.Unmarshal(text, (*[]T)(m))
}

// texts is a map with at most as many elements as a many. API servers accept 256 KiB of annotations,
// in which quotes may be escaped.
type texts map[string]string

// UnmarshalJSON implements json.Unmarshaler.
func (t *texts) UnmarshalJSON(text []byte) error {
	if bytes.Count(text, []byte{'"'}) > 4*maxCommas {
		return errTooMany
	}
	return json.Unmarshal(text, (*map[string]string)(t))
}

// ReadNodes returns a reader of nodes. The client is that of the cluster; see ListWatch.
func ReadNodes(client func() (Client, error)) *Reader {
	return &Reader{client: client, path: "/api/v1/nodes", decode: decodeAs[nodeRead]}
}

// ReadPods reads the pods of all namespaces. Restrict adds a selector to the options.
func ReadPods(client func() (Client, error), restrict func(*metav1.ListOptions)) *Reader {
	return &Reader{client: client, restrict: restrict, path: "/api/v1/pods", decode: decodeAs[podRead]}
}

// ReadServices reads Services; an empty namespace means all namespaces.
func ReadServices(client func() (Client, error), namespace string, restrict func(*metav1.ListOptions)) *Reader {
	return &Reader{client: client, restrict: restrict, path: inNamespace("/api/v1", namespace, "services"), decode: decodeAs[serviceRead]}
}

// ReadEndpointSlices reads EndpointSlices of all namespaces.
func ReadEndpointSlices(client func() (Client, error), restrict func(*metav1.ListOptions)) *Reader {
	return &Reader{client: client, restrict: restrict, path: "/apis/discovery.k8s.io/v1/endpointslices", decode: decodeAs[sliceRead]}
}

// ReadServiceExports reads ServiceExports of all namespaces. A cluster that doesn't serve the API
// has none.
func ReadServiceExports(client func() (Client, error)) *Reader {
	path := "/apis/" + multiclusterv1.GroupVersion.String() + "/" + multiclusterv1.ServiceExportPluralName
	return &Reader{client: client, path: path, decode: decodeAs[exportRead], optional: true}
}

func inNamespace(group, namespace, resource string) string {
	if namespace == "" {
		return group + "/" + resource
	}
	return group + "/namespaces/" + namespace + "/" + resource
}
