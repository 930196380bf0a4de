package scenarios_test

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// TestLeaveLosesNoRequest joins two clusters with semaphore-relay, and a third one without to them,
// with a global service, and has the two forget the third one under requests: none fails, as
// endpoints are withdrawn before tunnels, and accounts before endpoints.
func TestLeaveLosesNoRequest(t *testing.T) {
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{}, tools.KubeProxy)
	ctx := within(t, 12*time.Minute)
	names := []string{"aws", "gcp", "merit"}
	var configs []testbed.ClusterConfig
	for _, name := range names {
		configs = append(configs, testbed.ClusterConfig{Name: name})
	}
	clusters, err := tb.StartClusters(ctx, configs...)
	must(t, err)
	var pods []*testbed.Pod
	ranges := []string{}
	for _, c := range clusters {
		_, err := c.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		node, err := c.AddNode(ctx, testbed.NodeConfig{})
		must(t, err)
		must(t, node.Masquerade(ctx))
		pod, err := node.AddPod(ctx, testbed.PodConfig{})
		must(t, err)
		must(t, pod.Serve(ctx, programs.PodPort, nil))
		pods = append(pods, pod)
		ranges = append(ranges, "--pod-subnets", fmt.Sprintf("%s=%s %s", c.Name, c.PodSubnets[0], c.PodSubnets[1]))
	}
	_, err = clusters[0].Nodes()[0].StartKubeProxy(ctx)
	must(t, err)
	agent := program(t, programs.WireGuard)
	fakeKubelet := programs.StartFakeKubelet(t.Context(), t.TempDir(), map[string]string{
		programs.WireGuard: agent, programs.ServiceMirror: program(t, programs.ServiceMirror), programs.Engine: filepath.Join(filepath.Dir(agent), programs.Engine),
		programs.Relay: program(t, programs.Relay),
	}, clusters...)
	t.Cleanup(fakeKubelet.Stop)

	a := newAdministrator(t, tb)
	run := func(want int, args ...string) string {
		t.Helper()
		out, code, err := a.run(ctx, args...)
		must(t, err)
		t.Logf("semaphorectl %s: exit code %d\n%s", strings.Join(args, " "), code, out)
		if code != want {
			t.Fatalf("exit code %d, expected %d; the stand-in: %v", code, want, fakeKubelet.Err())
		}
		return out
	}
	said := func(out string, want ...string) {
		t.Helper()
		for _, w := range want {
			if !strings.Contains(out, w) {
				t.Errorf("it doesn't say %q", w)
			}
		}
	}
	run(1, "leave", "aws", "nowhere")
	said(run(0, "leave", "aws", "gcp"), "! aws: Kube-Semaphore isn't installed, nothing was changed", "! gcp: Kube-Semaphore isn't installed, nothing was changed")
	install := []string{"join", "--yes", "--no-probe", "--tools", "wireguard,mirror"}
	run(0, slices.Concat(install, []string{"--relay=on"}, ranges[:4], names[:2])...)
	out := run(0, slices.Concat(install, ranges, names)...)
	relays(t, clusters, []string{"aws gcp merit", "aws gcp merit", ""})
	said(out, "✓ aws, gcp and merit are joined. Next:", "label service web mirror.semaphore.uw.io/mirror-service=true", "semaphorectl doctor aws gcp merit")

	for i, c := range clusters {
		putService(t, c, "shop", service("web", "global-service=true"), pods[i])
	}
	n := &naming{Pair: &programs.Pair{GCP: clusters[0]}}
	asks, err := clusters[0].Nodes()[0].AddPod(ctx, testbed.PodConfig{})
	must(t, err)
	client := ask(t, asks, "http://"+net.JoinHostPort(n.clusterIP(t, "gl-shop-73736d-web"), "8888")+"/")
	client.settled(t, time.Now(), 5, pods...)

	aws := clusters[0].Client()
	accounts, err := aws.CoreV1().ServiceAccounts(programs.Namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	began := time.Now()
	out = run(0, "leave", "--gone", "merit", "aws", "gcp")
	said(out, "✓ aws: no endpoints of merit remain", "✓ aws: left merit", "✓ gcp: left merit", "merit itself is unchanged")
	withdrawn, settings := strings.Index(out, "no endpoints of merit remain"), strings.Index(out, "left merit")
	if withdrawn < 0 || withdrawn > settings {
		t.Error("it leaves before endpoints are withdrawn")
	}
	client.settled(t, time.Now(), 5, pods[:2]...)
	failed, last := client.Failed(began)
	t.Logf("FIGURE of %d requests %d failed while merit left", len(client.Since(began)), failed)
	if failed > 0 {
		t.Errorf("%d requests failed, the last one %v after the start of leave", failed, last.Sub(began))
	}
	shut := deletions(t, aws.CoreV1().ServiceAccounts(programs.Namespace).Watch, accounts.ResourceVersion, func(o metav1.Object) bool {
		return o.GetName() == "semaphore-wireguard-remote-merit"
	})
	ended := deletions(t, aws.DiscoveryV1().EndpointSlices(programs.Namespace).Watch, accounts.ResourceVersion, func(o metav1.Object) bool {
		return o.GetAnnotations()["mirror.semaphore.uw.io/cluster"] == "merit"
	})
	if len(shut) == 0 || len(ended) == 0 || shut[0] > ended[0] {
		t.Errorf("merit's accounts are deleted at the versions %v, its endpoints at %v", shut, ended)
	}
	for _, c := range clusters[:2] {
		list, err := c.Client().DiscoveryV1().EndpointSlices(programs.Namespace).List(ctx, metav1.ListOptions{})
		must(t, err)
		for _, s := range list.Items {
			if s.Annotations["mirror.semaphore.uw.io/cluster"] == "merit" {
				t.Errorf("%s has EndpointSlice %s of merit", c.Name, s.Name)
			}
		}
	}
	relays(t, clusters, []string{"aws gcp", "aws gcp", ""})
	// Again: it has left.
	said(run(0, "leave", "--gone", "merit", "aws", "gcp"), "aws: it had left merit already", "gcp: it had left merit already")
	said(run(0, "leave", "--gone", "oracle", "aws"), "! aws: it isn't joined with oracle, nothing was changed")
	// Joined again, its endpoints are used again.
	run(0, slices.Concat(install, ranges, names)...)
	client.settled(t, time.Now(), 5, pods...)
	// Where the agents can't clean up, as here, the last cluster has lost its accounts, too.
	run(0, "leave", "--gone", "gcp", "aws")
	run(1, "leave", "--gone", "merit", "aws", "--timeout", "20s")
	left, err := aws.CoreV1().ServiceAccounts(programs.Namespace).List(ctx, metav1.ListOptions{})
	must(t, err)
	for _, a := range left.Items {
		if strings.HasSuffix(a.Name, "-remote-merit") {
			t.Errorf("merit has the account %s, which the installation keeps until its nodes are cleaned up", a.Name)
		}
	}
}

// deletions returns the resource versions at which objects were deleted since an earlier one, in order.
func deletions(t *testing.T, objects func(context.Context, metav1.ListOptions) (watch.Interface, error), since string, matches func(metav1.Object) bool) (versions []uint64) {
	t.Helper()
	seconds := int64(2) // for what the API server has stored already
	w, err := objects(t.Context(), metav1.ListOptions{ResourceVersion: since, TimeoutSeconds: &seconds})
	must(t, err)
	defer w.Stop()
	for event := range w.ResultChan() {
		if event.Type != watch.Deleted {
			continue
		}
		o, err := meta.Accessor(event.Object)
		must(t, err)
		if matches(o) {
			version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
			must(t, err)
			versions = append(versions, version)
		}
	}
	return versions
}

// relays waits until semaphore-relay has stored the nodes of the wanted clusters in each cluster,
// and of no others; none: it isn't installed.
func relays(t *testing.T, clusters []*testbed.Cluster, wanted []string) {
	t.Helper()
	for i, c := range clusters {
		eventually(t, time.Minute, "the objects of semaphore-relay in "+c.Name, func(ctx context.Context) error {
			list, err := c.Dynamic().Resource(v1alpha1.GroupVersion().WithResource(v1alpha1.Resource)).Namespace(programs.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
			leases, err := c.Client().CoordinationV1().Leases(programs.Namespace).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.ClusterLabel})
			if err != nil {
				return err
			}
			var counts, contacts []string
			if list != nil {
				for _, o := range list.Items {
					if of := o.GetLabels()[v1alpha1.ClusterLabel]; o.GetName() == v1alpha1.CountName(of) {
						counts = append(counts, of)
					}
				}
			}
			for _, lease := range leases.Items {
				contacts = append(contacts, lease.Labels[v1alpha1.ClusterLabel])
			}
			if got, with := strings.Join(counts, " "), strings.Join(contacts, " "); got != wanted[i] || with != wanted[i] {
				return fmt.Errorf("it has counts of %q and Leases of %q, want %q", got, with, wanted[i])
			}
			return nil
		})
	}
}
