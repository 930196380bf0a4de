// Package peers turns the nodes of a remote cluster into WireGuard peers, publishes this
// node to the remote clusters, stores the last applied peers on disk, and monitors peers
// by handshakes and probes.
package peers

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/tunnel"
)

// maxAnnotation bounds the stored bytes of an annotation's value. The longest valid value
// is an IPv6 endpoint of 47 bytes; the API server stores up to 256 KiB, which a remote
// could otherwise make every node of ours hold for each of its own.
const maxAnnotation = 128

// maxPrefix bounds the stored bytes of one prefix's text; the longest IPv6 prefix is
// shorter.
const maxPrefix = 64

// maxAllocated bounds the stored prefixes of spec.podCIDRs beside those of the annotation.
// Kubernetes allows one per family.
const maxAllocated = 2

// PodCIDRsAnnotation is the node annotation with the pod prefixes of the node, sorted and
// comma-separated, the same for all clusters. A node without it has those of
// spec.podCIDRs; an empty one means none.
const PodCIDRsAnnotation = annotationGroup + "/podCIDRs"

// annotationGroup is the prefix of our annotations' names, after a cluster's name where
// they are specific to one.
const annotationGroup = "wireguard.semaphore.uw.io"

// PublicKeyAnnotation returns the node annotation with the public key of the device to
// the given cluster.
func PublicKeyAnnotation(cluster string) string {
	return cluster + "." + annotationGroup + "/pubKey"
}

// EndpointAnnotation returns the node annotation with the endpoint, "address:port", of
// the device to the given cluster.
func EndpointAnnotation(cluster string) string {
	return cluster + "." + annotationGroup + "/endpoint"
}

// Node is a Kubernetes Node of a remote, unchecked, trimmed to the parts that make it a
// peer. It is immutable.
type Node struct {
	Name      string    `json:"name"`
	Created   time.Time `json:"created"`
	PublicKey string    `json:"publicKey"`
	Endpoint  string    `json:"endpoint"`
	PodCIDRs  []string  `json:"podCIDRs"`
	// Published is set when PodCIDRs are from the annotation, where none is no fault,
	// instead of spec.podCIDRs.
	Published bool `json:"published,omitempty"`
	// Given is spec.podCIDRs of a node with the annotation: what its control plane
	// allocated. For a node without it that is PodCIDRs.
	Allocated []string `json:"given,omitempty"`
	// Bare is set when only the metadata was read: what the control plane allocated isn't
	// known.
	Bare bool `json:"bare,omitempty"`

	// Parsed from the fields above by NodeFor, once per change of the node instead of in
	// each pass.

	parsed      bool
	key         tunnel.Key
	keyErr      error
	endpoint    netip.AddrPort // invalid: it publishes none
	endpointErr error
	prefixes    []netip.Prefix // masked, sorted, unique
	prefixErrs  []error        // of invalid ones
	more        bool           // there are more than the maximum
	allocated   []netip.Prefix // of Allocated: masked
}

// NodeFor returns a function that trims Kubernetes Nodes to what the agent of the cluster
// local needs, with at most maxPrefixes prefixes each. Nodes that publish nothing for that
// cluster are left out.
//
// pods is the map by which the cluster local knows pods of the nodes' cluster. Agents publish
// prefixes in virtual subnets once they translate, and a control plane knows no map: what it
// allocated is translated here, so that the prefix that a node publishes is the one that it was
// given. A node without the annotation doesn't translate, and its spec.podCIDRs are used as they
// are.
func NodeFor(local string, maxPrefixes int, pods config.SubnetMap) func(*corev1.Node) (*Node, bool) {
	trim := trimmer(local, maxPrefixes)
	return func(n *corev1.Node) (*Node, bool) {
		given := specPodCIDRs(n)
		if _, published := n.Annotations[PodCIDRsAnnotation]; published && len(pods) > 0 {
			given = translated(given[:min(len(given), maxAllocated)], pods)
		}
		return trim(&n.ObjectMeta, given, false)
	}
}

// translated returns prefixes as they are known by a map. One that has no translation is
// returned as it is.
func translated(texts []string, pods config.SubnetMap) []string {
	all := make([]string, len(texts))
	for i, text := range texts {
		all[i] = text
		if p, err := parsePrefix(text); err == nil {
			if p, err = pods.VirtualPrefix(p); err == nil {
				all[i] = p.String()
			}
		}
	}
	return all
}

// BareNodeFor is NodeFor of nodes that are read as metadata only, which Suffices must accept.
func BareNodeFor(local string, maxPrefixes int) func(*metav1.PartialObjectMetadata) (*Node, bool) {
	trim := trimmer(local, maxPrefixes)
	return func(n *metav1.PartialObjectMetadata) (*Node, bool) { return trim(&n.ObjectMeta, nil, true) }
}

// Suffices returns a function that reports whether a node's metadata has its prefixes, or
// whether the node publishes nothing for the agent of the cluster local.
func Suffices(local string) func(*metav1.PartialObjectMetadata) bool {
	key, endpoint := PublicKeyAnnotation(local), EndpointAnnotation(local)
	return func(n *metav1.PartialObjectMetadata) bool {
		_, published := n.Annotations[PodCIDRsAnnotation]
		return published || n.Annotations[key] == "" && n.Annotations[endpoint] == ""
	}
}

// created returns a time of creation, or the zero time if it can't be encoded again: a remote's node may have
// any year with any time zone.
func created(utc time.Time) time.Time {
	if _, err := utc.MarshalText(); err != nil {
		return time.Time{}
	}
	return utc
}

// trimmer returns a function that trims a node with given as its spec.podCIDRs. No API server has a node
// whose name isn't a DNS subdomain: in reports of paths such names would grow when they are encoded.
func trimmer(local string, maxPrefixes int) func(n *metav1.ObjectMeta, given []string, bare bool) (*Node, bool) {
	key, endpoint := PublicKeyAnnotation(local), EndpointAnnotation(local)
	return func(n *metav1.ObjectMeta, given []string, bare bool) (*Node, bool) {
		node := &Node{
			Name:      n.Name,
			Created:   created(n.CreationTimestamp.UTC()),
			PublicKey: shorten(n.Annotations[key]),
			Endpoint:  shorten(n.Annotations[endpoint]),
			Bare:      bare,
		}
		if node.PublicKey == "" && node.Endpoint == "" || len(validation.IsDNS1123Subdomain(node.Name)) > 0 {
			return nil, false
		}
		texts, published := publishedPrefixes(n, maxPrefixes+1)
		if node.Published = published; published {
			for _, text := range given[:min(len(given), maxAllocated)] {
				node.Allocated = append(node.Allocated, keepPrefix(text))
			}
		} else {
			texts = given
		}
		// One more than the bound marks that there are more.
		for _, text := range texts[:min(len(texts), maxPrefixes+1)] {
			node.PodCIDRs = append(node.PodCIDRs, keepPrefix(text))
		}
		return node.parse(maxPrefixes), true
	}
}

// publishedPrefixes returns at most most parts of a node's annotation, and whether it has
// one. The parts alias its text.
func publishedPrefixes(n *metav1.ObjectMeta, most int) (parts []string, published bool) {
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

// specPodCIDRs returns the podCIDRs of a node's spec.
func specPodCIDRs(n *corev1.Node) []string {
	if len(n.Spec.PodCIDRs) == 0 && n.Spec.PodCIDR != "" {
		return []string{n.Spec.PodCIDR}
	}
	return n.Spec.PodCIDRs
}

// keepPrefix returns a copy of a prefix's text, so that the annotation can be freed,
// truncated if it is too long to be valid.
func keepPrefix(text string) string {
	if len(text) <= maxPrefix {
		return strings.Clone(text)
	}
	return fmt.Sprintf("%s... (%d bytes)", text[:maxPrefix/2], len(text))
}

// Equal reports whether two nodes would become the same peer.
func (n *Node) Equal(o *Node) bool {
	return n.Name == o.Name && n.Bare == o.Bare && n.PublicKey == o.PublicKey && n.Endpoint == o.Endpoint &&
		n.Created.Equal(o.Created) && n.Published == o.Published && slices.Equal(n.PodCIDRs, o.PodCIDRs) && slices.Equal(n.Allocated, o.Allocated)
}

// shorten truncates a value that is too long to be valid, such that the result isn't
// valid either.
func shorten(value string) string {
	if len(value) <= maxAnnotation {
		return value
	}
	return fmt.Sprintf("%s... (%d bytes)", value[:maxAnnotation/2], len(value))
}

// older compares nodes by creation time, then by name.
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
