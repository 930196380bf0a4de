package origin

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Bounds of one object: a whole one is written for each changed byte. API servers accept 20,000
// ports of an EndpointSlice, of which its reference promises 100, and any number of a Service; a
// slice has those of its Service. The number of endpoints is theirs.
const (
	maxPorts     = 1000
	maxPortBytes = 64 << 10 // of names and appProtocols
	maxEndpoints = 1000
)

// maxAffinity is the maximum session affinity in seconds (API reference of ClientIPConfig).
const maxAffinity = 86400

// specFault returns why an API server would reject a Service with this spec, or an empty string.
// One invalid part would invalidate a whole global service.
func specFault(s *Spec) string {
	if s.AffinityTimeout < 0 || s.AffinityTimeout > maxAffinity {
		return fmt.Sprintf("session affinity of %d s", s.AffinityTimeout)
	}
	bytes := 0
	for i := range s.Ports {
		bytes += len(s.Ports[i].Name) + len(s.Ports[i].AppProtocol)
	}
	if why := tooLarge(len(s.Ports), bytes); why != "" {
		return why
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
	bytes := 0
	for i := range s.Ports {
		if bytes += len(*s.Ports[i].Name); s.Ports[i].AppProtocol != nil {
			bytes += len(*s.Ports[i].AppProtocol)
		}
	}
	if why := tooLarge(len(s.Ports), bytes); why != "" {
		return why
	}
	if n := len(s.Endpoints) + len(s.Unreadable); n > maxEndpoints {
		return fmt.Sprintf("%d endpoints: at most %d are copied", n, maxEndpoints)
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

// tooLarge returns why ports aren't copied, with the bytes of their names and appProtocols.
func tooLarge(ports, bytes int) string {
	switch {
	case ports > maxPorts:
		return fmt.Sprintf("%d ports: at most %d are copied", ports, maxPorts)
	case bytes > maxPortBytes:
		return fmt.Sprintf("names and appProtocols of %d bytes: at most %d are copied", bytes, maxPortBytes)
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
