package mirror

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/mirror/origin"
)

// maxEndpoints is the maximum number of addresses of an Endpoints object: Kubernetes' own
// controller truncates it and adds an annotation.
const maxEndpoints = 1000

// endpoints returns the Endpoints object with the addresses of one family of a service's
// slices, including retained ones. Its label prevents Kubernetes from mirroring it to slices, which would duplicate
// each endpoint.
func (t *Service) endpoints(namespace string, family corev1.IPFamily) *corev1.Endpoints { //nolint:staticcheck // See observedEndpoints.
	e := &corev1.Endpoints{ //nolint:staticcheck // See observedEndpoints.
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: t.Name,
			Labels: map[string]string{labelMirrored: labelValue, discoveryv1.LabelSkipMirror: labelValue},
		},
	}
	if t.Spec.Headless {
		e.Labels[corev1.IsHeadlessService] = ""
	}
	seen := map[netip.Addr]bool{}
	add := func(endpoints []origin.Endpoint, ports []discoveryv1.EndpointPort) {
		var subset corev1.EndpointSubset //nolint:staticcheck // See observedEndpoints.
		for i := range endpoints {
			from := &endpoints[i]
			if seen[from.Address] {
				continue
			}
			if len(seen) == maxEndpoints {
				e.Annotations = map[string]string{corev1.EndpointsOverCapacity: "truncated"}
				break
			}
			seen[from.Address] = true
			address := corev1.EndpointAddress{IP: from.Address.String(), Hostname: from.Hostname} //nolint:staticcheck // See observedEndpoints.
			if from.Ready == origin.False {
				subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
			} else {
				subset.Addresses = append(subset.Addresses, address)
			}
		}
		if len(subset.Addresses)+len(subset.NotReadyAddresses) == 0 {
			return
		}
		for _, p := range ports {
			if p.Port == nil {
				continue
			}
			subset.Ports = append(subset.Ports, corev1.EndpointPort{ //nolint:staticcheck // See observedEndpoints.
				Name: *p.Name, Protocol: *p.Protocol, Port: *p.Port, AppProtocol: p.AppProtocol,
			})
		}
		e.Subsets = append(e.Subsets, subset)
	}
	for i := range t.Slices {
		if w := &t.Slices[i]; string(w.origin.Family) == string(family) {
			add(w.Endpoints, w.origin.Ports)
		}
	}
	for i := range t.Keep {
		if r := &t.Keep[i]; string(r.slice.family) == string(family) {
			add(r.slice.Endpoints(), r.Ports)
		}
	}
	return e
}

// endpoints hashes an Endpoints object independently of the order of its parts, which the
// API server changes.
func (h summer) endpoints(e *corev1.Endpoints) sum { //nolint:staticcheck // See observedEndpoints.
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
