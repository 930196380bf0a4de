// Package v1alpha1 has the types of the API wireguardpeers.semaphore.uw.io/v1alpha1, in
// which semaphore-relay stores what agents need of the nodes of all clusters. The schema is
// in deploy/relay/crd.yaml.
package v1alpha1

import (
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

// WireguardPeers is either a shard, with some of the nodes of a cluster, or the index of a
// cluster, with the names of its shards.
//
//	name                  Spec.Shard  contents
//	<cluster>             ""          Shards
//	<cluster>.<shard>     <shard>     Nodes of the relay's own cluster, Peers of others
//
// The nodes of a cluster are completely known when its index exists, and all shards that
// the index lists. Nothing may be removed because of an incomplete set.
type WireguardPeers struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`
	Spec              Spec `json:"spec"`
}

// Spec is the content of an object.
type Spec struct {
	Cluster string `json:"cluster"`
	// Shard is empty for an index.
	Shard string `json:"shard,omitempty"`
	// Shards are sorted. An index without shards is that of a cluster without nodes.
	Shards []string `json:"shards,omitempty"`
	// Peers and Nodes are sorted by name.
	Peers []Peer `json:"peers,omitempty"`
	Nodes []Node `json:"nodes,omitempty"`
}

// Invalid stands for a value that was published and is not valid.
const Invalid = "invalid"

// Peer is a node of a remote cluster as it is published for the relay's own cluster.
type Peer struct {
	Name    string      `json:"name"`
	Created metav1.Time `json:"created,omitzero"`
	// PublicKey is in base64, Invalid, or empty: none is published.
	PublicKey string `json:"publicKey,omitempty"`
	// Endpoint is an address with a port, Invalid, or empty: none is published.
	Endpoint string `json:"endpoint,omitempty"`
	// PodCIDRs are masked, sorted and unique. Invalid, at the end, stands for all that are
	// not valid.
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// FromSpec is set when PodCIDRs are from the node's spec, because the node doesn't publish
	// any.
	FromSpec bool `json:"fromSpec,omitempty"`
	// Allocated are the podCIDRs of the spec of a node without FromSpec.
	Allocated []string `json:"allocated,omitempty"`
}

// Node is a node of the relay's own cluster, with the addresses and prefixes that no
// endpoint of a remote may have.
type Node struct {
	Name      string   `json:"name"`
	Addresses []string `json:"addresses,omitempty"`
	PodCIDRs  []string `json:"podCIDRs,omitempty"`
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
