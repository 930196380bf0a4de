package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/mirror"
)

// Labels and annotations of Services to mirror, and of ours.
const (
	mirrorMark = "mirror.semaphore.uw.io/mirror-service"
	globalMark = "mirror.semaphore.uw.io/global-service"
	firstMark  = "mirror.semaphore.uw.io/global-service-routing-strategy"

	labelMirrored  = "mirrored-svc"
	labelGlobal    = "global-svc"
	labelPrefix    = "mirror-svc-prefix-sync"
	annotCluster   = "mirror.semaphore.uw.io/cluster"
	annotNamespace = "mirror.semaphore.uw.io/namespace"
	annotName      = "mirror.semaphore.uw.io/name"
	annotAccepted  = "mirror.semaphore.uw.io/accepted-remotes"
	annotClusters  = "global-svc-clusters"

	webName    = "aws-shop-73736d-web"
	globalName = "gl-shop-73736d-web"
)

// mirrorBed is a bed whose local cluster is gcp, with the remotes aws and merit.
type mirrorBed struct{ *bed }

func newMirrorBed(t *testing.T) *mirrorBed {
	t.Helper()
	const remote = "deploy/remote/service-mirror.yaml"
	both := []string{"deploy/service-mirror/rbac.yaml", "deploy/service-mirror/admission.yaml", remote}
	return &mirrorBed{newBed(t, map[string][]string{"aws": both, "gcp": both, "merit": {remote}})}
}

// credentials returns those of the service mirror in a cluster.
func (b *mirrorBed) credentials(t *testing.T, c *testbed.Cluster) *testbed.Credentials {
	t.Helper()
	return b.account(t, c, b.accountName(c == b.gcp))
}

func (b *mirrorBed) accountName(local bool) string {
	if local {
		return programs.ServiceMirror
	}
	return programs.ServiceMirror + "-remote"
}

// client returns a client with the rights of the service mirror, and connections of its own.
func (b *mirrorBed) client(t *testing.T, c *testbed.Cluster) kube.Client {
	t.Helper()
	return b.clientOf(t, c, c == b.gcp)
}

// clientOf returns a client with the rights of the service mirror of a cluster, or of those of
// its remotes.
func (b *mirrorBed) clientOf(t *testing.T, c *testbed.Cluster, local bool) kube.Client {
	t.Helper()
	cfg := as(c, b.account(t, c, b.accountName(local)))
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

// config returns the configuration of the program with its defaults.
func (b *mirrorBed) config(t *testing.T) mirror.Config {
	t.Helper()
	cfg := mirror.Config{
		Cluster: b.gcp.Name, Namespace: home, Client: b.client(t, b.gcp),
		MirrorSelector:     selector(t, mirrorMark+"=true"),
		GlobalSelector:     selector(t, globalMark+"=true"),
		LocalFirstSelector: selector(t, firstMark+"=local-first"),
		Logger:             slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	for _, c := range []*testbed.Cluster{b.aws, b.merit} {
		client := b.client(t, c)
		cfg.Remotes = append(cfg.Remotes, mirror.Remote{
			Name: c.Name, Prefix: c.Name, PodSubnets: c.PodSubnets, Tier: 1,
			Client: func() (kube.Client, error) { return client, nil },
		})
	}
	return cfg
}

// mirrorInstance is a controller that runs in this process, as the leader.
type mirrorInstance struct {
	*mirror.Controller
	cfg  mirror.Config
	stop func()
}

// start runs a controller until the test ends or stop is called.
func (b *mirrorBed) start(t *testing.T, adjust func(*mirror.Config)) *mirrorInstance {
	t.Helper()
	cfg := b.config(t)
	if adjust != nil {
		adjust(&cfg)
	}
	c := mirror.New(cfg)
	return &mirrorInstance{c, cfg, kubetest.Run(t, c.Tasks(), c.Lead)}
}

// listed waits until the check accepts a service's entry in the status.
func (i *mirrorInstance) listed(t *testing.T, name string, check func(s statuspage.Service) bool) {
	t.Helper()
	wait(t, "the status of "+name, func() error {
		all := i.Status().Services
		at := slices.IndexFunc(all, func(s statuspage.Service) bool { return s.Name == name })
		switch {
		case at < 0:
			return errors.New("not listed")
		case !check(all[at]):
			return fmt.Errorf("%+v", all[at])
		}
		return nil
	})
}

// writes returns the number of write requests of an instance.
func (i *mirrorInstance) writes(t *testing.T) int {
	t.Helper()
	_, sum := samples(t, i.Metrics(), "semaphore_service_mirror_writes_total")
	return int(sum)
}

// clean removes everything that a test left in the clusters.
func (b *mirrorBed) clean(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // which has ended by then
	for _, c := range b.all() {
		services, err := c.Client().CoreV1().Services("").List(ctx, metav1.ListOptions{})
		must(t, err)
		for i := range services.Items {
			if s := &services.Items[i]; s.Namespace != metav1.NamespaceDefault || s.Name != "kubernetes" {
				must(t, c.Client().CoreV1().Services(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{}))
			}
		}
		for _, namespace := range namespaces(ctx, t, c) {
			must(t, c.Client().DiscoveryV1().EndpointSlices(namespace).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
		}
	}
}

// service waits for a local service.
func (b *mirrorBed) service(t *testing.T, name string) *corev1.Service {
	t.Helper()
	var found *corev1.Service
	wait(t, "service "+name, func() (err error) {
		found, err = b.gcp.Client().CoreV1().Services(home).Get(t.Context(), name, metav1.GetOptions{})
		return err
	})
	return found
}

// gone waits until a local service and its slices don't exist.
func (b *mirrorBed) gone(t *testing.T, name string) {
	t.Helper()
	wait(t, "the removal of service "+name, func() error {
		_, err := b.gcp.Client().CoreV1().Services(home).Get(t.Context(), name, metav1.GetOptions{})
		if err == nil {
			return errors.New("it exists")
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

func (b *mirrorBed) slices(t *testing.T, service string) []discoveryv1.EndpointSlice {
	t.Helper()
	list, err := b.gcp.Client().DiscoveryV1().EndpointSlices(home).List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	must(t, err)
	return list.Items
}

// addresses returns those of a local service, sorted.
func (b *mirrorBed) addresses(t *testing.T, service string) []string {
	t.Helper()
	var all []string
	for _, s := range b.slices(t, service) {
		all = append(all, addressesOf(&s)...)
	}
	slices.Sort(all)
	return all
}

func addressesOf(s *discoveryv1.EndpointSlice) (all []string) {
	for i := range s.Endpoints {
		all = append(all, s.Endpoints[i].Addresses...)
	}
	return all
}

// leadsTo waits until a local service has exactly these addresses.
func (b *mirrorBed) leadsTo(t *testing.T, service string, want ...string) {
	t.Helper()
	slices.Sort(want)
	wait(t, "the endpoints of "+service, func() error {
		if got := b.addresses(t, service); !slices.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

// quiet waits until an instance has nothing left to write, and returns how many writes it
// has made.
func (b *mirrorBed) quiet(t *testing.T, i *mirrorInstance) int {
	t.Helper()
	b.settled(t, i)
	return i.still(t)
}

// still waits until an instance writes nothing for a while, and returns how many writes it has
// made.
func (i *mirrorInstance) still(t *testing.T) int {
	t.Helper()
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

// record records the services and slices of the mirror namespace.
func (b *mirrorBed) record(t *testing.T) *recorder {
	t.Helper()
	services, endpointSlices := b.gcp.Client().CoreV1().Services(home), b.gcp.Client().DiscoveryV1().EndpointSlices(home)
	return record(t,
		recorded{"service", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return services.List(ctx, o) }, services.Watch},
		recorded{"slice", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return endpointSlices.List(ctx, o)
		}, endpointSlices.Watch},
	)
}

// undisturbed ends a recorder, and fails the test for each service that was created or
// deleted, except by the test itself. With addresses it fails also for each address that was
// removed from a slice.
func (b *mirrorBed) undisturbed(t *testing.T, r *recorder, addresses bool, created ...string) {
	t.Helper()
	r.end(t)
	faults := 0
	fault := func(format string, args ...any) {
		if faults++; faults <= 20 {
			t.Errorf(format, args...)
		}
	}
	r.replay(func(v version, s state) {
		switch o := v.object.(type) {
		case *corev1.Service:
			if v.event != "MODIFIED" && (v.event != "ADDED" || !slices.Contains(created, o.Name)) {
				fault("service %s %s", o.Name, v.event)
			}
		case *discoveryv1.EndpointSlice:
			before, existed := v.before.(*discoveryv1.EndpointSlice)
			if !addresses || !existed {
				return
			}
			var now []string
			if current, exists := s[v.key].(*discoveryv1.EndpointSlice); exists {
				now = addressesOf(current)
			}
			for _, a := range addressesOf(before) {
				if !slices.Contains(now, a) {
					fault("%s left slice %s", a, o.Name)
				}
			}
		}
	})
}
