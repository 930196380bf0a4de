package testbed_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
)

// pair is two clusters, aws with two nodes and gcp with one, and a pod on each
// node that serves HTTP on port 80.
type pair struct {
	tb               *testbed.Testbed
	aws, gcp         *testbed.Cluster
	aws1, aws2, gcp1 *testbed.Pod
}

func startPair(t *testing.T) pair {
	t.Helper()
	ctx := deadline(t, 3*time.Minute)
	tb := testbed.Start(t, testbed.Config{})
	clusters, err := tb.StartClusters(ctx, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{Name: "gcp"})
	if err != nil {
		t.Fatal(err)
	}
	p := pair{tb: tb, aws: clusters[0], gcp: clusters[1]}
	p.aws1, p.aws2, p.gcp1 = addPod(t, p.aws), addPod(t, p.aws), addPod(t, p.gcp)
	return p
}

// addPod adds a node and a pod on it.
func addPod(t *testing.T, c *testbed.Cluster) *testbed.Pod {
	t.Helper()
	ctx := t.Context()
	node, err := c.AddNode(ctx, testbed.NodeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	pod, err := node.AddPod(ctx, testbed.PodConfig{})
	if err != nil {
		t.Fatal(err)
	}
	if err := pod.Serve(ctx, 80, nil); err != nil {
		t.Fatal(err)
	}
	return pod
}

// quick bounds one exchange on the network that is expected to work.
func quick(t *testing.T) context.Context { return deadline(t, 10*time.Second) }

// silence bounds one that is expected to get no answer.
func silence(t *testing.T) context.Context { return deadline(t, 300*time.Millisecond) }

func mustGet(t *testing.T, from *testbed.Pod, to *testbed.Pod) {
	t.Helper()
	for _, url := range to.URLs(80) {
		body, err := from.Get(quick(t), url)
		if err != nil {
			t.Errorf("%v", err)
		} else if !strings.HasPrefix(body, to.Name) {
			t.Errorf("%s answers %q, want %s", url, body, to.Name)
		}
	}
}

// route adds a plain route on one node to the pods of another.
func route(t *testing.T, from, to *testbed.Node) {
	t.Helper()
	for i, prefix := range to.PodCIDRs {
		_, dst, err := netlinkNet(prefix)
		if err != nil {
			t.Fatal(err)
		}
		gateway := to.Addresses()[i]
		if err := from.Space().Netlink.RouteReplace(&netlink.Route{Dst: dst, Gw: gateway.AsSlice()}); err != nil {
			t.Fatal(err)
		}
	}
}

func TestNodesAndPods(t *testing.T) {
	p := startPair(t)
	ctx := t.Context()
	node1, node2 := p.aws1.Node, p.aws2.Node

	t.Run("the node object has podCIDRs and addresses", func(t *testing.T) {
		object, err := node1.Object(ctx)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"10.2.1.0/24", "fd00:10:2:1::/64"}
		if diff := cmp.Diff(want, object.Spec.PodCIDRs); diff != "" {
			t.Errorf("podCIDRs (-want +got):\n%s", diff)
		}
		var got []string
		for _, address := range object.Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				got = append(got, address.Address)
			}
		}
		if diff := cmp.Diff([]string{"10.66.1.1", "fd00:66::1:1"}, got); diff != "" {
			t.Errorf("InternalIPs (-want +got):\n%s", diff)
		}
	})

	t.Run("pods of one node reach each other", func(t *testing.T) {
		second, err := node1.AddPod(ctx, testbed.PodConfig{Name: "second"})
		if err != nil {
			t.Fatal(err)
		}
		mustGet(t, second, p.aws1)
		for _, address := range p.aws1.Addresses {
			if err := second.Ping(quick(t), address); err != nil {
				t.Error(err)
			}
		}
		if err := second.Remove(); err != nil {
			t.Fatal(err)
		}
		if err := p.aws1.Ping(silence(t), second.Addresses[0]); err == nil {
			t.Error("a removed pod answers")
		}
	})

	t.Run("pods of one cluster reach each other", func(t *testing.T) {
		mustGet(t, p.aws1, p.aws2)
		mustGet(t, p.aws2, p.aws1)
	})

	t.Run("pods of two clusters do not", func(t *testing.T) {
		for _, url := range p.gcp1.URLs(80) {
			if body, err := p.aws1.Get(silence(t), url); err == nil {
				t.Errorf("%s answers %q without a tunnel", url, body)
			}
		}
	})

	t.Run("a node has its own run, var lib, etc and links", func(t *testing.T) {
		const script = `set -e
			mkdir -p /var/run/wireguard /var/lib/semaphore-wireguard /etc/semaphore
			echo key >/var/lib/semaphore-wireguard/key
			echo configuration >/etc/semaphore/file
			touch /var/run/wireguard/socket
			ls /sys/class/net`
		out, err := node1.Run(quick(t), "sh", "-c", script)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff("cni0 eth0 lo veth1", strings.Join(strings.Fields(out), " ")); diff != "" {
			t.Errorf("links in /sys (-want +got):\n%s", diff)
		}
		for _, path := range []string{"/var/run/wireguard/socket", "/var/lib/semaphore-wireguard/key", "/etc/semaphore/file"} {
			if _, err := os.Stat(path); err == nil {
				t.Errorf("%s has appeared on this machine", path)
			}
			if _, err := node2.Run(quick(t), "test", "-e", path); err == nil {
				t.Errorf("%s has appeared on another node", path)
			}
		}
		if content := read(t, filepath.Join(node1.VarLib(), "semaphore-wireguard", "key")); content != "key\n" {
			t.Errorf("VarLib has %q", content)
		}
	})

	t.Run("a process in a node speaks to the API server as a pod would", func(t *testing.T) {
		if err := p.aws.Grant(ctx, "kube-system", "reader", readNodes()); err != nil {
			t.Fatal(err)
		}
		credentials, err := p.aws.Credentials(ctx, "kube-system", "reader")
		if err != nil {
			t.Fatal(err)
		}
		mount, env := credentials.InCluster()
		process, err := node1.Start(sandbox.Command{
			Name:   "in-cluster",
			Path:   "/bin/sh",
			Args:   []string{"-c", "cd /var/run/secrets/kubernetes.io/serviceaccount && cat namespace token ca.crt && echo $KUBERNETES_SERVICE_HOST"},
			Env:    env,
			Mounts: []sandbox.Mount{mount},
		})
		if err != nil {
			t.Fatal(err)
		}
		<-process.Done()
		want := "kube-system" + read(t, credentials.TokenFile()) + read(t, p.aws.CAFile()) + "10.66.0.11\n"
		if diff := cmp.Diff(want, process.Log()); diff != "" || process.Err() != nil {
			t.Errorf("%v, output (-want +got):\n%s", process.Err(), diff)
		}
		if _, err := node1.Run(quick(t), "test", "-e", "/var/run/secrets/kubernetes.io/serviceaccount/token"); err == nil {
			t.Error("the token is visible to other processes of the node")
		}
	})

	t.Run("a pod object is bound and running", func(t *testing.T) {
		pod, err := node2.AddPod(ctx, testbed.PodConfig{
			Name:   "forwarder",
			Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Labels: map[string]string{"app": "forwarder"}}},
		})
		if err != nil {
			t.Fatal(err)
		}
		list, err := p.aws.Client().CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=forwarder"})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("pods %v, %v, want one", list, err)
		}
		got := list.Items[0]
		if got.Name != "forwarder" || got.Spec.NodeName != node2.Name || got.Status.Phase != corev1.PodRunning {
			t.Errorf("pod %s on %q is %s", got.Name, got.Spec.NodeName, got.Status.Phase)
		}
		for i, address := range pod.Addresses {
			if got.Status.PodIPs[i].IP != address.String() {
				t.Errorf("podIPs %v, want %v", got.Status.PodIPs, pod.Addresses)
			}
		}
	})
}

func TestFaults(t *testing.T) {
	p := startPair(t)
	ctx := t.Context()
	node1, node2 := p.aws1.Node, p.aws2.Node
	apiAddress := strings.TrimPrefix(p.aws.APIURL(), "https://")
	connect := func(ctx context.Context) error {
		conn, err := node1.Dial(ctx, "tcp", apiAddress)
		if err != nil {
			return err
		}
		return conn.Close()
	}

	t.Run("a cut API server is silent for nodes only", func(t *testing.T) {
		if err := connect(quick(t)); err != nil {
			t.Fatalf("before: %v", err)
		}
		if err := p.aws.CutAPI(); err != nil {
			t.Fatal(err)
		}
		// A refusal or a reset is an error as well, but no timeout.
		err := connect(silence(t))
		if timeout, ok := errors.AsType[net.Error](err); !ok || !timeout.Timeout() {
			t.Errorf("cut: %v, want no answer at all", err)
		}
		if _, err := node1.Object(quick(t)); err != nil {
			t.Errorf("the administrator is cut off too: %v", err)
		}
		if err := p.aws.RestoreAPI(); err != nil {
			t.Fatal(err)
		}
		if err := connect(quick(t)); err != nil {
			t.Errorf("restored: %v", err)
		}
	})

	t.Run("the underlay between two nodes is dropped", func(t *testing.T) {
		if err := p.tb.Drop(node1, node2); err != nil {
			t.Fatal(err)
		}
		if err := node1.Ping(silence(t), node2.Addresses()[0]); err == nil {
			t.Error("dropped, but a ping gets through")
		}
		if err := node1.Ping(quick(t), p.gcp1.Node.Addresses()[0]); err != nil {
			t.Errorf("the way to a third node is dropped as well: %v", err)
		}
		if err := p.tb.Restore(node1, node2); err != nil {
			t.Fatal(err)
		}
		if err := node1.Ping(quick(t), node2.Addresses()[0]); err != nil {
			t.Errorf("restored: %v", err)
		}
	})

	t.Run("a reboot keeps the disk and loses the rest", func(t *testing.T) {
		if err := node1.Patch(ctx, `{"metadata":{"annotations":{"kept":"yes"}}}`); err != nil {
			t.Fatal(err)
		}
		const prepare = `touch /var/lib/disk /etc/disk /run/memory &&
			ip link add extra type bridge && ip route add unreachable 10.99.0.0/16 proto 115`
		if _, err := node1.Run(quick(t), "sh", "-c", prepare); err != nil {
			t.Fatal(err)
		}
		agent, err := node1.Start(sandbox.Command{Name: "agent", Path: "/bin/sleep", Args: []string{"infinity"}})
		if err != nil {
			t.Fatal(err)
		}
		if err := node1.Reboot(); err != nil {
			t.Fatal(err)
		}
		if agent.Running() {
			t.Error("a process survived")
		}
		const check = `test -e /var/lib/disk && test -e /etc/disk && ! test -e /run/memory &&
			! ip link show extra 2>/dev/null && test -z "$(ip route show proto 115)"`
		if out, err := node1.Run(quick(t), "sh", "-c", check); err != nil {
			t.Errorf("%v %s", err, out)
		}
		object, err := node1.Object(ctx)
		if err != nil || object.Annotations["kept"] != "yes" {
			t.Errorf("annotations %v, %v", object.Annotations, err)
		}
		if body, err := p.aws2.Get(silence(t), p.aws1.URL(80)); err == nil {
			t.Errorf("a server survived: %q", body)
		}
		if err := p.aws1.Serve(ctx, 80, nil); err != nil {
			t.Fatal(err)
		}
		mustGet(t, p.aws2, p.aws1)
	})

	t.Run("flushed routes and deleted links", func(t *testing.T) {
		const prepare = `ip route add unreachable 10.99.0.0/16 proto 115 metric 4294967295 &&
			ip -6 route add unreachable fd99::/64 proto 115 && ip route add unreachable 10.98.0.0/16 &&
			ip link add wireguard.gcp type bridge && ip link set wireguard.gcp up`
		if _, err := node1.Run(quick(t), "sh", "-c", prepare); err != nil {
			t.Fatal(err)
		}
		if count, err := node1.FlushRoutes(); err != nil || count != 2 {
			t.Errorf("flushed %d, %v, want 2", count, err)
		}
		const check = `test -z "$(ip route show proto 115; ip -6 route show proto 115)" && ip route show 10.98.0.0/16 | grep -q 98`
		if _, err := node1.Run(quick(t), "sh", "-c", check); err != nil {
			t.Error(err)
		}
		if err := node1.SetLinkDown("wireguard.gcp"); err != nil {
			t.Error(err)
		}
		if _, err := node1.Run(quick(t), "sh", "-c", "ip link show wireguard.gcp | grep -q 'state DOWN'"); err != nil {
			t.Error(err)
		}
		if err := node1.DeleteLink("wireguard.gcp"); err != nil {
			t.Error(err)
		}
		if err := node1.DeleteLink("wireguard.gcp"); err == nil || !strings.Contains(err.Error(), "wireguard.gcp") {
			t.Errorf("deleting it again: %v, want an error that names it", err)
		}
	})

	t.Run("changed addresses", func(t *testing.T) {
		before := node1.Addresses()
		after := []netip.Addr{netip.MustParseAddr("10.22.22.27"), netip.MustParseAddr("fd00:66::99")}
		if err := node1.SetAddresses(ctx, after...); err != nil {
			t.Fatal(err)
		}
		object, err := node1.Object(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, address := range object.Status.Addresses {
			if address.Type == corev1.NodeInternalIP {
				got = append(got, address.Address)
			}
		}
		if diff := cmp.Diff([]string{"10.22.22.27", "fd00:66::99"}, got); diff != "" {
			t.Errorf("InternalIPs (-want +got):\n%s", diff)
		}
		for _, address := range after {
			if err := node2.Ping(quick(t), address); err != nil {
				t.Error(err)
			}
		}
		if err := node2.Ping(silence(t), before[0]); err == nil {
			t.Error("the old address still answers")
		}
		if err := connect(quick(t)); err != nil {
			t.Errorf("the API server is out of reach: %v", err)
		}
		mustGet(t, p.aws2, p.aws1)
	})
}

func TestObjectsWithoutMachines(t *testing.T) {
	ctx := deadline(t, 2*time.Minute)
	tb := testbed.Start(t, testbed.Config{})
	c, err := tb.StartCluster(ctx, testbed.ClusterConfig{
		Name:       "aws",
		PodSubnets: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16"), netip.MustParsePrefix("fd00:10:2::/48")},
	})
	if err != nil {
		t.Fatal(err)
	}
	err = c.AddObjects(ctx, 250, func(i int, node *corev1.Node) {
		if i == 7 {
			node.Annotations = map[string]string{"seven": "yes"}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[string]bool)
	for _, node := range list.Items {
		seen[node.Spec.PodCIDR] = true
		if (node.Annotations["seven"] == "yes") != (node.Name == "aws-object-00007") {
			t.Errorf("%s has annotations %v", node.Name, node.Annotations)
		}
	}
	if len(list.Items) != 250 || len(seen) != 250 {
		t.Errorf("%d nodes with %d different podCIDRs, want 250", len(list.Items), len(seen))
	}
	if err := c.AddObjects(ctx, 10, nil); err == nil || !strings.Contains(err.Error(), "10.2.0.0/16") {
		t.Errorf("260 nodes in a /16: %v, want an error that names it", err)
	}
}
