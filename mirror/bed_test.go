package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

const (
	home       = "sys-semaphore"
	mirrorMark = "mirror.semaphore.uw.io/mirror-service"
	globalMark = "mirror.semaphore.uw.io/global-service"
	firstMark  = "mirror.semaphore.uw.io/global-service-routing-strategy"
	// settle is how long something may take on a machine that is busy. After
	// an outage, watches try again every half minute at the latest.
	settle = time.Minute
)

// bed is three clusters: gcp is the local one, aws and merit its remotes. They
// have no controllers, so that endpoint slices are what a test makes of them.
type bed struct {
	tb              *testbed.Testbed
	gcp, aws, merit *testbed.Cluster
	accounts        map[string]*testbed.Credentials

	once   sync.Once
	binary string
	node   *testbed.Node
}

func newBed(t *testing.T) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	// Each answer about Endpoints says that they are deprecated.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	b := &bed{tb: testbed.Start(t, testbed.Config{}), accounts: map[string]*testbed.Credentials{}}
	all, err := b.tb.StartClusters(ctx, testbed.ClusterConfig{Name: "gcp"}, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "merit"})
	must(t, err)
	b.gcp, b.aws, b.merit = all[0], all[1], all[2]
	for _, c := range all {
		createNamespace(t, c, home)
		account, manifest := "semaphore-service-mirror-remote", "../deploy/remote/service-mirror.yaml"
		if c == b.gcp {
			account, manifest = "semaphore-service-mirror", "../deploy/service-mirror/rbac.yaml"
		}
		must(t, c.Apply(ctx, manifest))
		b.accounts[c.Name], err = c.Credentials(ctx, home, account)
		must(t, err)
	}
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func createNamespace(t *testing.T, c *testbed.Cluster, name string) {
	t.Helper()
	_, err := c.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// client is one with the rights of the account that our manifests make, over
// connections of its own.
func (b *bed) client(t *testing.T, c *testbed.Cluster) kubernetes.Interface {
	t.Helper()
	cfg := c.RESTConfig()
	cfg.CertData, cfg.KeyData = nil, nil
	cfg.BearerTokenFile = b.accounts[c.Name].TokenFile()
	cfg.UserAgent = "semaphore-service-mirror/test"
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kubernetes.NewForConfig(cfg)
	must(t, err)
	return client
}

func selector(t *testing.T, text string) labels.Selector {
	t.Helper()
	s, err := labels.Parse(text)
	must(t, err)
	return s
}

// config is that of the program with its defaults.
func (b *bed) config(t *testing.T) Config {
	t.Helper()
	cfg := Config{
		Cluster: b.gcp.Name, Namespace: home, Client: b.client(t, b.gcp),
		MirrorSelector:     selector(t, mirrorMark+"=true"),
		GlobalSelector:     selector(t, globalMark+"=true"),
		LocalFirstSelector: selector(t, firstMark+"=local-first"),
		Logger:             slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, c := range []*testbed.Cluster{b.aws, b.merit} {
		client := b.client(t, c)
		cfg.Remotes = append(cfg.Remotes, Remote{
			Name: c.Name, Prefix: c.Name, PodSubnets: c.PodSubnets,
			Client: func() (kubernetes.Interface, error) { return client, nil },
		})
	}
	return cfg
}

// instance is a controller that runs in this process, as the leader.
type instance struct {
	*Controller
	stop func()
}

func (b *bed) start(t *testing.T, adjust func(*Config)) *instance {
	t.Helper()
	cfg := b.config(t)
	if adjust != nil {
		adjust(&cfg)
	}
	return run(t, New(cfg))
}

// run runs a controller until the test ends or stop is called.
func run(t *testing.T, c *Controller) *instance {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	for _, task := range c.Tasks() {
		wg.Go(func() {
			if err := task.Run(ctx); err != nil {
				t.Errorf("%v: %v", task, err)
			}
		})
	}
	wg.Go(func() {
		if err := c.Lead(ctx); err != nil {
			t.Errorf("lead: %v", err)
		}
	})
	i := &instance{Controller: c}
	i.stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(i.stop)
	return i
}

// wait fails the test when the condition doesn't come true.
func wait(t *testing.T, what string, condition func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settle)
	defer cancel()
	if err := testbed.Wait(ctx, what, func(context.Context) error { return condition() }); err != nil {
		t.Fatal(err)
	}
}

// inOrder waits until what is in gcp equals what a computation from nothing
// says of what is in all three clusters now.
func (b *bed) inOrder(t *testing.T, i *instance) {
	t.Helper()
	wait(t, "what must be", func() error { return b.differs(t.Context(), i.cfg) })
}

// differs compares what is in gcp with what must be, for a configuration.
func (b *bed) differs(ctx context.Context, cfg Config) error {
	sums := newSummer()
	own := newHoldings()
	clusters := []clusterConfig{{name: cfg.Cluster, local: true}}
	for i := range cfg.Remotes {
		clusters = append(clusters, clusterConfig{name: cfg.Remotes[i].Name, prefix: cfg.Remotes[i].Prefix, subnets: cfg.Remotes[i].PodSubnets})
	}
	p := newPlan(clusters, (&Controller{cfg: cfg}).kinds, own)
	views := map[setID]setView{}
	for _, id := range p.order {
		v, err := b.view(ctx, cfg, id)
		if err != nil {
			return err
		}
		views[id] = v
	}
	p.update(views, []string{""}, nil)

	want := map[string]sum{}
	for _, tg := range p.targets {
		want["service "+tg.name] = sums.service(tg.service(home))
		for i := range tg.slices {
			object := tg.slices[i].object(home, tg)
			want["slice "+object.Name] = sums.slice(object)
		}
	}
	have := map[string]sum{}
	services, err := b.gcp.Client().CoreV1().Services(home).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range services.Items {
		if o := sums.ownService(&services.Items[i]); o.ours {
			have["service "+o.name] = o.sum
		}
	}
	slicesNow, err := b.gcp.Client().DiscoveryV1().EndpointSlices(home).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range slicesNow.Items {
		if o := sums.ownSlice(&slicesNow.Items[i]); o.ours {
			have["slice "+o.name] = o.sum
		}
	}
	return difference(have, want)
}

func difference(have, want map[string]sum) error {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(want)) {
		switch s, ok := have[name]; {
		case !ok:
			lines = append(lines, "missing: "+name)
		case s != want[name]:
			lines = append(lines, "different: "+name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[name]; !ok {
			lines = append(lines, "surplus: "+name)
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return errors.New(strings.Join(lines[:min(len(lines), 20)], "\n"))
}

func (b *bed) view(ctx context.Context, cfg Config, id setID) (setView, error) {
	c := b.cluster(id.cluster)
	options := metav1.ListOptions{LabelSelector: cfg.MirrorSelector.String()}
	if id.kind == globalSet {
		options.LabelSelector = cfg.GlobalSelector.String()
	}
	services, err := c.Client().CoreV1().Services("").List(ctx, options)
	if err != nil {
		return setView{}, err
	}
	all, err := c.Client().DiscoveryV1().EndpointSlices("").List(ctx, options)
	if err != nil {
		return setView{}, err
	}
	v := setView{known: true}
	for i := range services.Items {
		v.services = append(v.services, TrimService(&services.Items[i], cfg.LocalFirstSelector))
	}
	for i := range all.Items {
		if s, ok := TrimSlice(&all.Items[i]); ok {
			v.slices = append(v.slices, s)
		}
	}
	return v, nil
}

func (b *bed) cluster(name string) *testbed.Cluster {
	for _, c := range []*testbed.Cluster{b.gcp, b.aws, b.merit} {
		if c.Name == name {
			return c
		}
	}
	return nil
}

// svc is a service as a test wants it to be.
func svc(name string, adjust ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{mirrorMark: "true"}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, f := range adjust {
		f(s)
	}
	return s
}

func global(s *corev1.Service) { s.Labels = map[string]string{globalMark: "true"} }

func localFirst(s *corev1.Service) { s.Labels[firstMark] = "local-first" }

func headless(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }

func ports(list ...corev1.ServicePort) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.Ports = list }
}

// slice is an endpoint slice of a service, as Kubernetes' controller makes it:
// with the service's labels, and all that must not be taken over.
func slice(of *corev1.Service, name string, ips ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: maps.Clone(of.Labels)},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	s.Labels[discoveryv1.LabelServiceName] = of.Name
	s.Labels[discoveryv1.LabelManagedBy] = "endpointslice-controller.k8s.io"
	for _, p := range of.Spec.Ports {
		port := p.Port + 8000
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &port, AppProtocol: p.AppProtocol})
	}
	s.Endpoints = endpoints(ips...)
	if len(ips) > 0 && netip.MustParseAddr(ips[0]).Is6() {
		s.AddressType = discoveryv1.AddressTypeIPv6
	}
	return s
}

func endpoints(ips ...string) []discoveryv1.Endpoint {
	var all []discoveryv1.Endpoint
	yes, no, node, zone := true, false, "node-1", "zone-1"
	for _, ip := range ips {
		all = append(all, discoveryv1.Endpoint{
			Addresses:  []string{ip},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &zone,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Name: "pod-" + strings.ReplaceAll(ip, ":", "-")},
			Hints:     &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}},
		})
	}
	return all
}

// put creates or replaces a service and its slices.
func put(ctx context.Context, c *testbed.Cluster, namespace string, s *corev1.Service, all ...*discoveryv1.EndpointSlice) error {
	_, err := c.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	_, err = c.Client().CoreV1().Services(namespace).Create(ctx, s, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = c.Client().CoreV1().Services(namespace).Update(ctx, s, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("put service %s/%s of %s: %w", namespace, s.Name, c.Name, err)
	}
	for _, sl := range all {
		if err := putSlice(ctx, c, namespace, sl); err != nil {
			return err
		}
	}
	return nil
}

func putSlice(ctx context.Context, c *testbed.Cluster, namespace string, sl *discoveryv1.EndpointSlice) error {
	_, err := c.Client().DiscoveryV1().EndpointSlices(namespace).Create(ctx, sl, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = c.Client().DiscoveryV1().EndpointSlices(namespace).Update(ctx, sl, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("put slice %s/%s of %s: %w", namespace, sl.Name, c.Name, err)
	}
	return nil
}

// remove deletes a service and all of its slices.
func remove(ctx context.Context, c *testbed.Cluster, namespace, name string) error {
	err := c.Client().CoreV1().Services(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return c.Client().DiscoveryV1().EndpointSlices(namespace).DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + name})
}

// clean removes everything that tests left in the clusters.
func (b *bed) clean(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // which has ended by then
	for _, c := range []*testbed.Cluster{b.gcp, b.aws, b.merit} {
		services, err := c.Client().CoreV1().Services("").List(ctx, metav1.ListOptions{})
		must(t, err)
		for i := range services.Items {
			if s := &services.Items[i]; s.Namespace != metav1.NamespaceDefault || s.Name != "kubernetes" {
				must(t, c.Client().CoreV1().Services(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}))
			}
		}
		namespaces, err := c.Client().CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		must(t, err)
		for i := range namespaces.Items {
			must(t, c.Client().DiscoveryV1().EndpointSlices(namespaces.Items[i].Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
			must(t, c.Client().CoreV1().Endpoints(namespaces.Items[i].Name).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})) //nolint:staticcheck // Ours are among them.
		}
	}
}

// service waits for a local service.
func (b *bed) service(t *testing.T, name string) *corev1.Service {
	t.Helper()
	var found *corev1.Service
	wait(t, "service "+name, func() (err error) {
		found, err = b.gcp.Client().CoreV1().Services(home).Get(t.Context(), name, metav1.GetOptions{})
		return err
	})
	return found
}

// gone waits until there is no such local service, nor a slice of it.
func (b *bed) gone(t *testing.T, name string) {
	t.Helper()
	wait(t, "the end of service "+name, func() error {
		_, err := b.gcp.Client().CoreV1().Services(home).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			return errors.New("still there")
		}
		if !apierrors.IsNotFound(err) {
			return err
		}
		if all := b.slices(t, name); len(all) > 0 {
			return fmt.Errorf("%d slices are left", len(all))
		}
		return nil
	})
}

func (b *bed) slices(t *testing.T, service string) []discoveryv1.EndpointSlice {
	t.Helper()
	list, err := b.gcp.Client().DiscoveryV1().EndpointSlices(home).List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	must(t, err)
	return list.Items
}

// addresses are those of a local service, sorted.
func (b *bed) addresses(t *testing.T, service string) []string {
	t.Helper()
	var all []string
	for _, s := range b.slices(t, service) {
		for i := range s.Endpoints {
			all = append(all, s.Endpoints[i].Addresses...)
		}
	}
	slices.Sort(all)
	return all
}

// leadsTo waits until a local service has exactly these addresses.
func (b *bed) leadsTo(t *testing.T, service string, want ...string) {
	t.Helper()
	slices.Sort(want)
	wait(t, "the endpoints of "+service, func() error {
		if got := b.addresses(t, service); !slices.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

// patch changes a service of a cluster with a JSON merge patch.
func patch(t *testing.T, c *testbed.Cluster, namespace, name, body string) {
	t.Helper()
	_, err := c.Client().CoreV1().Services(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{})
	must(t, err)
}

// writes returns how many requests an instance has made that change something.
func (i *instance) writes(t *testing.T) int {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(i.Metrics())
	families, err := registry.Gather()
	must(t, err)
	total := 0.0
	for _, f := range families {
		if f.GetName() == metricsPrefix+"writes_total" {
			for _, m := range f.GetMetric() {
				total += m.GetCounter().GetValue()
			}
		}
	}
	return int(total)
}

// quiet waits until an instance has nothing left to do, and returns how many
// writes it has made.
func (b *bed) quiet(t *testing.T, i *instance) int {
	t.Helper()
	b.inOrder(t, i)
	last, since := i.writes(t), time.Now()
	wait(t, "no more writes", func() error {
		if now := i.writes(t); now != last {
			last, since = now, time.Now()
		}
		if quiet := time.Since(since); quiet < 500*time.Millisecond {
			return fmt.Errorf("last write %v ago", quiet)
		}
		return nil
	})
	return last
}
