package peers

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/endpoint"
)

// LocationAnnotation is the node annotation with which an administrator overrides
// SEMAPHORE_WG_ENDPOINT, the address at which nodes of other clusters reach a node, for a
// single node. Prefixed with a cluster's name and a dot it holds for that cluster alone,
// since each cluster's device has its own port.
const LocationAnnotation = annotationGroup + "/endpoint-address"

// Location returns the source of this node's endpoint for a remote, from its annotations
// or else as configured. An error names the annotation.
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

// endpointFor returns the endpoint that this node publishes; empty for endpoint.None.
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
		return netip.Addr{}, fmt.Errorf("node %q has no %s in its status to publish as endpoint", s.Name, kind)
	}
	return addrs[0], nil
}

// Hidden reports whether this node publishes no endpoint for a remote, so that it has to
// send first. With an invalid annotation the published endpoint counts.
func (s *Self) Hidden(remote string, configured endpoint.Source) bool {
	location, err := s.Location(remote, configured)
	if err != nil {
		published, carried := s.Annotations[EndpointAnnotation(remote)]
		return carried && published == ""
	}
	return location.Type == endpoint.None
}
