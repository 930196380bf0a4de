package peers

import (
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// Canonical returns what a node publishes in one form for each content, which has no text
// of the remote but the node's name: values that are not valid become v1alpha1.Invalid. A
// node and its canonical form become the same peer, or are rejected for the same reason.
func (n *Node) Canonical() *Node {
	all := *n
	all.parsed, all.prefixErrs = false, nil
	p := all.parse(0)
	r := &Node{Name: n.Name, Created: n.Created.UTC().Truncate(time.Second), Published: n.Published}
	switch {
	case p.keyErr == nil:
		r.PublicKey = p.key.String()
	case n.PublicKey != "":
		r.PublicKey = v1alpha1.Invalid
	}
	switch {
	case p.endpointErr != nil:
		r.Endpoint = v1alpha1.Invalid
	case p.endpoint.IsValid():
		r.Endpoint = p.endpoint.String()
	}
	for _, prefix := range p.prefixes {
		r.PodCIDRs = append(r.PodCIDRs, prefix.String())
	}
	if len(p.prefixErrs) > 0 {
		r.PodCIDRs = append(r.PodCIDRs, v1alpha1.Invalid)
	}
	for _, prefix := range p.allocated {
		r.Allocated = append(r.Allocated, prefix.String())
	}
	return r
}

// Parsed returns the node, or a copy of it, for repeated use in Desired: one that isn't
// parsed is parsed in each pass. At most maxPrefixes of its prefixes are used; 0: all.
func (n *Node) Parsed(maxPrefixes int) *Node { return n.parse(maxPrefixes) }
