package peers

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
)

// LocationAnnotation names the node annotation with which an administrator says, of a
// single node, what SEMAPHORE_WG_ENDPOINT says of all: at which address the nodes of
// other clusters reach it. One whose name begins with a cluster and a dot says so for
// that cluster alone, which is for ports: each cluster's device has another one.
const LocationAnnotation = annotationGroup + "/endpoint-address"

// Location returns what this node's endpoint for a remote is made of: what its
// annotations say, or else what is configured. An error names the annotation.
func (s *Self) Location(remote string, configured endpoint.Source) (endpoint.Source, error) {
	for _, name := range []string{remote + "." + LocationAnnotation, LocationAnnotation} {
		text, annotated := s.Annotations[name]
		if !annotated {
			continue
		}
		source, err := endpoint.Parse(text)
		if err != nil {
			return endpoint.Source{}, fmt.Errorf("annotation %s of node %q: %q: %w", name, s.Name, text, err)
		}
		return source, nil
	}
	return configured, nil
}

// endpointFor returns the endpoint that this node publishes, as text: empty for a
// location of none.
func (s *Self) endpointFor(p *Publication) (string, error) {
	location, err := s.Location(p.Remote, p.Location)
	if err != nil {
		return "", err
	}
	addr, port := location.Addr, location.Port
	switch {
	case location.Type == endpoint.None:
		return "", nil
	case location.Type == endpoint.ExternalIP:
		addr, err = s.first(corev1.NodeExternalIP, s.ExternalIPs)
	case !addr.IsValid():
		addr, err = s.first(corev1.NodeInternalIP, s.InternalIPs)
	}
	if port == 0 {
		port = uint16(p.ListenPort)
	}
	return netip.AddrPortFrom(addr, port).String(), err
}

func (s *Self) first(kind corev1.NodeAddressType, addrs []netip.Addr) (netip.Addr, error) {
	if len(addrs) == 0 {
		return netip.Addr{}, fmt.Errorf("node %q has no %s in its status: remote nodes would have no endpoint", s.Name, kind)
	}
	return addrs[0], nil
}

// Hidden reports whether this node publishes no endpoint for a remote, so that it has
// to speak first. Where its annotations can't be read, what it published stays.
func (s *Self) Hidden(remote string, configured endpoint.Source) bool {
	location, err := s.Location(remote, configured)
	if err != nil {
		published, carried := s.Annotations[EndpointAnnotation(remote)]
		return carried && published == ""
	}
	return location.Type == endpoint.None
}
