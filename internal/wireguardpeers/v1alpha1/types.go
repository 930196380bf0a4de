// Package v1alpha1 has the types of the API wireguardpeers.semaphore.uw.io/v1alpha1, in
// which semaphore-relay stores what agents need of the nodes of all clusters. The schema is
// in deploy/relay/crd.yaml.
package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Names of the API.
const (
	Resource = "wireguardpeers"
	Kind     = "WireguardPeers"
	// ClusterLabel is the label with the value of Spec.Cluster.
	ClusterLabel = "semaphore.uw.io/cluster"
)

// GroupVersion is the group and version of the API.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: "semaphore.uw.io", Version: "v1alpha1"}
}

// AddToScheme adds the types to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(), &WireguardPeers{}, &WireguardPeersList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}

// WireguardPeers is either a node of a cluster, or a count of these objects. The kind is in the
// plural because it can't be changed once a CustomResourceDefinition exists.
//
//	name                 Spec.Name  contents
//	NodeName(...)        the node   its addresses, and keys and prefixes if the cluster is a remote
//	CountName(cluster)   ""         Count
//
// The nodes of a cluster are completely known when as many objects exist as the count says. Nothing
// may be removed because of an incomplete set.
type WireguardPeers struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec `json:"spec"`
}

// Spec is the content of an object.
type Spec struct {
	Cluster string `json:"cluster"`
	// Count is the number of objects with nodes of the cluster, of an object without Name.
	Count int `json:"count,omitempty"`
	// Name is that of the node.
	Name    string      `json:"name,omitempty"`
	Created metav1.Time `json:"created,omitzero"`
	// PublicKey is in base64, Invalid, or empty: none is published.
	PublicKey string `json:"publicKey,omitempty"`
	// Endpoint is an address with a port, Invalid, or empty: none is published.
	Endpoint string `json:"endpoint,omitempty"`
	// PodCIDRs are masked, sorted and unique. Invalid, at the end, stands for all that are
	// not valid.
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// FromSpec is set when PodCIDRs are from the spec of a node of a remote, because the node
	// doesn't publish any.
	FromSpec bool `json:"fromSpec,omitempty"`
	// Allocated are the podCIDRs of the spec of a node of a remote without FromSpec.
	Allocated []string `json:"allocated,omitempty"`
	// Addresses are those of a node of the relay's own cluster, which, as its PodCIDRs, no
	// endpoint of a remote may have.
	Addresses []string `json:"addresses,omitempty"`
}

// Invalid stands for a value that was published and is not valid.
const Invalid = "invalid"

// Equal reports whether two objects have the same content.
func (s *Spec) Equal(o *Spec) bool {
	return s.Cluster == o.Cluster && s.Count == o.Count && s.Name == o.Name && s.Created.Time.Equal(o.Created.Time) &&
		s.PublicKey == o.PublicKey && s.Endpoint == o.Endpoint && s.FromSpec == o.FromSpec &&
		slices.Equal(s.PodCIDRs, o.PodCIDRs) && slices.Equal(s.Allocated, o.Allocated) && slices.Equal(s.Addresses, o.Addresses)
}

// Names of nodes up to longestName are part of their objects' names. Of longer ones the first
// keptName bytes are, and the SHA-256 in hexadecimal, which make a name that none of the others has,
// because it is longer.
const (
	longestName = 188
	keptName    = 124
)

// NodeName returns the name of the object of a node: valid if both names are, at most 253 bytes,
// and different for each pair of names.
func NodeName(cluster, node string) string {
	if len(node) > longestName {
		sum := sha256.Sum256([]byte(node))
		node = node[:keptName] + "x" + hex.EncodeToString(sum[:])
	}
	return cluster + "." + node
}

// CountName returns the name of the object with the count of a cluster. It has no dot, as the name
// of a cluster, and so is never that of a node's object.
func CountName(cluster string) string { return cluster + "-nodes" }

// ObjectName returns the name of the object with this content.
func (s *Spec) ObjectName() string {
	if s.Name == "" {
		return CountName(s.Cluster)
	}
	return NodeName(s.Cluster, s.Name)
}

// WireguardPeersList is a list of objects.
type WireguardPeersList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []WireguardPeers `json:"items"`
}

// LeaseName returns the name of the Lease of a cluster. Its renewTime is up to when
// semaphore-relay knows the nodes of the cluster.
func LeaseName(cluster string) string { return "relay-" + cluster }

// Incomplete returns why the nodes of a cluster are not completely known from its objects; empty:
// they are. Counted is what its count says; negative: there is none.
func Incomplete(counted, objects int) string {
	switch {
	case counted < 0 && objects == 0:
		return "no objects"
	case counted < 0:
		return "the count of nodes is missing"
	case objects < counted:
		return fmt.Sprintf("%d of %d nodes are missing", counted-objects, counted)
	}
	return ""
}
