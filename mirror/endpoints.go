package mirror

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ownEndpoints is an Endpoints object of the mirror namespace, as it is.
type ownEndpoints struct{ identity }

// maxEndpoints is how many addresses an Endpoints object may have before
// Kubernetes' own controller cuts it off, and says so in an annotation.
const maxEndpoints = 1000

func (h summer) ownEndpoints(e *corev1.Endpoints) *ownEndpoints { //nolint:staticcheck // Deprecated, and asked for by SEMAPHORE_MIRROR_LEGACY_ENDPOINTS.
	return &ownEndpoints{identity{
		name: e.Name, uid: e.UID, version: e.ResourceVersion, sum: h.endpoints(e),
		ours: e.Labels[labelMirrored] == labelValue,
	}}
}

// endpoints returns the object of the deprecated API that says what the slices
// of a target do, for one family. Its label keeps Kubernetes from making
// slices of it, which would double each endpoint.
func (t *target) endpoints(namespace string, family corev1.IPFamily) *corev1.Endpoints { //nolint:staticcheck // See ownEndpoints.
	e := &corev1.Endpoints{ //nolint:staticcheck // See ownEndpoints.
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: t.name,
			Labels: map[string]string{labelMirrored: labelValue, discoveryv1.LabelSkipMirror: labelValue},
		},
	}
	if t.spec.Headless {
		e.Labels[corev1.IsHeadlessService] = ""
	}
	seen, total := map[netip.Addr]bool{}, 0
	for i := range t.slices {
		w := &t.slices[i]
		if string(w.source.Family) != string(family) {
			continue
		}
		var subset corev1.EndpointSubset //nolint:staticcheck // See ownEndpoints.
		for j := range w.source.Endpoints {
			from := &w.source.Endpoints[j]
			if seen[from.Address] || w.refuse && refusal(from.Address, w.source.Family, w.subnets) != "" {
				continue
			}
			if total == maxEndpoints {
				e.Annotations = map[string]string{corev1.EndpointsOverCapacity: "truncated"}
				break
			}
			total++
			seen[from.Address] = true
			address := corev1.EndpointAddress{IP: from.Address.String(), Hostname: from.Hostname} //nolint:staticcheck // See ownEndpoints.
			if from.Ready == False {
				subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
			} else {
				subset.Addresses = append(subset.Addresses, address)
			}
		}
		if len(subset.Addresses)+len(subset.NotReadyAddresses) == 0 {
			continue
		}
		for _, p := range w.source.Ports {
			if p.Port == nil {
				continue
			}
			subset.Ports = append(subset.Ports, corev1.EndpointPort{ //nolint:staticcheck // See ownEndpoints.
				Name: *p.Name, Protocol: *p.Protocol, Port: *p.Port, AppProtocol: p.AppProtocol,
			})
		}
		e.Subsets = append(e.Subsets, subset)
	}
	return e
}

// endpoints hashes an Endpoints object whatever the order of its parts, which
// the API server changes.
func (h summer) endpoints(e *corev1.Endpoints) sum { //nolint:staticcheck // See ownEndpoints.
	var all []string
	for i := range e.Subsets {
		s := &e.Subsets[i]
		var ports []string
		for _, p := range s.Ports {
			app := ""
			if p.AppProtocol != nil {
				app = *p.AppProtocol
			}
			ports = append(ports, fmt.Sprintf("%s/%s/%d/%s", p.Name, p.Protocol, p.Port, app))
		}
		slices.Sort(ports)
		list := strings.Join(ports, ",")
		for _, a := range s.Addresses {
			all = append(all, fmt.Sprint("ready ", a.IP, " ", a.Hostname, " ", a.NodeName != nil, a.TargetRef != nil, " ", list))
		}
		for _, a := range s.NotReadyAddresses {
			all = append(all, fmt.Sprint("not ready ", a.IP, " ", a.Hostname, " ", a.NodeName != nil, a.TargetRef != nil, " ", list))
		}
	}
	slices.Sort(all)
	return h.of(all, only(e.Labels, labelMirrored, discoveryv1.LabelSkipMirror, corev1.IsHeadlessService),
		only(e.Annotations, corev1.EndpointsOverCapacity))
}
