package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// fluentdPort is the port of the documented policy.
const fluentdPort = 8889

// TestPolicy is the documented scenario: forwarder pods in gcp may reach fluentd in aws, by
// their network set. Calico can't run here: instead, the fluentd pod has a packet filter with
// the nets of the sets that match the policy's selector.
func TestPolicy(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	ctx := within(t, 2*time.Minute)
	must(t, p.AWS.Apply(ctx, "../../policy/testdata/v3.yaml"))
	must(t, programs.Grant(ctx, programs.Policy, p.AWS, p.GCP))
	startPolicy(t, p.Agents[0].Node, p.GCP)
	sets := networkSets(t, p.AWS)

	fluentd := p.Pods[0]
	must(t, fluentd.Serve(ctx, fluentdPort, nil))
	first := forwarder(t, p.Agents[1].Node, "forwarder-1")
	stranger := p.Pods[1]

	await(t, sets, first)
	filter(t, fluentd, sets)
	checkReach(t, first, fluentd, true)
	checkReach(t, stranger, fluentd, false)

	// A rollout: the new pod is admitted, the old one's address isn't any more.
	second := forwarder(t, p.Agents[1].Node, "forwarder-2")
	await(t, sets, first, second)
	now := int64(0)
	must(t, p.GCP.Client().CoreV1().Pods("sys-log").Delete(ctx, "forwarder-1", metav1.DeleteOptions{GracePeriodSeconds: &now}))
	await(t, sets, second)
	filter(t, fluentd, sets)
	checkReach(t, second, fluentd, true)
	checkReach(t, first, fluentd, false)
}

// startPolicy runs semaphore-policy on a node, as its deployment does.
func startPolicy(t *testing.T, node *testbed.Node, remote *testbed.Cluster) {
	t.Helper()
	p, err := programs.Prepare(within(t, time.Minute), programs.Config{
		Name: programs.Policy, Binary: program(t, programs.Policy), Port: 8080,
	}, node, remote)
	must(t, err)
	must(t, p.Start())
	t.Cleanup(func() {
		stopping, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if err := p.Stop(stopping); err != nil {
			t.Error(err)
		}
	})
}

func networkSets(t *testing.T, c *testbed.Cluster) policy.SetClient {
	t.Helper()
	calico, err := policy.NewCalico(c.RESTConfig(), "auto")
	must(t, err)
	sets, err := calico.Sets(t.Context())
	must(t, err)
	return sets
}

// forwarder adds a labelled pod of gcp.
func forwarder(t *testing.T, node *testbed.Node, name string) *testbed.Pod {
	t.Helper()
	_, err := node.Cluster.Client().CoreV1().Namespaces().Get(t.Context(), "sys-log", metav1.GetOptions{})
	if err != nil {
		_, err = node.Cluster.Client().CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "sys-log"}}, metav1.CreateOptions{})
		must(t, err)
	}
	pod, err := node.AddPod(t.Context(), testbed.PodConfig{Name: name, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "sys-log", Labels: map[string]string{"policy.semaphore.uw.io/name": "forwarder"},
	}}})
	must(t, err)
	return pod
}

// await waits until forwarder's set has the documents' labels and exactly the
// addresses of the pods.
func await(t *testing.T, sets policy.SetClient, pods ...*testbed.Pod) {
	t.Helper()
	var want []netip.Addr
	for _, p := range pods {
		want = append(want, p.VirtualAddresses()...)
	}
	slices.SortFunc(want, netip.Addr.Compare)
	var nets []string
	for _, a := range want {
		nets = append(nets, netip.PrefixFrom(a, a.BitLen()).String())
	}
	eventually(t, repair, "forwarder's network set", func(ctx context.Context) error {
		set, err := sets.Get(ctx, "gcp-sys-log-forwarder", metav1.GetOptions{})
		if err != nil {
			return err
		}
		for key, value := range map[string]string{
			"managed-by": programs.Policy, "policy.semaphore.uw.io/name": "forwarder",
			"policy.semaphore.uw.io/namespace": "sys-log", "policy.semaphore.uw.io/cluster": "gcp",
		} {
			if set.Labels[key] != value {
				return fmt.Errorf("labels %v", set.Labels)
			}
		}
		if !slices.Equal(set.Spec.Nets, nets) {
			return fmt.Errorf("nets %v, want %v", set.Spec.Nets, nets)
		}
		return nil
	})
}

// filter admits the addresses in forwarder's sets to the pod, on fluentd's port.
func filter(t *testing.T, pod *testbed.Pod, sets policy.SetClient) {
	t.Helper()
	list, err := sets.List(t.Context(), metav1.ListOptions{LabelSelector: "policy.semaphore.uw.io/name=forwarder," +
		"policy.semaphore.uw.io/namespace=sys-log,policy.semaphore.uw.io/cluster=gcp"})
	must(t, err)
	var rules strings.Builder
	fmt.Fprintf(&rules, "add table inet calico\ndelete table inet calico\ntable inet calico {\n chain input {\n  type filter hook input priority 0;\n")
	for i := range list.Items {
		for _, net := range list.Items[i].Spec.Nets {
			family := "ip"
			if netip.MustParsePrefix(net).Addr().Is6() {
				family = "ip6"
			}
			fmt.Fprintf(&rules, "  %s saddr %s tcp dport %d accept\n", family, net, fluentdPort)
		}
	}
	fmt.Fprintf(&rules, "  tcp dport %d reject with tcp reset\n }\n}\n", fluentdPort)
	path := filepath.Join(t.TempDir(), "rules")
	must(t, os.WriteFile(path, []byte(rules.String()), 0o600))
	_, err = pod.Run(t.Context(), "nft", "-f", path)
	must(t, err)
}

// checkReach checks that a pod reaches fluentd, or doesn't, over both families.
func checkReach(t *testing.T, from, to *testbed.Pod, want bool) {
	t.Helper()
	urls := to.URLs(fluentdPort)
	if from.Node.Cluster != to.Node.Cluster {
		urls = to.VirtualURLs(fluentdPort)
	}
	for _, url := range urls {
		eventually(t, repair, "the filter to work", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			_, err := from.Get(ctx, url)
			switch {
			case want:
				return err
			case err == nil:
				return errors.New("let in")
			case !strings.Contains(err.Error(), "refused"):
				return fmt.Errorf("want a refusal: %w", err)
			}
			return nil
		})
	}
}
