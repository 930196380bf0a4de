package peers

import (
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// Stored returns a node of a remote as semaphore-relay stores it: in one form for each content, with
// no text of the remote but the node's name. Values that are not valid become v1alpha1.Invalid. What
// FromStored returns for it becomes the same peer, or is rejected for the same reason. False: no node
// of an API server has that name.
func (n *Node) Stored(cluster string) (*v1alpha1.Spec, bool) {
	if len(validation.IsDNS1123Subdomain(n.Name)) > 0 {
		return nil, false
	}
	all := *n
	all.parsed, all.prefixErrs = false, nil
	p := all.parse(0)
	s := &v1alpha1.Spec{
		Cluster: cluster, Name: n.Name, Created: metav1.Time{Time: n.Created.UTC().Truncate(time.Second)}, FromSpec: !n.Published,
		PodCIDRs: texts(p.prefixes), Allocated: texts(p.allocated),
	}
	switch {
	case p.keyErr == nil:
		s.PublicKey = p.key.String()
	case n.PublicKey != "":
		s.PublicKey = v1alpha1.Invalid
	}
	switch {
	case p.endpointErr != nil:
		s.Endpoint = v1alpha1.Invalid
	case p.endpoint.IsValid():
		s.Endpoint = p.endpoint.String()
	}
	if len(p.prefixErrs) > 0 {
		s.PodCIDRs = append(s.PodCIDRs, v1alpha1.Invalid)
	}
	return s, true
}

// FromStored returns a stored node of a remote, with at most maxPrefixes prefixes; 0: all.
func FromStored(s *v1alpha1.Spec, maxPrefixes int) *Node {
	n := &Node{
		Name: s.Name, Created: s.Created.Time, PublicKey: s.PublicKey, Endpoint: s.Endpoint,
		PodCIDRs: s.PodCIDRs, Published: !s.FromSpec, Allocated: s.Allocated,
	}
	if maxPrefixes > 0 {
		// One more than the maximum marks that there are more.
		n.PodCIDRs = n.PodCIDRs[:min(len(n.PodCIDRs), maxPrefixes+1)]
	}
	return n.parse(maxPrefixes)
}

// Stored returns a node of the relay's own cluster as semaphore-relay stores it.
func (n LocalNode) Stored(cluster string) *v1alpha1.Spec {
	return &v1alpha1.Spec{Cluster: cluster, Name: n.Name, Addresses: texts(n.Addrs), PodCIDRs: texts(n.PodCIDRs)}
}

// LocalFromStored returns a stored node of this cluster. An error is that of an object that the
// schema should have rejected.
func LocalFromStored(s *v1alpha1.Spec) (LocalNode, error) {
	n := LocalNode{Name: s.Name}
	for _, text := range s.Addresses {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return LocalNode{}, fmt.Errorf("address of node %q: %w", s.Name, err)
		}
		n.Addrs = append(n.Addrs, a)
	}
	for _, text := range s.PodCIDRs {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return LocalNode{}, fmt.Errorf("prefix of node %q: %w", s.Name, err)
		}
		n.PodCIDRs = append(n.PodCIDRs, p)
	}
	return n, nil
}

func texts[T fmt.Stringer](values []T) (all []string) {
	for _, v := range values {
		all = append(all, v.String())
	}
	return all
}
