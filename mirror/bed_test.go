package mirror

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
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
		account, manifests := "semaphore-service-mirror-remote", []string{"../deploy/remote/service-mirror.yaml"}
		if c == b.gcp {
			account, manifests = "semaphore-service-mirror", []string{"../deploy/service-mirror/rbac.yaml", "../deploy/service-mirror/admission.yaml"}
		}
		must(t, c.Apply(ctx, manifests...))
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
func (b *bed) client(t *testing.T, c *testbed.Cluster) kube.Client {
	t.Helper()
	cfg := c.RESTConfig()
	cfg.CertData, cfg.KeyData = nil, nil
	cfg.BearerTokenFile = b.accounts[c.Name].TokenFile()
	cfg.UserAgent = "semaphore-service-mirror/test"
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	client, err := kube.NewClient(cfg)
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
			Client: func() (kube.Client, error) { return client, nil },
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
	return launch(t, New(cfg))
}

// run runs a controller until the test ends or stop is called.
func launch(t *testing.T, c *Controller) *instance {
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

func (b *bed) cluster(name string) *testbed.Cluster {
	for _, c := range []*testbed.Cluster{b.gcp, b.aws, b.merit} {
		if c.Name == name {
			return c
		}
	}
	return nil
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
