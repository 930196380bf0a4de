package mcs

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"
)

// everything is an import, a derived Service of it and a slice with all that may be refused.
func everything() (*v1beta1.ServiceImport, *corev1.Service, *discoveryv1.EndpointSlice) {
	i := &Import{
		Spec: Spec{Traits{AffinityTimeout: 10}, []Port{
			{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, AppProtocol: "h2c"}, {Name: "sig", Protocol: corev1.ProtocolSCTP, Port: 90},
		}},
		InternalTrafficPolicy: "Local", TrafficDistribution: "PreferSameZone",
		Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"note": "b"},
	}
	o := i.Object("shop", "web", nil, nil)
	s := &corev1.Service{Spec: corev1.ServiceSpec{SessionAffinity: o.Spec.SessionAffinity, SessionAffinityConfig: o.Spec.SessionAffinityConfig}}
	i.Traffic(&s.Spec)
	sl := &discoveryv1.EndpointSlice{Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.4.0.1"}}}}
	text := "x"
	sl.Endpoints[0].Hostname, sl.Endpoints[0].NodeName, sl.Endpoints[0].Hints = &text, &text, &discoveryv1.EndpointHints{}
	for n := range i.Ports {
		p := &i.Ports[n]
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
		sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol})
		if p.AppProtocol != "" {
			s.Spec.Ports[n].AppProtocol, sl.Ports[n].AppProtocol = &p.AppProtocol, &p.AppProtocol
		}
	}
	return o, s, sl
}

// What is refused is written in an older form or left out, and everything else as it is desired.
func TestAccepted(t *testing.T) {
	distribution := func(d *string, unknown ...string) bool { return d != nil && slices.Contains(unknown, *d) }
	for _, c := range []struct {
		name    string
		refuses func(s *corev1.Service) bool
		instead string // "-": nothing is accepted
		check   func(s *corev1.Service) bool
	}{
		{
			"older than the value", func(s *corev1.Service) bool {
				return distribution(s.Spec.TrafficDistribution, "PreferSameZone", "PreferSameNode")
			},
			"trafficDistribution PreferSameZone as PreferClose", func(s *corev1.Service) bool { return *s.Spec.TrafficDistribution == "PreferClose" },
		},
		{
			"older than the field", func(s *corev1.Service) bool { return s.Spec.TrafficDistribution != nil },
			"no trafficDistribution PreferSameZone", func(s *corev1.Service) bool { return s.Spec.TrafficDistribution == nil },
		},
		{
			"of session affinity", func(s *corev1.Service) bool { return s.Spec.SessionAffinity == "ClientIP" },
			"no sessionAffinity of 10 s", func(s *corev1.Service) bool {
				return s.Spec.SessionAffinity == "None" && s.Spec.SessionAffinityConfig == nil
			},
		},
		{
			"of a policy of traffic", func(s *corev1.Service) bool { return *s.Spec.InternalTrafficPolicy == "Local" },
			"no internalTrafficPolicy Local", func(s *corev1.Service) bool { return *s.Spec.InternalTrafficPolicy == "Cluster" },
		},
		{
			"of protocols of applications", func(s *corev1.Service) bool { return s.Spec.Ports[0].AppProtocol != nil },
			"no appProtocol of ports", func(s *corev1.Service) bool { return len(s.Spec.Ports) == 2 && s.Spec.Ports[0].AppProtocol == nil },
		},
		{
			"of SCTP", func(s *corev1.Service) bool { return len(s.Spec.Ports) > 1 },
			"no SCTP ports", func(s *corev1.Service) bool {
				return s.Spec.Ports[0].Name == "http" && *s.Spec.Ports[0].AppProtocol == "h2c"
			},
		},
		{
			"of two", func(s *corev1.Service) bool {
				return *s.Spec.InternalTrafficPolicy == "Local" || distribution(s.Spec.TrafficDistribution, "PreferSameZone")
			},
			"trafficDistribution PreferSameZone as PreferClose, no internalTrafficPolicy Local", func(s *corev1.Service) bool { return s.Spec.SessionAffinity == "ClientIP" },
		},
		{"of something else", func(*corev1.Service) bool { return true }, "-", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, s, _ := everything()
			whole, tries := s.DeepCopy(), 0
			got, instead, ok := Accepted(s, ServiceOptions(s), func(s *corev1.Service) bool {
				tries++
				return !c.refuses(s)
			})
			if s.String() != whole.String() {
				t.Error("it changes the desired object")
			}
			if text := strings.Join(instead, ", "); ok != (c.instead != "-") || ok && (text != c.instead || c.refuses(got) || !c.check(got)) {
				t.Errorf("accepted: %v, %q, %+v", ok, text, got.Spec)
			}
			if most := 1 + 6; tries > most {
				t.Errorf("%d attempts of %d", tries, most)
			}
		})
	}
}

// Every field that comes from another cluster may go, and nothing of our own does.
func TestOptions(t *testing.T) {
	i, s, sl := everything()
	least, instead, _ := Accepted(i, ImportOptions(i), func(i *v1beta1.ServiceImport) bool {
		return len(i.Labels) == 1 && len(i.Annotations) == 2 && i.Spec.SessionAffinity == "None" && i.Spec.TrafficDistribution == nil &&
			i.Spec.InternalTrafficPolicy == nil && i.Spec.Ports[0].AppProtocol == nil
	})
	if len(instead) != 6 || least.Labels[LabelImported] == "" || least.Annotations[AnnotDerived] == "" || len(least.Spec.Ports) != 2 {
		t.Errorf("import: %q, %+v", instead, least)
	}
	slice, instead, _ := Accepted(sl, SliceOptions(sl), func(sl *discoveryv1.EndpointSlice) bool {
		e := sl.Endpoints[0]
		return len(sl.Ports) == 1 && sl.Ports[0].AppProtocol == nil && e.Hostname == nil && e.NodeName == nil && e.Hints == nil
	})
	if len(instead) != 5 || slice.Endpoints[0].Addresses[0] != "10.4.0.1" || *slice.Ports[0].Name != "http" {
		t.Errorf("slice: %q, %+v", instead, slice)
	}
	bare := &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}, {Port: 81}}}}
	if all := ServiceOptions(bare); len(all) > 0 || len(ServiceOptions(s)) != 5 {
		t.Errorf("options %+v", all)
	}
}
