// Package peers decides who is on the other side of a tunnel: it turns the
// nodes of a remote cluster into WireGuard peers, publishes this node to the
// remote clusters, remembers the last applied peers on disk and tells from
// handshakes how each peer is.
package peers

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// maxAnnotation is how much of an annotation's value is kept, in bytes. The
// longest value that can be right is an IPv6 endpoint of 47 bytes; the API
// server stores up to 256 KiB, so a remote could otherwise make every node of
// ours hold that much for each of its own.
const maxAnnotation = 128

// maxPrefixes is how many prefixes of one node count. Kubernetes gives it one of
// each family; the rest is room for those that publish more.
const maxPrefixes = 32

// PublicKeyAnnotation names the node annotation with the public key of the
// device that talks to the given cluster.
func PublicKeyAnnotation(cluster string) string {
	return cluster + ".wireguard.semaphore.uw.io/pubKey"
}

// EndpointAnnotation names the node annotation with the endpoint, "address:port",
// of the device that talks to the given cluster.
func EndpointAnnotation(cluster string) string {
	return cluster + ".wireguard.semaphore.uw.io/endpoint"
}

// Node is what a remote node says of itself, unchecked: the parts of a
// Kubernetes Node that decide whether and how it becomes a peer.
type Node struct {
	Name      string    `json:"name"`
	Created   time.Time `json:"created"`
	PublicKey string    `json:"publicKey"`
	Endpoint  string    `json:"endpoint"`
	PodCIDRs  []string  `json:"podCIDRs"`

	read *reading // what Desired reads of the above; nil: not read yet
}

// NodeFor returns a function that trims Kubernetes Nodes to what the agent of
// the cluster local reads of them. Nodes that publish nothing for that cluster
// are left out.
func NodeFor(local string) func(*corev1.Node) (Node, bool) {
	key, endpoint := PublicKeyAnnotation(local), EndpointAnnotation(local)
	return func(n *corev1.Node) (Node, bool) {
		node := Node{
			Name:      n.Name,
			Created:   n.CreationTimestamp.Time,
			PublicKey: shorten(n.Annotations[key]),
			Endpoint:  shorten(n.Annotations[endpoint]),
		}
		// One more than count says that there are more.
		for _, value := range n.Spec.PodCIDRs[:min(len(n.Spec.PodCIDRs), maxPrefixes+1)] {
			node.PodCIDRs = append(node.PodCIDRs, shorten(value))
		}
		if len(node.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
			node.PodCIDRs = []string{shorten(n.Spec.PodCIDR)}
		}
		if node.PublicKey == "" && node.Endpoint == "" {
			return Node{}, false
		}
		// Once for each change of the node, instead of at each pass.
		node.read = read(node)
		return node, true
	}
}

// Equal tells whether two nodes would become the same peer.
func (n Node) Equal(o Node) bool {
	return n.Name == o.Name && n.PublicKey == o.PublicKey && n.Endpoint == o.Endpoint &&
		n.Created.Equal(o.Created) && slices.Equal(n.PodCIDRs, o.PodCIDRs)
}

// shorten cuts a value that is too long to be right, in a way that it can't
// become right by being cut.
func shorten(value string) string {
	if len(value) <= maxAnnotation {
		return value
	}
	return fmt.Sprintf("%s... (%d bytes)", value[:maxAnnotation/2], len(value))
}

// older orders nodes by the time they were created, then by name: of two nodes
// that claim the same thing the one that comes first keeps it.
func older(a, b *Node) int {
	if c := a.Created.Compare(b.Created); c != 0 {
		return c
	}
	switch {
	case a.Name < b.Name:
		return -1
	case a.Name > b.Name:
		return 1
	}
	return 0
}
