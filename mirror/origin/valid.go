package origin

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Bounds of one object. Those of slices are the API's (API reference of EndpointSlice). The
// API doesn't limit the ports of a Service except by the size of the object, which several
// clusters share in a global service.
const (
	maxServicePorts   = 1000
	maxSlicePorts     = 20000
	maxSliceEndpoints = 1000
)

// maxAffinity is the maximum session affinity in seconds (API reference of ClientIPConfig).
const maxAffinity = 86400

// fault returns why an API server would reject a Service with this spec, or an empty string.
// One invalid part would invalidate a whole global service.
func (s *Spec) fault() string {
	if s.AffinityTimeout < 0 || s.AffinityTimeout > maxAffinity {
		return fmt.Sprintf("session affinity of %d s", s.AffinityTimeout)
	}
	if len(s.Ports) > maxServicePorts {
		return fmt.Sprintf("%d ports", len(s.Ports))
	}
	type number struct {
		protocol corev1.Protocol
		port     int32
	}
	names, numbers := map[string]bool{}, map[number]bool{}
	for i := range s.Ports {
		p := &s.Ports[i]
		id := number{p.Protocol, p.Port}
		switch why := portFault(p.Name, p.Protocol, p.Port, p.AppProtocol); {
		case why != "":
			return why
		case p.Name == "" && len(s.Ports) > 1:
			return "one of several ports has no name"
		case names[p.Name] || numbers[id]:
			return fmt.Sprintf("duplicate port %.80q", p.String())
		case p.Target.Type == intstr.Int && len(validation.IsValidPortNum(p.Target.IntValue())) > 0,
			p.Target.Type == intstr.String && len(validation.IsValidPortName(p.Target.StrVal)) > 0:
			return fmt.Sprintf("target port %.80q", p.Target.String())
		}
		names[p.Name] = true
		numbers[id] = true
	}
	return ""
}

// fault returns why an API server would reject this EndpointSlice, or an empty string.
// Addresses are rejected individually, see Rejection.
func (s *Slice) fault() string {
	switch {
	case len(s.Ports) > maxSlicePorts:
		return fmt.Sprintf("%d ports", len(s.Ports))
	case len(s.Endpoints) > maxSliceEndpoints:
		return fmt.Sprintf("%d endpoints", len(s.Endpoints))
	}
	names := map[string]bool{}
	for i := range s.Ports {
		if why := slicePortFault(&s.Ports[i]); why != "" {
			return why
		}
		if names[*s.Ports[i].Name] {
			return fmt.Sprintf("duplicate port %q", *s.Ports[i].Name)
		}
		names[*s.Ports[i].Name] = true
	}
	return ""
}

func slicePortFault(p *discoveryv1.EndpointPort) string {
	number, app := int32(1), ""
	if p.Port != nil {
		number = *p.Port
	}
	if p.AppProtocol != nil {
		app = *p.AppProtocol
		if app == "" {
			return "an empty appProtocol"
		}
	}
	return portFault(*p.Name, *p.Protocol, number, app)
}

func portFault(name string, protocol corev1.Protocol, number int32, app string) string {
	switch protocol {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
	default:
		return fmt.Sprintf("protocol %.80q", string(protocol))
	}
	switch {
	case name != "" && len(validation.IsDNS1123Label(name)) > 0:
		return fmt.Sprintf("port name %.80q", name)
	case len(validation.IsValidPortNum(int(number))) > 0:
		return fmt.Sprintf("port number %d", number)
	case app != "" && len(validation.IsQualifiedName(app)) > 0:
		return fmt.Sprintf("appProtocol %.80q", app)
	}
	return ""
}
