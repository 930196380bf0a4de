package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/mirror/mcs"
)

// sticky sets session affinity by client.
func sticky(seconds int32) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
}

func near(s *corev1.Service) {
	prefer := corev1.ServiceTrafficDistributionPreferClose
	s.Spec.TrafficDistribution = &prefer
}

// oneExport exports a Service of aws with everything that an import can have. That of gcp isn't
// exported.
func (m *imports) oneExport(t *testing.T, ns string) {
	m.in(t, ns, m.clusters...)
	grpc, name := "kubernetes.io/h2c", importName(ns)
	s := web(port("udp", 8888, corev1.ProtocolUDP), sticky(77), near, func(s *corev1.Service) {
		s.Labels["private"], s.Annotations = "service", map[string]string{"private": "service"}
		s.Spec.Ports[0].AppProtocol = &grpc
	})
	putService(t, m.aws, ns, s, m.servers[m.aws][0])
	putService(t, m.gcp, ns, web(), m.servers[m.gcp]...)
	m.unnamed(t, ns, m.clusters...)
	seen := m.watch(t, ns)
	m.export(t, m.aws, ns, func(x *v1beta1.ServiceExport) {
		x.Spec.ExportedLabels, x.Spec.ExportedAnnotations = map[string]string{"team": "a"}, map[string]string{"note": "b"}
	})
	m.exported(t, m.aws, ns, "Valid=True Valid", "Ready=True Exported", "Conflict=False NoConflicts")
	own, err := m.aws.Client().CoreV1().Services(ns).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	all := m.imported(t, ns, func(i *v1beta1.ServiceImport) error {
		var ports []string
		for _, p := range i.Spec.Ports {
			app := ""
			if p.AppProtocol != nil {
				app = *p.AppProtocol
			}
			ports = append(ports, fmt.Sprint(p.Name, p.Port, p.Protocol, app))
		}
		if slices.Sort(ports); !slices.Equal(ports, []string{"http8888TCP" + grpc, "udp8888UDP"}) {
			return fmt.Errorf("ports %q", ports)
		}
		if sp := i.Spec; sp.Type != v1beta1.ClusterSetIP || !equality.Semantic.DeepEqual([]any{
			sp.SessionAffinity, sp.SessionAffinityConfig, sp.InternalTrafficPolicy, sp.TrafficDistribution,
		}, []any{own.Spec.SessionAffinity, own.Spec.SessionAffinityConfig, own.Spec.InternalTrafficPolicy, own.Spec.TrafficDistribution}) {
			return fmt.Errorf("%+v", sp)
		}
		if i.Labels["team"] != "a" || i.Annotations["note"] != "b" || i.Labels["private"] != "" || i.Annotations["private"] != "" {
			return fmt.Errorf("labels %v, annotations %v", i.Labels, i.Annotations)
		}
		return from("aws")(i)
	})
	seen.complete(t, v1beta1.ClusterSetIP, 2)
	for n, c := range m.clusters {
		ips, families := all[n].Spec.IPs, all[n].Spec.IPFamilies
		if len(ips) != 2 || !slices.Equal(families, []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}) ||
			!netip.MustParseAddr(ips[0]).Is4() || !netip.MustParseAddr(ips[1]).Is6() {
			t.Fatalf("%s: addresses %v of families %v", c.Name, ips, families)
		}
		there, err := m.slices(t.Context(), c, ns)
		must(t, err)
		var got []string
		for i := range there {
			l := there[i].Labels
			if l[mcs.LabelSourceCluster] != "aws" || l[discoveryv1.LabelManagedBy] != programs.ServiceMirror || l[discoveryv1.LabelServiceName] != mcs.DerivedName(ns, "web") {
				t.Errorf("%s: labels of a slice %v", c.Name, l)
			}
			got = append(got, there[i].Endpoints[0].Addresses...)
		}
		want := []string{m.servers[m.aws][0].Addresses[0].String(), m.servers[m.aws][0].Addresses[1].String()}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: slices of %v, want %v", c.Name, got, want)
		}
		here := &naming{client: m.clients[slices.IndexFunc(m.clients, func(p *testbed.Pod) bool { return p.Node.Cluster == c })], dns: m.dns[c]}
		here.answers(t, name, dnsmessage.TypeA, name+". A "+ips[0])
		here.answers(t, name, dnsmessage.TypeAAAA, name+". AAAA "+ips[1])
		if c == m.aws {
			local := "web." + ns + ".svc.cluster.local"
			here.answers(t, local, dnsmessage.TypeA, local+". A "+own.Spec.ClusterIP)
		}
	}
	// Two ports of one number are one record.
	m.named(t, name, dnsmessage.TypeSRV, fmt.Sprintf("%s. SRV 8888 %s.", name, name))
	m.named(t, "_udp._udp."+name, dnsmessage.TypeSRV, fmt.Sprintf("_udp._udp.%s. SRV 8888 %s.", name, name))
	m.answered(t, ns, 8888, m.servers[m.aws][0])
	m.unexport(t, m.aws, ns)
	m.gone(t, ns, m.clusters...)
}

func (m *imports) headlessExport(t *testing.T, ns string) {
	m.in(t, ns, m.clusters...)
	name, servers := importName(ns), m.servers[m.gcp]
	putService(t, m.gcp, ns, web(headless, func(s *corev1.Service) { s.Spec.IPFamilyPolicy = nil }), servers...)
	own, err := m.gcp.Client().CoreV1().Services(ns).Get(t.Context(), "web", metav1.GetOptions{})
	must(t, err)
	seen := m.watch(t, ns)
	m.export(t, m.gcp, ns)
	m.imported(t, ns, func(i *v1beta1.ServiceImport) error {
		// By its families clients know which records to ask for.
		if i.Spec.Type != v1beta1.Headless || len(i.Spec.IPs) > 0 || !slices.Equal(i.Spec.IPFamilies, own.Spec.IPFamilies) {
			return fmt.Errorf("%+v", i.Spec)
		}
		return from("gcp")(i)
	})
	seen.complete(t, v1beta1.Headless, 1)
	for _, c := range m.clusters {
		there, err := m.slices(t.Context(), c, ns)
		must(t, err)
		if len(there) != 1 || len(there[0].Endpoints) != 2 || there[0].Labels[discoveryv1.LabelServiceName] != "" {
			t.Errorf("%s: slices %+v", c.Name, there)
		}
		if _, err := c.Client().CoreV1().Services(ns).Get(t.Context(), mcs.DerivedName(ns, "web"), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: derived Service: %v", c.Name, err)
		}
	}
	var addresses, ports []string
	for n, pod := range servers {
		host := fmt.Sprintf("web-%d.gcp.%s.", n, name)
		m.named(t, host[:len(host)-1], dnsmessage.TypeA, host+" A "+pod.Addresses[0].String())
		addresses = append(addresses, name+". A "+pod.Addresses[0].String())
		ports = append(ports, fmt.Sprintf("%s. SRV %d %s", name, programs.PodPort, host))
	}
	m.named(t, name, dnsmessage.TypeA, addresses...)
	m.named(t, name, dnsmessage.TypeSRV, ports...)
	m.answered(t, ns, programs.PodPort, servers...)
	m.unexport(t, m.gcp, ns)
	m.gone(t, ns, m.clusters...)
}

// onTheNode exports Services of aws and gcp whose requests must stay on their node.
func (m *imports) onTheNode(t *testing.T, ns string) {
	m.in(t, ns, m.clusters...)
	local := corev1.ServiceInternalTrafficPolicyLocal
	for _, c := range []*testbed.Cluster{m.aws, m.gcp} {
		putService(t, c, ns, web(func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }), m.servers[c]...)
		m.export(t, c, ns)
	}
	m.imported(t, ns, func(i *v1beta1.ServiceImport) error {
		if i.Spec.InternalTrafficPolicy == nil || *i.Spec.InternalTrafficPolicy != local {
			return fmt.Errorf("%+v", i.Spec)
		}
		return from("aws", "gcp")(i)
	})
	name := importName(ns)
	for _, client := range m.clients {
		eventually(t, patient, "requests of "+client.Name+" to stay on its node", func(ctx context.Context) error {
			for _, server := range slices.Concat(m.servers[m.aws], m.servers[m.gcp]) {
				if server.Node == client.Node {
					return m.ask(ctx, client, name, 8888, []*testbed.Pod{server})
				}
			}
			addresses, err := m.addresses(ctx, client, name) // the node has none
			for _, a := range addresses {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				answer, failed := client.Get(ctx, "http://"+net.JoinHostPort(a, "8888")+"/")
				cancel()
				if failed == nil {
					err = errors.Join(err, fmt.Errorf("%s answers %q", a, answer))
				}
			}
			return err
		})
	}
	for _, c := range []*testbed.Cluster{m.aws, m.gcp} {
		m.unexport(t, c, ns)
	}
	m.gone(t, ns, m.clusters...)
}

// unionOfPorts exports Services of aws and gcp, of which the latter has more ports. The import
// stays when the older export goes.
func (m *imports) unionOfPorts(t *testing.T, ns string) {
	m.in(t, ns, m.clusters...)
	aws, gcp := m.servers[m.aws], m.servers[m.gcp]
	putService(t, m.aws, ns, web(), aws...)
	m.export(t, m.aws, ns)
	before := m.imported(t, ns, from("aws"))
	seen := m.watch(t, ns)
	putService(t, m.gcp, ns, web(port("more", 8889, corev1.ProtocolTCP), port("sctp", 142, corev1.ProtocolSCTP)), gcp...)
	m.export(t, m.gcp, ns)
	for _, c := range []*testbed.Cluster{m.aws, m.gcp} {
		m.exported(t, c, ns, "Valid=True Valid", "Ready=True Exported", "Conflict=True PortConflict")
	}
	ports := func(want int, clusters ...string) func(*v1beta1.ServiceImport) error {
		return func(i *v1beta1.ServiceImport) error {
			if len(i.Spec.Ports) != want {
				return fmt.Errorf("ports %v", i.Spec.Ports)
			}
			return from(clusters...)(i)
		}
	}
	m.imported(t, ns, ports(3, "aws", "gcp"))
	m.answered(t, ns, 8888, slices.Concat(aws, gcp)...)
	m.answered(t, ns, 8889, gcp...)
	m.unexport(t, m.aws, ns)
	m.exported(t, m.gcp, ns, "Conflict=False NoConflicts")
	after := m.imported(t, ns, ports(3, "gcp"))
	for n := range before {
		if before[n].UID != after[n].UID || !slices.Equal(before[n].Spec.IPs, after[n].Spec.IPs) {
			t.Errorf("%s: another import", m.clusters[n].Name)
		}
	}
	m.answered(t, ns, 8888, gcp...)
	seen.complete(t, v1beta1.ClusterSetIP, 1)
	m.unexport(t, m.gcp, ns)
	m.gone(t, ns, m.clusters...)
}

// conflicts exports a Service of aws, and then one of gcp that differs: both exports have the
// condition. The import is as before, except in gcp, whose own export decides there on all but the
// type.
func (m *imports) conflicts(t *testing.T, ns string) {
	label := func(x *v1beta1.ServiceExport) { x.Spec.ExportedLabels = map[string]string{"team": "b"} }
	note := func(x *v1beta1.ServiceExport) { x.Spec.ExportedAnnotations = map[string]string{"note": "b"} }
	local := corev1.ServiceInternalTrafficPolicyLocal
	for _, c := range []struct {
		name, reason string
		first        func(*corev1.Service)
		second       func(*corev1.Service)
		export       func(*v1beta1.ServiceExport)
	}{
		{"port", "PortConflict", nil, port("http", 4242, corev1.ProtocolTCP), nil},
		{"type", "TypeConflict", nil, headless, nil},
		{"affinity", "SessionAffinityConflict", nil, sticky(10), nil},
		{"affinity-config", "SessionAffinityConfigConflict", sticky(20), sticky(10), nil},
		{"internal", "InternalTrafficPolicyConflict", nil, func(s *corev1.Service) { s.Spec.InternalTrafficPolicy = &local }, nil},
		{"distribution", "TrafficDistributionConflict", nil, near, nil},
		{"labels", "LabelsConflict", nil, nil, label},
		{"annotations", "AnnotationsConflict", nil, nil, note},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := ns + "-" + c.name
			m.in(t, ns, m.clusters...)
			putService(t, m.aws, ns, web(c.first), m.servers[m.aws]...)
			m.export(t, m.aws, ns)
			before := m.imported(t, ns, from("aws"))
			putService(t, m.gcp, ns, web(c.second), m.servers[m.gcp]...)
			m.export(t, m.gcp, ns, c.export)
			for _, exporter := range []*testbed.Cluster{m.aws, m.gcp} {
				m.exported(t, exporter, ns, "Valid=True Valid", "Conflict=True "+c.reason)
			}
			for n, i := range m.imported(t, ns, from("aws", "gcp")) {
				same := equality.Semantic.DeepEqual(i.Spec, before[n].Spec) && i.Labels["team"] == "" && i.Annotations["note"] == ""
				if same != (m.clusters[n] != m.gcp || c.name == "type") {
					t.Errorf("%s: %+v %v", m.clusters[n].Name, i, i.Labels)
				}
			}
			if c.name != "port" {
				return
			}
			m.answered(t, ns, 8888, m.servers[m.aws]...)
			m.unanswered(t, ns, []*testbed.Cluster{m.aws, m.merit}, 4242)
			m.answeredIn(t, importName(ns), []*testbed.Cluster{m.gcp}, 4242, m.servers[m.gcp]...)
			_, err := m.gcp.Client().CoreV1().Services(ns).Patch(t.Context(), "web", types.StrategicMergePatchType,
				[]byte(`{"spec":{"ports":[{"port":4242,"$patch":"delete"},{"name":"http","port":8888}]}}`), metav1.PatchOptions{})
			must(t, err)
			m.exported(t, m.gcp, ns, "Conflict=False NoConflicts")
			m.exported(t, m.aws, ns, "Conflict=False NoConflicts")
			m.answered(t, ns, 8888, slices.Concat(m.servers[m.aws], m.servers[m.gcp])...)
		})
	}
}

// invalid exports what can't be exported.
func (m *imports) invalid(t *testing.T, ns string) {
	m.in(t, ns, m.clusters...)
	m.export(t, m.aws, ns)
	m.exported(t, m.aws, ns, "Valid=False NoService", "Ready=False Failed")
	_, err := m.gcp.Client().CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"},
	}, metav1.CreateOptions{})
	must(t, err)
	m.export(t, m.gcp, ns)
	m.exported(t, m.gcp, ns, "Valid=False InvalidServiceType", "Ready=False Failed")
	m.gone(t, ns, m.clusters...)
}

// namespaces creates and deletes the namespace of an import in gcp. Kubernetes' controller of
// namespaces doesn't run: the test does what it would.
func (m *imports) namespaces(t *testing.T, ns string) {
	m.in(t, ns, m.aws, m.merit)
	putService(t, m.aws, ns, web(), m.servers[m.aws]...)
	m.export(t, m.aws, ns)
	m.answeredIn(t, importName(ns), []*testbed.Cluster{m.aws, m.merit}, 8888, m.servers[m.aws]...)
	m.unnamed(t, ns, m.gcp)
	api := m.gcp.Client().CoreV1().Namespaces()
	for range 2 {
		m.in(t, ns, m.gcp)
		m.answered(t, ns, 8888, m.servers[m.aws]...)
		must(t, api.Delete(t.Context(), ns, metav1.DeleteOptions{}))
		m.gone(t, ns, m.gcp)
		namespace, err := api.Get(t.Context(), ns, metav1.GetOptions{})
		must(t, err)
		namespace.Spec.Finalizers = nil
		_, err = api.Finalize(t.Context(), namespace, metav1.UpdateOptions{})
		must(t, err)
		eventually(t, time.Minute, "the end of the namespace", func(ctx context.Context) error {
			if _, err := api.Get(ctx, ns, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.Join(errors.New("it exists"), err)
			}
			return nil
		})
	}
	// A port that is added is served where the namespace is.
	more := port("more", 8889, corev1.ProtocolTCP)
	_, err := m.aws.Client().CoreV1().Services(ns).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"spec":{"ports":[{"name":"more","port":8889}]}}`), metav1.PatchOptions{})
	must(t, err)
	setPods(t, m.aws, ns, web(more), m.servers[m.aws]...)
	m.answeredIn(t, importName(ns), []*testbed.Cluster{m.aws, m.merit}, 8889, m.servers[m.aws]...)
}
