package scenarios_test

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// blockAffinities is a resource of Calico's older API.
var blockAffinities = schema.GroupVersionResource{Group: "crd.projectcalico.org", Version: "v1", Resource: "blockaffinities"}

// affinity is a BlockAffinity as written by Calico's IPAM.
func affinity(resource schema.GroupVersionResource, node, cidr string) *unstructured.Unstructured {
	spec := map[string]any{"cidr": cidr, "node": node, "state": "confirmed", "deleted": "false"}
	if resource.Version == "v3" {
		spec["deleted"] = false
	}
	u := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	u.SetAPIVersion(resource.GroupVersion().String())
	u.SetKind("BlockAffinity")
	u.SetName(node + "-" + strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(cidr))
	return u
}

// prefixesOf returns the prefixes that a node publishes.
func prefixesOf(ctx context.Context, n *testbed.Node) (string, error) {
	object, err := n.Object(ctx)
	if err != nil {
		return "", err
	}
	text, published := object.Annotations[peers.PodCIDRsAnnotation]
	if !published {
		return "none", nil
	}
	return text, nil
}

func waitPrefixes(t *testing.T, n *testbed.Node, want string) {
	t.Helper()
	eventually(t, time.Minute, n.Name+" to publish "+want, func(ctx context.Context) error {
		got, err := prefixesOf(ctx, n)
		if err == nil && got != want {
			err = fmt.Errorf("it publishes %s", got)
		}
		return err
	})
}

// TestPodPrefixes joins three clusters, with pod addresses from podCIDRs, from Calico's IPAM,
// and with single published addresses.
func TestPodPrefixes(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{})
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 5*time.Minute)
	clusters, err := tb.StartClusters(ctx, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"}, testbed.ClusterConfig{Name: "merit"})
	must(t, err)
	must(t, programs.Grant(ctx, programs.WireGuard, clusters...))
	aws, gcp, merit := clusters[0], clusters[1], clusters[2]
	testdata := filepath.Join(filepath.Dir(deployFolder(t)), "peers", "pods", "testdata")
	must(t, gcp.Apply(ctx, filepath.Join(testdata, "calico-v1.yaml"), filepath.Join(deployFolder(t), "wireguard", "pods", "calico", "rbac.yaml")))
	must(t, merit.Apply(ctx, filepath.Join(deployFolder(t), "wireguard", "pods", "pods", "rbac.yaml")))

	node := func(c *testbed.Cluster) *testbed.Node {
		n, err := c.AddNode(ctx, testbed.NodeConfig{})
		must(t, err)
		return n
	}
	aws1, gcp1, gcp2, merit1 := node(aws), node(gcp), node(gcp), node(merit)
	block := func(n *testbed.Node, cidr string) *unstructured.Unstructured {
		u, err := gcp.Dynamic().Resource(blockAffinities).Create(t.Context(), affinity(blockAffinities, n.Name, cidr), metav1.CreateOptions{})
		must(t, err)
		return u
	}
	moving := block(gcp1, "10.4.100.0/26")
	block(gcp1, "10.4.102.0/26")
	block(gcp2, "10.4.101.0/26")
	block(gcp2, "fd00:10:4:101::/122")
	pod := func(n *testbed.Node, name, addresses string) *testbed.Pod {
		var all []netip.Addr
		for a := range strings.SplitSeq(addresses, ",") {
			all = append(all, netip.MustParseAddr(a))
		}
		p, err := n.AddPod(t.Context(), testbed.PodConfig{Name: name, Addresses: all, Object: &corev1.Pod{}})
		must(t, err)
		must(t, p.Serve(t.Context(), programs.PodPort, nil))
		return p
	}
	plain, err := aws1.AddPod(ctx, testbed.PodConfig{})
	must(t, err)
	must(t, plain.Serve(ctx, programs.PodPort, nil))
	first := pod(gcp1, "first", "10.4.100.5")
	second := pod(gcp2, "second", "10.4.101.5,fd00:10:4:101::5")
	borrowed := pod(gcp2, "borrowed", "10.4.100.9")
	cloud := []*testbed.Pod{pod(merit1, "a", "10.6.200.4"), pod(merit1, "b", "10.6.200.5"), pod(merit1, "c", "10.6.201.7")}

	agents := map[*testbed.Node]*programs.Agent{}
	for n, setting := range map[*testbed.Node]string{aws1: "auto", gcp1: "auto", gcp2: "calico", merit1: "pods"} {
		var remotes []*testbed.Cluster
		for _, c := range clusters {
			if c != n.Cluster {
				remotes = append(remotes, c)
			}
		}
		agents[n], err = programs.PrepareAgent(ctx, program(t, programs.WireGuard), n, remotes...)
		must(t, err)
		agents[n].Env["SEMAPHORE_WG_POD_CIDRS"] = setting
		must(t, agents[n].Start())
	}
	connected := func(t *testing.T, all ...*testbed.Pod) {
		t.Helper()
		bound := within(t, 2*time.Minute)
		for _, from := range all {
			for _, to := range all {
				if from.Node.Cluster == to.Node.Cluster {
					continue
				}
				// Without an address of a family there is no route of it.
				if len(from.Addresses) >= len(to.Addresses) {
					must(t, programs.WaitReach(bound, from, to))
				}
			}
		}
	}
	everybody := append([]*testbed.Pod{plain, first, second, borrowed}, cloud...)
	connected(t, everybody...)
	own, err := aws1.Object(t.Context())
	must(t, err)
	waitPrefixes(t, aws1, strings.Join(own.Spec.PodCIDRs, ","))
	waitPrefixes(t, gcp1, "10.4.100.0/26,10.4.102.0/26")
	waitPrefixes(t, gcp2, "10.4.100.9/32,10.4.101.0/26,fd00:10:4:101::/122")
	waitPrefixes(t, merit1, "10.6.200.4/31,10.6.201.7/32")

	t.Run("status says what was chosen, and why", func(t *testing.T) {
		for n, want := range map[*testbed.Node]string{aws1: `"source": "node"`, gcp1: "Calico's address management is in use", gcp2: "configured by SEMAPHORE_WG_POD_CIDRS", merit1: "10.6.200.4/31"} {
			status, err := agents[n].Get(t.Context(), "/status")
			must(t, err)
			if !strings.Contains(strings.ReplaceAll(status, `":"`, `": "`), want) {
				t.Errorf("the status of %s lacks %s", n.Name, want)
			}
		}
	})

	t.Run("a block moves to another node", func(t *testing.T) {
		must(t, first.Remove())
		must(t, gcp.Client().CoreV1().Pods("default").Delete(t.Context(), "first", *metav1.NewDeleteOptions(0)))
		must(t, gcp.Dynamic().Resource(blockAffinities).Delete(t.Context(), moving.GetName(), metav1.DeleteOptions{}))
		began := time.Now()
		first = pod(gcp2, "moved", "10.4.100.5")
		block(gcp2, "10.4.100.0/26")
		must(t, programs.WaitReach(within(t, time.Minute), plain, first))
		t.Logf("reached from the other cluster after %v, its pod's start included", time.Since(began).Round(time.Millisecond))
		waitPrefixes(t, gcp1, "10.4.102.0/26")
		waitPrefixes(t, gcp2, "10.4.100.0/26,10.4.101.0/26,fd00:10:4:101::/122")
		connected(t, plain, first, second, borrowed, cloud[0])
	})

	t.Run("an address is borrowed from the node that has the block now", func(t *testing.T) {
		lent := pod(gcp1, "lent", "10.4.100.11")
		waitPrefixes(t, gcp1, "10.4.100.11/32,10.4.102.0/26")
		connected(t, plain, lent, first, cloud[0])
		finish(t, gcp, "lent")
		waitPrefixes(t, gcp1, "10.4.102.0/26")
	})

	t.Run("a node that is drained takes a handful of writes", func(t *testing.T) {
		const crowd = 60
		writes := func() int { return strings.Count(agents[merit1].Process().Log(), "msg=published") }
		before := writes()
		var addresses []netip.Addr
		for i := range crowd {
			addresses = append(addresses, netip.AddrFrom4([4]byte{10, 6, 203, byte(3 * i)}))
		}
		for i, a := range addresses {
			object := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("crowd-%d", i)},
				Spec:       corev1.PodSpec{NodeName: merit1.Name, Containers: []corev1.Container{{Name: "main", Image: "example.org/testbed"}}},
			}
			created, err := merit.Client().CoreV1().Pods("default").Create(t.Context(), object, metav1.CreateOptions{})
			must(t, err)
			created.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: a.String(), PodIPs: []corev1.PodIP{{IP: a.String()}}}
			_, err = merit.Client().CoreV1().Pods("default").UpdateStatus(t.Context(), created, metav1.UpdateOptions{})
			must(t, err)
		}
		published := func(n int) func(context.Context) error {
			return func(ctx context.Context) error {
				text, err := prefixesOf(ctx, merit1)
				if err == nil && strings.Count(text, "10.6.203.") != n {
					err = fmt.Errorf("%d are published", strings.Count(text, "10.6.203."))
				}
				return err
			}
		}
		eventually(t, time.Minute, "the crowd's addresses to be published", published(crowd))
		filled := writes()
		grace := int64(0)
		must(t, merit.Client().CoreV1().Pods("default").DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: &grace},
			metav1.ListOptions{FieldSelector: "spec.nodeName=" + merit1.Name}))
		eventually(t, time.Minute, "the crowd's addresses to be withdrawn", published(0))
		t.Logf("%d pods came one by one: %d writes; all went: %d writes", crowd, filled-before, writes()-filled)
	})

	t.Run("without the right what is published stays", func(t *testing.T) {
		const binding = "semaphore-wireguard-pods"
		bindings := gcp.Client().RbacV1().ClusterRoleBindings()
		granted, err := bindings.Get(t.Context(), binding, metav1.GetOptions{})
		must(t, err)
		must(t, bindings.Delete(t.Context(), binding, metav1.DeleteOptions{}))
		for _, verb := range []string{"list", "watch"} { // A running watch continues without the right.
			must(t, gcp.AwaitRight(t.Context(), systemNamespace, agentAccount, authorizationv1.ResourceAttributes{
				Verb: verb, Group: "crd.projectcalico.org", Resource: "blockaffinities",
			}, false))
		}
		for _, n := range []*testbed.Node{gcp1, gcp2} {
			must(t, agents[n].Stop(within(t, repair)))
			must(t, agents[n].Start())
		}
		for _, n := range []*testbed.Node{gcp1, gcp2} {
			eventually(t, time.Minute, n.Name+" to say that a right is missing", func(ctx context.Context) error {
				status, err := agents[n].Status(ctx)
				if err == nil && !slices.ContainsFunc(status.Of(statuspage.Failing), func(c statuspage.Condition) bool { return c.Object == "prefixes of pods" }) {
					err = fmt.Errorf("it says %v", status.Conditions)
				}
				return err
			})
		}
		connected(t, plain, second, first)
		waitPrefixes(t, gcp1, "10.4.102.0/26")
		waitPrefixes(t, gcp2, "10.4.100.0/26,10.4.101.0/26,fd00:10:4:101::/122")
		granted.ResourceVersion, granted.UID = "", ""
		_, err = bindings.Create(t.Context(), granted, metav1.CreateOptions{})
		must(t, err)
		late := pod(gcp1, "late", "10.4.101.33")
		waitPrefixes(t, gcp1, "10.4.101.33/32,10.4.102.0/26")
		connected(t, plain, late)
	})

	t.Run("cleanup takes the annotation away", func(t *testing.T) {
		must(t, agents[gcp1].Stop(within(t, repair)))
		must(t, agents[gcp1].Cleanup(within(t, time.Minute)))
		waitPrefixes(t, gcp1, "none")
	})
}

// finish sets the phase of a pod to Succeeded.
func finish(t *testing.T, c *testbed.Cluster, name string) {
	t.Helper()
	pods := c.Client().CoreV1().Pods("default")
	p, err := pods.Get(t.Context(), name, metav1.GetOptions{})
	must(t, err)
	p.Status.Phase = corev1.PodSucceeded
	_, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
	must(t, err)
}
