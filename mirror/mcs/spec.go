package mcs

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Spec is the part of a Service that imports and copies of it have.
type Spec struct {
	Traits
	Ports []Port
}

// Traits are the fields of a Spec except ports.
type Traits struct {
	Headless        bool
	PublishNotReady bool // imports don't have it
	// AffinityTimeout is in seconds; 0: sessions have no affinity.
	AffinityTimeout int32
	IPv4, IPv6      bool
}

// Port is one port of a Spec. Node ports aren't copied, and imports have no Target.
type Port struct {
	Name        string
	Protocol    corev1.Protocol
	Port        int32
	Target      intstr.IntOrString
	AppProtocol string
}

// Number returns what the port has apart from names.
func (p Port) Number() Number { return Number{p.Port, p.Protocol} }

// String returns the port as in "http 80/TCP".
func (p Port) String() string { return strings.TrimSpace(p.Name + " " + p.Number().String()) }

// Equal reports whether two specs are equal.
func (s *Spec) Equal(o *Spec) bool {
	return s.Traits == o.Traits && slices.Equal(s.Ports, o.Ports)
}
