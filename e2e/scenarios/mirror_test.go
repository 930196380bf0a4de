package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// naming is a mesh of one node in each of two clusters, and in gcp the service mirror,
// kube-proxy, and CoreDNS with the server blocks of deploy/coredns.
type naming struct {
	*programs.Pair
	client *testbed.Pod // in gcp
	server *testbed.Pod // in aws
	dns    *programs.DNS
}

func startNaming(t *testing.T) *naming {
	t.Helper()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{}, tools.KubeProxy, tools.CoreDNS)
	ctx := within(t, 5*time.Minute)
	p, err := programs.StartPair(ctx, tb, program(t, programs.WireGuard), 1, nil)
	must(t, err)
	n := &naming{Pair: p, server: p.Pods[0], client: p.Pods[1]}
	must(t, programs.Grant(ctx, programs.ServiceMirror, p.AWS, p.GCP))
	replica, err := programs.Prepare(ctx, programs.Config{
		Name: programs.ServiceMirror, Replica: "service-mirror", Binary: program(t, programs.ServiceMirror), Port: 8080,
	}, n.client.Node, p.AWS)
	must(t, err)
	must(t, replica.Start())
	_, err = n.client.Node.StartKubeProxy(ctx)
	must(t, err)
	binaries, err := tools.Build(ctx, t.Output(), tools.CoreDNS)
	must(t, err)
	n.dns, err = programs.StartDNS(ctx, binaries[tools.CoreDNS], n.client.Node)
	must(t, err)
	must(t, p.WaitConnected(within(t, time.Minute)))
	return n
}

// answers waits until a query is answered with exactly these records.
func (n *naming) answers(t *testing.T, name string, kind dnsmessage.Type, want ...string) {
	t.Helper()
	slices.Sort(want)
	eventually(t, repair, name, func(ctx context.Context) error {
		got, err := n.dns.Ask(ctx, n.client, name, kind)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("%q, want %q", got, want)
		}
		return err
	})
}

// putService creates a service with one slice like those of Kubernetes' controllers.
func putService(t *testing.T, c *testbed.Cluster, namespace string, s *corev1.Service, pods ...*testbed.Pod) {
	t.Helper()
	_, err := c.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	_, err = c.Client().CoreV1().Services(namespace).Create(t.Context(), s, metav1.CreateOptions{})
	must(t, err)
	setPods(t, c, namespace, s, pods...)
}

// setPods makes pods the endpoints of a service, on one port for all of its ports. A service of
// both families has a slice for each.
func setPods(t *testing.T, c *testbed.Cluster, namespace string, s *corev1.Service, pods ...*testbed.Pod) {
	t.Helper()
	families := []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
	if s.Spec.IPFamilyPolicy == nil {
		families = families[:1]
	}
	for n, family := range families {
		setSlice(t, c, namespace, s, family, n, pods...)
	}
}

// setSlice makes the addresses number n of pods the endpoints of a service.
func setSlice(t *testing.T, c *testbed.Cluster, namespace string, s *corev1.Service, family discoveryv1.AddressType, n int, pods ...*testbed.Pod) {
	t.Helper()
	port, yes := int32(programs.PodPort), true
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", s.Name, n+1), Labels: maps.Clone(s.Labels)},
		AddressType: family,
	}
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, AppProtocol: p.AppProtocol, Port: &port})
	}
	slice.Labels[discoveryv1.LabelServiceName] = s.Name
	for i, pod := range pods {
		endpoint := discoveryv1.Endpoint{
			Addresses: []string{pod.Addresses[n].String()}, NodeName: &pod.Node.Name,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes},
		}
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			hostname := fmt.Sprintf("%s-%d", s.Name, i)
			endpoint.Hostname = &hostname
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
	}
	api := c.Client().DiscoveryV1().EndpointSlices(namespace)
	_, err := api.Create(t.Context(), slice, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = api.Update(t.Context(), slice, metav1.UpdateOptions{})
	}
	must(t, err)
}

func service(name string, marks ...string) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 8888, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, m := range marks {
		key, value, _ := strings.Cut(m, "=")
		s.Labels["mirror.semaphore.uw.io/"+key] = value
	}
	return s
}

// clusterIP waits for a service of the mirror namespace.
func (n *naming) clusterIP(t *testing.T, name string) string {
	t.Helper()
	var ip string
	eventually(t, repair, name, func(ctx context.Context) error {
		s, err := n.GCP.Client().CoreV1().Services(programs.Namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			ip = s.Spec.ClusterIP
		}
		return err
	})
	return ip
}

// request sends a request to a service by name from the pod in gcp: by CoreDNS, kube-proxy,
// and the tunnel. It returns the pod that answered.
func (n *naming) request(ctx context.Context, name string, port int) (string, error) {
	records, err := n.dns.Ask(ctx, n.client, name, dnsmessage.TypeA)
	if err != nil {
		return "", err
	}
	if len(records) == 0 {
		return "", errors.New("no address")
	}
	fields := strings.Fields(records[0])
	body, err := n.client.Get(ctx, fmt.Sprintf("http://%s:%d/", fields[2], port))
	answered, _, _ := strings.Cut(body, " ")
	return answered, err
}

// served waits until so many requests in a row are answered by exactly these
// pods.
func (n *naming) served(t *testing.T, name string, by ...*testbed.Pod) {
	t.Helper()
	want := map[string]bool{}
	for _, pod := range by {
		want[pod.Name] = true
	}
	eventually(t, 60*time.Second, "requests to "+name, func(ctx context.Context) error {
		got := map[string]bool{}
		for range 30 {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			pod, err := n.request(ctx, name, 8888)
			cancel()
			if err != nil {
				return err
			}
			got[pod] = true
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("answered by %v, want %v", got, want)
		}
		return nil
	})
}

// TestNames is the scenario of the source documents: a pod in gcp reaches
// services of aws by their names.
func TestNames(t *testing.T) {
	t.Parallel()
	n := startNaming(t)
	t.Run("a service", n.testService)
	t.Run("pods of a headless service", n.testHeadless)
	t.Run("names that don't exist", n.testNoSuchName)
	t.Run("pods that come and go under load", n.testRollout)
	t.Run("a global service, local first", n.testLocalFirst)
}

func (n *naming) testService(t *testing.T) {
	const name = "fluentd.sys-log.svc.cluster.aws"
	putService(t, n.AWS, "sys-log", service("fluentd", "mirror-service=true"), n.server)
	ip := n.clusterIP(t, "aws-sys-log-73736d-fluentd")
	// The response contains the requested name.
	n.answers(t, name, dnsmessage.TypeA, name+". A "+ip)
	n.answers(t, "_http._tcp."+name, dnsmessage.TypeSRV, fmt.Sprintf("_http._tcp.%s. SRV 8888 %s.", name, name))
	n.served(t, name, n.server)
}

func (n *naming) testHeadless(t *testing.T) {
	s := service("db", "mirror-service=true")
	s.Spec.ClusterIP = corev1.ClusterIPNone
	putService(t, n.AWS, "data", s, n.server)
	const name = "db.data.svc.cluster.aws"
	ip := n.server.Addresses[0].String()
	n.answers(t, name, dnsmessage.TypeA, name+". A "+ip)
	n.answers(t, "db-0."+name, dnsmessage.TypeA, "db-0."+name+". A "+ip)
	n.answers(t, "_http._tcp."+name, dnsmessage.TypeSRV, fmt.Sprintf("_http._tcp.%s. SRV 80 db-0.%s.", name, name))
	body, err := n.client.Get(within(t, repair), "http://"+ip+":80/")
	must(t, err)
	if !strings.HasPrefix(body, n.server.Name+" ") {
		t.Errorf("answered %q", body)
	}
}

func (n *naming) testNoSuchName(t *testing.T) {
	for _, name := range []string{
		"missing.sys-log.svc.cluster.aws", "missing.shop.svc.cluster.global", "db-9.db.data.svc.cluster.aws",
		"host.cluster.aws", "10-2-1-7.data.pod.cluster.aws", "svc.example.cluster.global", "sys-log.svc.cluster.aws",
	} {
		if got, err := n.dns.Ask(within(t, repair), n.client, name, dnsmessage.TypeA); err == nil || err.Error() != dnsmessage.RCodeNameError.String() {
			t.Errorf("%s: %q, %v, want that there is no such name", name, got, err)
		}
	}
	// The zone itself exists.
	if got, err := n.dns.Ask(within(t, repair), n.client, "cluster.aws", dnsmessage.TypeA); err != nil || len(got) > 0 {
		t.Errorf("cluster.aws: %q, %v, want no records", got, err)
	}
}

// testRollout replaces pods during requests; none may fail, and finally the new pods answer.
func (n *naming) testRollout(t *testing.T) {
	const name = "fluentd.sys-log.svc.cluster.aws"
	s := service("fluentd", "mirror-service=true")
	pods := []*testbed.Pod{n.server}
	ctx, cancel := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		defer close(failed)
		for ctx.Err() == nil {
			// Slow responses count: the machine may be busy.
			late, cancel := context.WithTimeout(context.WithoutCancel(ctx), repair)
			_, err := n.request(late, name, 8888)
			cancel()
			if err != nil {
				failed <- err
				return
			}
		}
	}()
	for range 4 {
		pod, err := n.server.Node.AddPod(t.Context(), testbed.PodConfig{})
		must(t, err)
		must(t, pod.Serve(t.Context(), programs.PodPort, nil))
		pods = append(pods, pod)
		setPods(t, n.AWS, "sys-log", s, pods[len(pods)-2:]...)
		n.served(t, name, pods[len(pods)-2:]...)
		setPods(t, n.AWS, "sys-log", s, pod)
		n.served(t, name, pod)
	}
	cancel()
	if err := <-failed; err != nil {
		t.Errorf("a request failed: %v", err)
	}
	setPods(t, n.AWS, "sys-log", s, n.server)
	n.served(t, name, n.server)
}

// testLocalFirst checks with a real kube-proxy that local endpoints are preferred, on nodes
// with a zone and without.
func (n *naming) testLocalFirst(t *testing.T) {
	const name = "web.shop.svc.cluster.global"
	here, err := n.client.Node.AddPod(t.Context(), testbed.PodConfig{})
	must(t, err)
	must(t, here.Serve(t.Context(), programs.PodPort, nil))
	everywhere := service("any", "global-service=true")
	first := service("web", "global-service=true", "global-service-routing-strategy=local-first")
	for _, s := range []*corev1.Service{everywhere, first} {
		putService(t, n.AWS, "shop", s, n.server)
		putService(t, n.GCP, "shop", s, here)
	}
	// Only with the label.
	n.served(t, "any.shop.svc.cluster.global", here, n.server)
	for _, zone := range []string{"", `"eu-west-1"`} {
		if zone != "" {
			must(t, n.client.Node.Patch(t.Context(), `{"metadata":{"labels":{"topology.kubernetes.io/zone":`+zone+`}}}`))
		}
		n.served(t, name, here)
		setPods(t, n.GCP, "shop", first)
		n.served(t, name, n.server)
		setPods(t, n.GCP, "shop", first, here)
		n.served(t, name, here)
	}
}
