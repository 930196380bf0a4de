// Package peers decides who is on the other side of a tunnel: it turns the
// nodes of a remote cluster into WireGuard peers, publishes this node to the
// remote clusters, remembers the last applied peers on disk and tells from
// handshakes how each peer is.
package peers

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// maxAnnotation is how much of an annotation's value is kept, in bytes. The
// longest value that can be right is an IPv6 endpoint of 47 bytes; the API
// server stores up to 256 KiB, so a remote could otherwise make every node of
// ours hold that much for each of its own.
const maxAnnotation = 128

// maxPrefix is how much of one prefix's text is kept, in bytes: the longest IPv6
// prefix is shorter.
const maxPrefix = 64

// maxGiven is how many prefixes of a specification are kept beside those of the
// annotation. Kubernetes takes one of each family.
const maxGiven = 2

// PodCIDRsAnnotation names the node annotation with the prefixes whose traffic
// belongs to the node, sorted and comma-separated, the same for all clusters. A node
// without it has those of its specification, one with an empty one has none.
const PodCIDRsAnnotation = annotationGroup + "/podCIDRs"

// annotationGroup is what the names of our annotations begin with, after a cluster's
// name where they are about one.
const annotationGroup = "wireguard.semaphore.uw.io"

// PublicKeyAnnotation names the node annotation with the public key of the
// device that talks to the given cluster.
func PublicKeyAnnotation(cluster string) string {
	return cluster + "." + annotationGroup + "/pubKey"
}

// EndpointAnnotation names the node annotation with the endpoint, "address:port",
// of the device that talks to the given cluster.
func EndpointAnnotation(cluster string) string {
	return cluster + "." + annotationGroup + "/endpoint"
}

// Node is what a remote node says of itself, unchecked: the parts of a
// Kubernetes Node that decide whether and how it becomes a peer.
type Node struct {
	Name      string    `json:"name"`
	Created   time.Time `json:"created"`
	PublicKey string    `json:"publicKey"`
	Endpoint  string    `json:"endpoint"`
	PodCIDRs  []string  `json:"podCIDRs"`
	// Published says that PodCIDRs are those of the annotation, where none is no
	// fault, and not of the node's specification.
	Published bool `json:"published,omitempty"`
	// Given are the prefixes of the specification of a node that has the annotation:
	// what its control plane gave it. Those of a node without it are PodCIDRs.
	Given []string `json:"given,omitempty"`

	read *reading // what Desired reads of the above; nil: not read yet
}

// NodeFor returns a function that trims Kubernetes Nodes to what the agent of
// the cluster local reads of them, of each so many prefixes at most. Nodes that
// publish nothing for that cluster are left out.
func NodeFor(local string, maxPrefixes int) func(*corev1.Node) (Node, bool) {
	key, endpoint := PublicKeyAnnotation(local), EndpointAnnotation(local)
	return func(n *corev1.Node) (Node, bool) {
		node := Node{
			Name:      n.Name,
			Created:   n.CreationTimestamp.Time,
			PublicKey: shorten(n.Annotations[key]),
			Endpoint:  shorten(n.Annotations[endpoint]),
		}
		if node.PublicKey == "" && node.Endpoint == "" {
			return Node{}, false
		}
		given := specPodCIDRs(n)
		texts, published := publishedPrefixes(n, maxPrefixes+1)
		if node.Published = published; published {
			for _, text := range given[:min(len(given), maxGiven)] {
				node.Given = append(node.Given, keepPrefix(text))
			}
		} else {
			texts = given
		}
		// One more than count says that there are more.
		for _, text := range texts[:min(len(texts), maxPrefixes+1)] {
			node.PodCIDRs = append(node.PodCIDRs, keepPrefix(text))
		}
		// Once for each change of the node, instead of at each pass.
		node.read = read(node, maxPrefixes)
		return node, true
	}
}

// publishedPrefixes returns the parts of a node's annotation, at most so many, and
// whether it has one. They hold on to its text.
func publishedPrefixes(n *corev1.Node, most int) (parts []string, published bool) {
	text, published := n.Annotations[PodCIDRsAnnotation]
	if strings.TrimSpace(text) == "" {
		return nil, published
	}
	for part := range strings.SplitSeq(text, ",") {
		if len(parts) == most {
			break
		}
		parts = append(parts, strings.TrimSpace(part))
	}
	return parts, published
}

// specPodCIDRs returns the podCIDRs of a node's specification.
func specPodCIDRs(n *corev1.Node) []string {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return n.Spec.PodCIDRs
}

// keepPrefix returns a copy of what may be a prefix, which doesn't keep the text
// that it is a part of, cut where it is too long to be one.
func keepPrefix(text string) string {
	if len(text) <= maxPrefix {
		return strings.Clone(text)
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:maxPrefix/2], len(text))
}

// Equal tells whether two nodes would become the same peer.
func (n Node) Equal(o Node) bool {
	return n.Name == o.Name && n.PublicKey == o.PublicKey && n.Endpoint == o.Endpoint &&
		n.Created.Equal(o.Created) && n.Published == o.Published && slices.Equal(n.PodCIDRs, o.PodCIDRs) && slices.Equal(n.Given, o.Given)
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
