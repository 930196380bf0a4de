package scenarios_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/routes"
)

// TestMovingOver takes a mesh from the original tool to ours, node by node and
// one node back again, as described in docs/moving-from-the-original.md. What the
// original leaves in a kernel's WireGuard is the matter of the tests of tunnel and
// routes: here is none.
func TestMovingOver(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{})
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 5*time.Minute)
	// The original knows one pod subnet for each cluster.
	clusters, err := tb.StartClusters(ctx,
		testbed.ClusterConfig{Name: "aws", PodSubnets: []netip.Prefix{netip.MustParsePrefix("10.2.0.0/16")}},
		testbed.ClusterConfig{Name: "gcp", PodSubnets: []netip.Prefix{netip.MustParsePrefix("10.4.0.0/16")}})
	must(t, err)
	must(t, programs.Grant(ctx, programs.WireGuard, clusters...))
	wireguardGo, err := programs.BuildWireGuardGo(ctx, t.TempDir())
	must(t, err)

	var olds []*original
	var pods []*testbed.Pod
	for i, c := range clusters {
		node, err := c.AddNode(ctx, testbed.NodeConfig{})
		must(t, err)
		pod, err := node.AddPod(ctx, testbed.PodConfig{})
		must(t, err)
		must(t, pod.Serve(ctx, programs.PodPort, nil))
		pods = append(pods, pod)
		old := newOriginal(t, node, clusters[1-i])
		old.binary, old.roots = wireguardGo, tb.PublicCAFile()
		olds = append(olds, old)
	}
	for _, o := range olds {
		o.start(t)
	}
	connected := func(what string) {
		t.Helper()
		for i := range pods {
			if err := programs.WaitReach(within(t, repair), pods[i], pods[1-i]); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	olds[0].peerWith(t, olds[1])
	olds[1].peerWith(t, olds[0])
	connected("both original")

	agent := moved(t, olds[0])
	connected("one of ours, one original that has noticed nothing")
	if out, err := agent.Node.Run(t.Context(), "ip", "route", "show", "table", "115115"); err != nil || !strings.Contains(out, "unreachable 10.4.0.0/16 proto 115") {
		t.Errorf("no guard: %v\n%s", err, out)
	}

	// And back, with the guards that our agent leaves, and again after a cleanup.
	for _, leave := range []func(){
		func() {
			must(t, agent.StopPod(within(t, repair)))
			// It is kept, and lets packets pass that the original decrypts.
			_, err := agent.Node.Run(t.Context(), "nft", "list", "table", "inet", routes.FilterTable)
			must(t, err)
		},
		func() {
			must(t, agent.StopPod(within(t, repair)))
			testCleanup(t, agent)
		},
	} {
		leave()
		olds[0].start(t)
		olds[0].peerWith(t, olds[1])
		connected("both original again")
		agent = moved(t, olds[0])
		connected("one of ours again")
	}
	moved(t, olds[1])
	connected("both ours")
	eventually(t, repair, "a status without complaint", func(ctx context.Context) error {
		_, err := agent.Node.Run(ctx, program(t, programs.WireGuard), "status")
		return err
	})
}

// original stands for the original agent of a node: it creates the same state, in the forms of
// the source documents. It doesn't watch.
type original struct {
	node   *testbed.Node
	remote *testbed.Cluster
	device string
	key    wgtypes.Key
	port   uint16
	binary string
	roots  string // file of the CAs of the servers of CA URLs

	process *sandbox.Process
}

func newOriginal(t *testing.T, node *testbed.Node, remote *testbed.Cluster) *original {
	t.Helper()
	key, err := wgtypes.GeneratePrivateKey()
	must(t, err)
	o := &original{node: node, remote: remote, device: "wireguard." + remote.Name, key: key, port: 51821}
	// Without a line break at the end.
	must(t, os.MkdirAll(filepath.Dir(o.keyFile()), 0o755))
	must(t, os.WriteFile(o.keyFile(), []byte(key.String()), 0o600))
	return o
}

// keyFile is the path of the key file outside of the node, which has it in /var/lib.
func (o *original) keyFile() string {
	return filepath.Join(o.node.VarLib(), programs.WireGuard, o.device+".key")
}

// start sets up the device with its key and the route, and publishes both.
func (o *original) start(t *testing.T) {
	t.Helper()
	process, err := o.node.Start(sandbox.Command{Name: "original", Path: o.binary, Args: []string{"-f", o.device}})
	must(t, err)
	o.process = process
	conn, err := programs.DialUAPI(within(t, repair), process, o.device)
	must(t, err)
	must(t, conn.Close())
	o.run(t, "wg", "set", o.device, "listen-port", strconv.Itoa(int(o.port)), "private-key", "/var/lib/semaphore-wireguard/"+o.device+".key")
	o.run(t, "ip", "link", "set", o.device, "up")
	o.run(t, "ip", "route", "replace", o.remote.PodSubnets[0].String(), "dev", o.device, "scope", "link", "proto", "boot")
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": o.annotations()}})
	must(t, err)
	_, err = o.node.Cluster.Client().CoreV1().Nodes().Patch(t.Context(), o.node.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{FieldManager: programs.WireGuard})
	must(t, err)
}

func (o *original) annotations() map[string]string {
	return map[string]string{
		o.remote.Name + ".wireguard.semaphore.uw.io/pubKey":   o.key.PublicKey().String(),
		o.remote.Name + ".wireguard.semaphore.uw.io/endpoint": o.endpoint(),
	}
}

func (o *original) endpoint() string {
	return netip.AddrPortFrom(o.node.Addresses()[0], o.port).String()
}

// peerWith adds the other one as a peer, from its published annotations.
func (o *original) peerWith(t *testing.T, other *original) {
	t.Helper()
	object, err := other.node.Object(t.Context())
	must(t, err)
	read := func(name string) string {
		return object.Annotations[o.node.Cluster.Name+".wireguard.semaphore.uw.io/"+name]
	}
	o.run(t, "wg", "set", o.device, "peer", read("pubKey"), "endpoint", read("endpoint"),
		"allowed-ips", object.Spec.PodCIDR, "persistent-keepalive", "25")
}

func (o *original) run(t *testing.T, program string, args ...string) {
	t.Helper()
	if out, err := o.node.Run(t.Context(), program, args...); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// moved ends the original on a node, starts our agent with the original's configuration, and
// checks that it has taken over its state.
func moved(t *testing.T, o *original) *programs.Agent {
	t.Helper()
	before, err := o.node.Object(t.Context())
	must(t, err)
	must(t, o.process.Stop(within(t, repair)))
	agent, err := programs.PrepareAgent(t.Context(), program(t, programs.WireGuard), o.node, o.remote)
	must(t, err)
	config := filepath.Join(t.TempDir(), "config.json")
	must(t, os.WriteFile(config, fmt.Appendf(nil, `{
  "local": {"name": %q},
  "remotes": [{
    "name": %q, "remoteAPIURL": %q, "remoteCAURL": %q, "remoteSATokenPath": %q,
    "podSubnet": %q, "wgDeviceMTU": 1380, "wgListenPort": 51821
  }]
}`, o.node.Cluster.Name, o.remote.Name, o.remote.APIURL(), o.remote.CAURL(), agent.Remote[o.remote.Name].TokenFile(),
		o.remote.PodSubnets[0]), 0o600))
	for name := range agent.Env {
		if name == "SEMAPHORE_CLUSTER_NAME" || strings.HasPrefix(name, "SEMAPHORE_REMOTE") {
			delete(agent.Env, name)
		}
	}
	agent.Env["SEMAPHORE_CLUSTERS_CONFIG"] = config
	agent.Env["SSL_CERT_FILE"] = o.roots
	must(t, agent.StartEngine())
	must(t, agent.Start())
	eventually(t, time.Minute, "the agent to be ready", agent.Ready)

	status, err := agent.Status(t.Context())
	must(t, err)
	if device := status.Remote(o.remote.Name).Device; device.Name != o.device || device.PublicKey != o.key.PublicKey().String() {
		t.Errorf("the device is %+v, want %s with the key that was there, %s", device, o.device, o.key.PublicKey())
	}
	after, err := o.node.Object(t.Context())
	must(t, err)
	for name, want := range o.annotations() {
		if before.Annotations[name] != want || after.Annotations[name] != want {
			t.Errorf("%s was %q and is %q, want %q", name, before.Annotations[name], after.Annotations[name], want)
		}
	}
	return agent
}
