package policy

import (
	"net/netip"
	"unique"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// Reason is why a pod, or one of its addresses, is in no set. It is a label value of a
// metric.
type Reason string

// The reasons. The first two are normal phases of a pod.
const (
	ReasonFinished    Reason = "finished"             // it succeeded or failed: its address may be another pod's
	ReasonNoAddress   Reason = "no_address"           // it has none yet
	ReasonHostNetwork Reason = "host_network"         // its address is that of a whole node
	ReasonBadName     Reason = "bad_name"             // label value or namespace can't be the value of a label
	ReasonBadAddress  Reason = "bad_address"          // not an address that a pod can have
	ReasonMoreAddress Reason = "more_than_one_family" // beyond one address of each family
	ReasonOutside     Reason = "outside_pod_subnets"  // not in the subnets configured for the remote
	ReasonTooManySets Reason = "too_many_sets"        // the remote has as many sets as it may

	// ReasonTooManyAddresses is for pods of a remote that has as many addresses in
	// its sets as it may.
	ReasonTooManyAddresses Reason = "too_many_addresses"
)

// abnormal are the reasons that are logged: the first two are normal phases of a pod.
var abnormal = []Reason{
	ReasonHostNetwork, ReasonBadName, ReasonBadAddress, ReasonMoreAddress, ReasonOutside, ReasonTooManySets, ReasonTooManyAddresses,
}

// maxReportedNameLen is the maximum length of an invalid name in reports.
const maxReportedNameLen = 64

// Pod is a trimmed pod of a remote cluster with the label. It doesn't reference the original
// object.
type Pod struct {
	Namespace, Name string
	// Set is the label's value.
	Set string
	// V4 and V6 are the pod's addresses, at most one per family; the zero Addr means none.
	V4, V6 netip.Addr
	// Finished pods have terminated, and have no address.
	Finished bool
	// HostNetwork pods have the addresses of their node.
	HostNetwork bool
	// Fault is what is invalid in the pod's names or addresses; empty: nothing.
	Fault Reason
}

// PodFor returns a function that trims a pod. It returns false without the label.
//
// A hostile remote may send anything: invalid names are truncated to save memory.
func PodFor(label string) func(*corev1.Pod) (Pod, bool) {
	return func(pod *corev1.Pod) (Pod, bool) {
		set, labelled := pod.Labels[label]
		if !labelled {
			return Pod{}, false
		}
		p := Pod{
			Namespace: pod.Namespace, Name: pod.Name, Set: set,
			Finished:    pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed,
			HostNetwork: pod.Spec.HostNetwork,
		}
		if set == "" || len(validation.IsValidLabelValue(set)) > 0 || len(validation.IsDNS1123Label(pod.Namespace)) > 0 ||
			len(validation.IsDNS1123Subdomain(pod.Name)) > 0 {
			p.Fault = ReasonBadName
			p.Namespace, p.Name, p.Set = cut(p.Namespace), cut(p.Name), cut(p.Set)
		}
		// Shared by thousands of pods.
		p.Namespace, p.Set = unique.Make(p.Namespace).Value(), unique.Make(p.Set).Value()
		if !p.Finished && p.Fault == "" {
			p.readAddrs(pod)
		}
		return p, true
	}
}

// readAddrs reads the addresses of status.podIPs, or else of status.podIP.
func (p *Pod) readAddrs(pod *corev1.Pod) {
	if len(pod.Status.PodIPs) == 0 && pod.Status.PodIP != "" {
		p.readAddr(pod.Status.PodIP)
	}
	for _, ip := range pod.Status.PodIPs {
		p.readAddr(ip.IP)
	}
}

func (p *Pod) readAddr(text string) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		p.Fault = ReasonBadAddress
		return
	}
	addr = addr.Unmap()
	field := &p.V6
	if addr.Is4() {
		field = &p.V4
	}
	switch {
	case !usable(addr):
		p.Fault = ReasonBadAddress
	case field.IsValid() && *field != addr:
		p.Fault = ReasonMoreAddress
	default:
		*field = addr
	}
}

// usable reports whether the address may be that of a reachable pod.
func usable(addr netip.Addr) bool {
	return addr.Zone() == "" && !addr.IsUnspecified() && !addr.IsLoopback() && !addr.IsMulticast() &&
		!addr.IsLinkLocalUnicast() && addr != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// cut shortens a name for reports. It copies, so that the rest can be freed.
func cut(name string) string {
	runes := []rune(name[:min(len(name), 4*maxReportedNameLen)])
	return string(runes[:min(len(runes), maxReportedNameLen)])
}

// newPods returns a feed of the pods of a remote with the label.
func newPods(cfg *Config, r *RemoteConfig, server *kube.Server, notify func()) *kube.Feed[Pod] {
	label := cfg.Labels.Pod()
	keep := PodFor(label)
	return kube.NewFeed(kube.WatchConfig[*Pod]{
		Cluster: r.Rules.Cluster, Server: server, Kind: "pods",
		Reader: kube.ReadPods(r.Client, func(options *metav1.ListOptions) { options.LabelSelector = label }),
		Keep: func(obj runtime.Object) (*Pod, bool) {
			pod, ok := obj.(*corev1.Pod)
			if !ok {
				return nil, false
			}
			p, labelled := keep(pod)
			return &p, labelled
		},
		Equal: func(a, b *Pod) bool { return *a == *b }, Notify: notify, Bounds: r.Bounds,
		Logger: cfg.Logger, Metrics: cfg.Watches,
	})
}

// newSets returns a feed of all network sets of the local cluster.
func newSets(cfg *Config, notify func()) *kube.Feed[Observed] {
	return kube.NewFeed(kube.WatchConfig[*Observed]{
		Cluster: cfg.Cluster, Kind: kube.NetworkSets,
		ListWatch: kube.ListWatch(cfg.Calico.resource, nil),
		Keep: func(obj runtime.Object) (*Observed, bool) {
			set, ok := obj.(*calico.GlobalNetworkSet)
			if !ok {
				return nil, false
			}
			o := cfg.Labels.observe(set)
			return &o, true
		},
		Equal: (*Observed).equal, Notify: notify,
		Logger: cfg.Logger, Metrics: cfg.Watches,
	})
}
