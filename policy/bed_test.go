package policy_test

import (
	"cmp"
	"context"
	"encoding/json"
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

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// settle is how long something may take to happen on a machine that is busy
// with other things.
const settle = 2 * time.Minute

const (
	domain    = "policy.semaphore.uw.io"
	managedBy = "semaphore-policy"
)

var listAll metav1.ListOptions

// bed is the clusters of the tests: aws has Calico's custom resources, gcp its
// native v3 ones, and merit none. Each is also a remote of the others.
type bed struct {
	tb               *testbed.Testbed
	aws, gcp, merit  *testbed.Cluster
	accounts, remote map[string]*testbed.Credentials // by cluster
}

func newBed(t *testing.T) *bed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	b := &bed{tb: testbed.Start(t, testbed.Config{}), accounts: map[string]*testbed.Credentials{}, remote: map[string]*testbed.Credentials{}}
	clusters, err := b.tb.StartClusters(ctx, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"}, testbed.ClusterConfig{Name: "merit"})
	if err != nil {
		t.Fatal(err)
	}
	b.aws, b.gcp, b.merit = clusters[0], clusters[1], clusters[2]
	for _, c := range clusters {
		createNamespace(t, c, "sys-semaphore")
		manifests := []string{"../deploy/policy/rbac.yaml", "../deploy/policy/admission.yaml", "../deploy/remote/policy.yaml"}
		switch c {
		case b.aws:
			manifests = append(manifests, "testdata/v1.yaml")
		case b.gcp:
			manifests = append(manifests, "testdata/v3.yaml")
		}
		if err := c.Apply(ctx, manifests...); err != nil {
			t.Fatal(err)
		}
		if b.accounts[c.Name], err = c.Credentials(ctx, "sys-semaphore", "semaphore-policy"); err != nil {
			t.Fatal(err)
		}
		if b.remote[c.Name], err = c.Credentials(ctx, "sys-semaphore", "semaphore-policy-remote"); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// as is a client configuration with the rights of a service account only.
func as(c *testbed.Cluster, cr *testbed.Credentials) *rest.Config {
	cfg := c.RESTConfig()
	cfg.CertData, cfg.KeyData = nil, nil
	cfg.BearerTokenFile = cr.TokenFile()
	cfg.UserAgent = "semaphore-policy/test"
	return cfg
}

func createNamespace(t *testing.T, c *testbed.Cluster, name string) {
	t.Helper()
	_, err := c.Client().CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// sets is the administrator's client of a cluster's network sets.
func (b *bed) sets(t *testing.T, c *testbed.Cluster) policy.SetClient {
	t.Helper()
	access, err := policy.NewCalico(c.RESTConfig(), "auto")
	if err != nil {
		t.Fatal(err)
	}
	client, err := access.Sets(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// instance is a controller that runs in this process.
type instance struct {
	*policy.Controller
	metrics *policy.Metrics
	stop    func()
}

// start runs a controller in the local cluster until the test ends.
func (b *bed) start(t *testing.T, local *testbed.Cluster, adjust func(*policy.Config), remotes ...*testbed.Cluster) *instance {
	t.Helper()
	access, err := policy.NewCalico(as(local, b.accounts[local.Name]), "auto")
	if err != nil {
		t.Fatal(err)
	}
	cfg := policy.Config{
		Cluster: local.Name, Calico: access,
		Labels:  policy.Labels{Domain: domain, ManagedBy: managedBy},
		Metrics: policy.NewMetrics(),
		Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)).With("local", local.Name),
	}
	for _, r := range remotes {
		cfg.Remotes = append(cfg.Remotes, policy.RemoteConfig{
			Rules: policy.Rules{Cluster: r.Name},
			Client: func() (kube.Client, error) {
				c := as(r, b.remote[r.Name])
				c.ContentType, c.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"
				return kube.NewClient(c)
			},
		})
	}
	if adjust != nil {
		adjust(&cfg)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	i := &instance{Controller: policy.New(cfg), metrics: cfg.Metrics}
	var wg sync.WaitGroup
	for _, task := range i.Watches() {
		wg.Go(func() {
			if err := task.Run(ctx); err != nil {
				t.Errorf("%v: %v", task, err)
			}
		})
	}
	wg.Go(func() {
		if err := i.Lead(ctx); err != nil {
			t.Errorf("lead: %v", err)
		}
	})
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

// podSpec is a pod as a test wants it to be.
type podSpec struct {
	namespace, name, set string
	ips                  []string
	phase                corev1.PodPhase
	hostNetwork          bool
}

func running(namespace, name, set string, ips ...string) podSpec {
	return podSpec{namespace: namespace, name: name, set: set, ips: ips, phase: corev1.PodRunning}
}

// putPod creates a pod and gives it a status.
func putPod(ctx context.Context, c *testbed.Cluster, p podSpec) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, Labels: map[string]string{domain + "/name": p.set}},
		Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "c", Image: "none"}},
			HostNetwork: p.hostNetwork, NodeName: "nowhere",
		},
	}
	if _, err := c.Client().CoreV1().Pods(p.namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create pod %s/%s: %w", p.namespace, p.name, err)
	}
	return setStatus(ctx, c, p)
}

func setStatus(ctx context.Context, c *testbed.Cluster, p podSpec) error {
	status := corev1.PodStatus{Phase: p.phase}
	for _, ip := range p.ips {
		status.PodIPs = append(status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(p.ips) > 0 {
		status.PodIP = p.ips[0]
	}
	patch, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return err
	}
	_, err = c.Client().CoreV1().Pods(p.namespace).Patch(ctx, p.name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("patch the status of pod %s/%s: %w", p.namespace, p.name, err)
	}
	return nil
}

func relabel(ctx context.Context, c *testbed.Cluster, namespace, name, set string) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{"%s/name":%q}}}`, domain, set)
	_, err := c.Client().CoreV1().Pods(namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func deletePod(ctx context.Context, c *testbed.Cluster, namespace, name string) error {
	now := int64(0)
	return c.Client().CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now})
}

func put(t *testing.T, c *testbed.Cluster, pods ...podSpec) {
	t.Helper()
	for _, p := range pods {
		createNamespace(t, c, p.namespace)
		if err := putPod(t.Context(), c, p); err != nil {
			t.Fatal(err)
		}
	}
}

// must is for calls that only return an error.
func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// deletePods removes all pods of the tests from a cluster, and waits.
func deletePods(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	now := int64(0)
	namespaces, err := c.Client().CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for i := range namespaces.Items {
		must(t, c.Client().CoreV1().Pods(namespaces.Items[i].Name).DeleteCollection(t.Context(),
			metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	}
}

// clean removes everything that a test left in the clusters.
func (b *bed) clean(t *testing.T) {
	t.Helper()
	for _, c := range []*testbed.Cluster{b.aws, b.gcp, b.merit} {
		deletePods(t, c)
		if c == b.merit {
			continue
		}
		client := b.sets(t, c)
		list, err := client.List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for i := range list.Items {
			if err := client.Delete(t.Context(), list.Items[i].Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				t.Fatal(err)
			}
		}
	}
}

// contents are network sets as text, by object name: identity, then nets.
type contents map[string]string

func text(set *calico.GlobalNetworkSet) string {
	l := set.Labels
	return fmt.Sprintf("%s %s/%s/%s %s", l["managed-by"], l[domain+"/cluster"], l[domain+"/namespace"], l[domain+"/name"],
		strings.Join(set.Spec.Nets, " "))
}

func read(ctx context.Context, client policy.SetClient) (contents, error) {
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := contents{}
	for i := range list.Items {
		all[list.Items[i].Name] = text(&list.Items[i])
	}
	return all, nil
}

// expect waits until the cluster has exactly these network sets.
func expect(t *testing.T, client policy.SetClient, want contents) {
	t.Helper()
	wait(t, "the network sets", func() error {
		got, err := read(t.Context(), client)
		if err != nil {
			return err
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("got:\n%vwant:\n%v", got, want)
		}
		return nil
	})
}

func (c contents) String() string {
	var s strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c)) {
		fmt.Fprintf(&s, "  %s: %s\n", name, c[name])
	}
	return s.String()
}

// set is what expect wants of a set of gcp.
func set(cluster, namespace, name string, ips ...string) string {
	var list []netip.Addr
	for _, ip := range ips {
		list = append(list, netip.MustParseAddr(ip))
	}
	slices.SortFunc(list, netip.Addr.Compare)
	var nets []string
	for _, a := range list {
		nets = append(nets, netip.PrefixFrom(a, a.BitLen()).String())
	}
	return fmt.Sprintf("%s %s/%s/%s %s", managedBy, cluster, namespace, name, strings.Join(nets, " "))
}

// status returns what a controller says of one of its remotes.
func (i *instance) status(t *testing.T, cluster string) policy.RemoteStatus {
	t.Helper()
	all := i.Status().Remotes
	at := slices.IndexFunc(all, func(r policy.RemoteStatus) bool { return r.Name == cluster })
	if at < 0 {
		t.Fatalf("no remote %s in the status", cluster)
	}
	slices.SortFunc(all[at].Sets, func(a, b policy.SetStatus) int { return cmp.Compare(a.Object, b.Object) })
	return all[at]
}
