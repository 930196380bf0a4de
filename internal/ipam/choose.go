// Package ipam knows where the network plugins of clusters store the pod prefixes of nodes, for agents,
// which publish them, and for semaphorectl, which grants agents what they need to read them.
package ipam

import (
	"net/netip"
	"slices"
)

// Names of sources.
const (
	Auto   = "auto" // Choose's
	Node   = "node" // podCIDRs of the node's specification
	Calico = "calico"
	Cilium = "cilium"
	OVN    = "ovn"
	Pods   = "pods" // addresses of the node's pods
)

// Seen is the input of Choose.
type Seen struct {
	PodCIDRs []netip.Prefix // of the node's spec
	OVN      bool           // the node has its annotation
	// Cilium are the prefixes of the node's CiliumNode; CiliumIPAM is set if there is one.
	Cilium     []netip.Prefix
	CiliumIPAM bool
	Calico     bool // there are BlockAffinities, of any node
	Pods       bool // pods can be read
	// Forbidden are kinds that are served but that the agent may not read.
	Forbidden []string
}

// Choice is a source and the reason for it.
type Choice struct {
	Source string `json:"source"`
	Why    string `json:"why"`
}

// Grant is how an agent gets additional rights.
const Grant = "set the chart's wireguard.podPrefixes, or add a component of deploy/wireguard/pods"

// Choose returns the source for the setting Auto.
func Choose(s Seen) Choice {
	switch {
	case s.OVN:
		return Choice{OVN, "the node has OVN-Kubernetes' annotation"}
	case len(s.Cilium) > 0 && slices.Equal(s.Cilium, Sorted(slices.Clone(s.PodCIDRs))):
		return Choice{Node, "Cilium uses the node's podCIDRs"}
	case len(s.Cilium) > 0:
		return Choice{Cilium, "the node's CiliumNode has prefixes"}
	case s.Calico:
		return Choice{Calico, "Calico's address management is in use"}
	case s.CiliumIPAM && s.Pods:
		return Choice{Pods, "the node's CiliumNode has no prefixes"}
	case len(s.PodCIDRs) > 0 && len(s.Forbidden) > 0:
		return Choice{Node, "the node has podCIDRs, and the agent may not read " + s.Forbidden[0] + ", which exist: " + Grant}
	case len(s.PodCIDRs) > 0:
		return Choice{Node, "the node has podCIDRs"}
	case s.Pods:
		return Choice{Pods, "the node has no podCIDRs"}
	case len(s.Forbidden) > 0:
		return Choice{Node, "the agent may not read " + s.Forbidden[0] + ", which exist: " + Grant}
	}
	return Choice{Node, "the node has no podCIDRs, and no other source of its prefixes was found: set SEMAPHORE_WG_POD_CIDRS"}
}
