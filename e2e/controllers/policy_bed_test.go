package controllers_test

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/kubetest"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

const domain = "policy.semaphore.uw.io"

// policyBed is a bed where aws has Calico's custom resources, gcp its native v3 ones, and
// merit none. Each cluster is also a remote of the others.
type policyBed struct{ *bed }

func newPolicyBed(t *testing.T) *policyBed {
	t.Helper()
	all := []string{"deploy/policy/rbac.yaml", "deploy/policy/admission.yaml", "deploy/remote/policy.yaml"}
	return &policyBed{newBed(t, map[string][]string{
		"aws": append(slices.Clone(all), "policy/testdata/v1.yaml"), "gcp": append(slices.Clone(all), "policy/testdata/v3.yaml"), "merit": all,
	})}
}

// local and remote return the credentials of the controller for its own cluster and for others.
func (b *policyBed) local(t *testing.T, c *testbed.Cluster) *testbed.Credentials {
	t.Helper()
	return b.account(t, c, programs.Policy)
}

func (b *policyBed) remote(t *testing.T, c *testbed.Cluster) *testbed.Credentials {
	t.Helper()
	return b.account(t, c, programs.Policy+"-remote")
}

// sets returns the administrator's client of a cluster's network sets.
func (b *policyBed) sets(t *testing.T, c *testbed.Cluster) policy.SetClient {
	t.Helper()
	access, err := policy.NewCalico(c.RESTConfig(), "auto")
	must(t, err)
	client, err := access.Sets(t.Context())
	must(t, err)
	return client
}

// policyInstance is a controller that runs in this process, as the leader.
type policyInstance struct {
	*policy.Controller
	metrics *policy.Metrics
	stop    func()
}

// start runs a controller in the local cluster until the test ends or stop is called.
func (b *policyBed) start(t *testing.T, local *testbed.Cluster, adjust func(*policy.Config), remotes ...*testbed.Cluster) *policyInstance {
	t.Helper()
	access, err := policy.NewCalico(as(local, b.local(t, local)), "auto")
	must(t, err)
	cfg := policy.Config{
		Cluster: local.Name, Calico: access,
		Labels:  policy.Labels{Domain: domain, ManagedBy: programs.Policy},
		Metrics: policy.NewMetrics(),
		Logger:  slog.New(slog.NewTextHandler(t.Output(), nil)).With("local", local.Name),
	}
	for _, r := range remotes {
		remote := as(r, b.remote(t, r))
		remote.ContentType, remote.AcceptContentTypes = "application/vnd.kubernetes.protobuf", "application/vnd.kubernetes.protobuf"
		cfg.Remotes = append(cfg.Remotes, policy.RemoteConfig{
			Rules:  policy.Rules{Cluster: r.Name},
			Client: func() (kube.Client, error) { return kube.NewClient(remote) },
		})
	}
	if adjust != nil {
		adjust(&cfg)
	}
	c := policy.New(cfg)
	return &policyInstance{c, cfg.Metrics, kubetest.Run(t, c.Tasks(), c.Lead)}
}

// podSpec describes a pod.
type podSpec struct {
	namespace, name, set string
	ips                  []string
	phase                corev1.PodPhase
	hostNetwork          bool
	node                 string // empty: one that doesn't exist
}

func running(namespace, name, set string, ips ...string) podSpec {
	return podSpec{namespace: namespace, name: name, set: set, ips: ips, phase: corev1.PodRunning}
}

// putPod creates a pod with a status.
func putPod(ctx context.Context, c *testbed.Cluster, p podSpec) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.namespace, Name: p.name, Labels: map[string]string{domain + "/name": p.set}},
		Spec: corev1.PodSpec{
			Containers:  []corev1.Container{{Name: "c", Image: "none"}},
			HostNetwork: p.hostNetwork, NodeName: cmp.Or(p.node, "nowhere"),
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

func putPods(t *testing.T, c *testbed.Cluster, pods ...podSpec) {
	t.Helper()
	for _, p := range pods {
		createNamespace(t, c, p.namespace)
		must(t, putPod(t.Context(), c, p))
	}
}

// deletePods deletes all pods of a cluster.
func deletePods(t *testing.T, c *testbed.Cluster) {
	t.Helper()
	now := int64(0)
	for _, namespace := range namespaces(t.Context(), t, c) {
		must(t, c.Client().CoreV1().Pods(namespace).DeleteCollection(t.Context(),
			metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}))
	}
}

// clean removes everything that a test left in the clusters.
func (b *policyBed) clean(t *testing.T) {
	t.Helper()
	for _, c := range b.all() {
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

func readSets(ctx context.Context, client policy.SetClient) (contents, error) {
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
		got, err := readSets(t.Context(), client)
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

// set returns the content of a network set that expect wants.
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
	return fmt.Sprintf("%s %s/%s/%s %s", programs.Policy, cluster, namespace, name, strings.Join(nets, " "))
}

// status returns the status of a remote.
func (i *policyInstance) status(t *testing.T, cluster string) statuspage.PolicyRemote {
	t.Helper()
	all := i.Status().Remotes
	at := slices.IndexFunc(all, func(r statuspage.PolicyRemote) bool { return r.Name == cluster })
	if at < 0 {
		t.Fatalf("no remote %s in the status", cluster)
	}
	slices.SortFunc(all[at].Sets, func(a, b statuspage.NetworkSet) int { return cmp.Compare(a.Object, b.Object) })
	return all[at]
}

// recordSets records the network sets of a cluster.
func recordSets(t *testing.T, client policy.SetClient) *recorder {
	t.Helper()
	return record(t, recorded{"set", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) }, client.Watch})
}

// networkSets returns the network sets of a state.
func networkSets(s state) (all []*calico.GlobalNetworkSet) {
	for _, o := range s {
		if set, is := o.(*calico.GlobalNetworkSet); is {
			all = append(all, set)
		}
	}
	return all
}

func identity(s *calico.GlobalNetworkSet) policy.Identity {
	return policy.Identity{Cluster: s.Labels[domain+"/cluster"], Namespace: s.Labels[domain+"/namespace"], Name: s.Labels[domain+"/name"]}
}

// holds reports whether any object of the set holds the address.
func holds(s state, id policy.Identity, ip string) bool {
	net := ip + "/32"
	if strings.Contains(ip, ":") {
		net = ip + "/128"
	}
	return slices.ContainsFunc(networkSets(s), func(set *calico.GlobalNetworkSet) bool {
		return identity(set) == id && slices.Contains(set.Spec.Nets, net)
	})
}
