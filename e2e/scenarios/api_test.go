package scenarios_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// TestRemoteAPIServerAway makes the remote's API server unreachable in several ways.
func TestRemoteAPIServerAway(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	agent, from, to := p.Agents[0], p.Pods[0], p.Pods[1]

	t.Run("later: nothing changes, and metrics show it", func(t *testing.T) {
		before, err := agent.Status(t.Context())
		must(t, err)
		p.GCP.StopAPI()
		eventually(t, repair, "the failure to be seen", func(ctx context.Context) error {
			return hasAPIError(ctx, agent, "gcp")
		})
		must(t, agent.Ready(t.Context()))
		must(t, agent.Healthy(t.Context()))
		must(t, programs.Reach(within(t, repair), from, to))
		after, err := agent.Status(t.Context())
		must(t, err)
		if b, a := before.Remote("gcp"), after.Remote("gcp"); len(a.Peers) != 1 || a.Peers[0].PublicKey != b.Peers[0].PublicKey || after.Link("gcp") != before.Link("gcp") {
			t.Errorf("before %+v, after %+v", b, a)
		}
		metrics, err := agent.Metrics(t.Context())
		must(t, err)
		if strings.Contains(metrics, `semaphore_wg_node_watcher_failures_total{cluster="gcp",kind="nodes",verb="list"} 0`) &&
			strings.Contains(metrics, `semaphore_wg_node_watcher_failures_total{cluster="gcp",kind="nodes",verb="watch"} 0`) {
			t.Error("no failure is counted")
		}
	})

	t.Run("at start: the mesh comes from disk", func(t *testing.T) {
		must(t, waitStored(t, agent.Node))
		must(t, agent.Node.Reboot())
		must(t, from.Serve(t.Context(), programs.PodPort, nil))
		must(t, agent.Start())
		must(t, programs.WaitReach(within(t, repair), from, to))
		status, err := agent.Status(t.Context())
		must(t, err)
		if got := status.Remote("gcp").Source; got != "disk" {
			t.Errorf("peers come from %q", got)
		}
		must(t, agent.Ready(t.Context()))
	})

	t.Run("back: it catches up", func(t *testing.T) {
		must(t, p.GCP.StartAPI(within(t, 3*time.Minute)))
		node, err := p.GCP.AddNode(t.Context(), testbed.NodeConfig{})
		must(t, err)
		pod, err := node.AddPod(t.Context(), testbed.PodConfig{})
		must(t, err)
		must(t, pod.Serve(t.Context(), programs.PodPort, nil))
		_, err = programs.StartAgent(t.Context(), p.Binary, node, p.AWS)
		must(t, err)
		must(t, programs.WaitReach(within(t, time.Minute), from, pod))
		waitPeers(t, agent, "gcp", "gcp-1", "gcp-2")
	})

	t.Run("cut off: nothing changes, and afterwards it catches up", func(t *testing.T) {
		watched := keepsSession(t, agent, "gcp", "gcp-1")
		must(t, p.GCP.CutAPI())
		gone := p.GCP.Nodes()[1]
		must(t, p.GCP.Client().CoreV1().Nodes().Delete(t.Context(), gone.Name, metav1.DeleteOptions{}))
		must(t, programs.Reach(within(t, repair), from, to))
		waitPeers(t, agent, "gcp", "gcp-1", "gcp-2")
		must(t, p.GCP.RestoreAPI())
		waitPeers(t, agent, "gcp", "gcp-1")
		must(t, programs.Reach(within(t, repair), from, to))
		watched()
	})

	t.Run("an expired token is reported and a new one is used", func(t *testing.T) {
		credentials := agent.Remote["gcp"]
		must(t, credentials.Invalidate(t.Context()))
		must(t, credentials.Expire(t.Context()))
		p.GCP.StopAPI()
		must(t, p.GCP.StartAPI(within(t, 3*time.Minute)))
		eventually(t, time.Minute, "the expired token to be reported", func(ctx context.Context) error {
			return hasAPIError(ctx, agent, "gcp", "Unauthorized")
		})
		must(t, programs.Reach(within(t, repair), from, to))
		must(t, credentials.Rotate(t.Context()))
		eventually(t, time.Minute, "contact with the new token", func(ctx context.Context) error {
			status, err := agent.Status(ctx)
			if err == nil && status.Remote("gcp").API.Error != "" {
				err = fmt.Errorf("still %s", status.Remote("gcp").API.Error)
			}
			return err
		})
		if log := agent.Process().Log(); strings.Contains(log, readFile(t, credentials.TokenFile())) {
			t.Error("the token is in the log")
		}
	})
}

// TestOneRemoteFails gives an agent of aws three remotes, two of which fail, and expects the
// third to work.
func TestOneRemoteFails(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	ctx := within(t, 5*time.Minute)
	merit, err := p.Testbed.StartCluster(ctx, testbed.ClusterConfig{Name: "merit"})
	must(t, err)
	must(t, programs.Grant(ctx, programs.WireGuard, merit))

	for name, spoil := range map[string]func(*testing.T, *programs.Agent){
		"dead API server": func(_ *testing.T, a *programs.Agent) {
			a.Env[programs.Variable("merit", "API_URL")] = "https://10.66.0.250:6443"
		},
		"wrong CA": func(_ *testing.T, a *programs.Agent) {
			a.Env[programs.Variable("merit", "CA_FILE")] = p.GCP.CAFile()
		},
		"expired token": func(t *testing.T, a *programs.Agent) { must(t, a.Remote["merit"].Expire(t.Context())) },
		"kubeconfig that isn't there": func(t *testing.T, a *programs.Agent) {
			for _, v := range []string{"API_URL", "CA_FILE", "TOKEN_FILE"} {
				delete(a.Env, programs.Variable("merit", v))
			}
			a.Env[programs.Variable("merit", "KUBECONFIG")] = filepath.Join(t.TempDir(), "none")
		},
	} {
		t.Run(name, func(t *testing.T) {
			node, err := p.AWS.AddNode(t.Context(), testbed.NodeConfig{})
			must(t, err)
			pod, err := node.AddPod(t.Context(), testbed.PodConfig{})
			must(t, err)
			must(t, pod.Serve(t.Context(), programs.PodPort, nil))
			agent, err := programs.PrepareAgent(t.Context(), p.Binary, node, merit, p.GCP)
			must(t, err)
			agent.Env[programs.Variable("gcp", "WG_LISTEN_PORT")] = "51820"
			agent.Env[programs.Variable("merit", "WG_LISTEN_PORT")] = "51821"
			spoil(t, agent)
			must(t, agent.Start())
			must(t, programs.WaitReach(within(t, time.Minute), pod, p.Pods[1]))
			must(t, programs.WaitReach(within(t, time.Minute), p.Pods[1], pod))
			eventually(t, time.Minute, "the failure to be reported", func(ctx context.Context) error {
				return hasAPIError(ctx, agent, "merit")
			})
			must(t, agent.Healthy(t.Context()))
			// A rollout that waits for this node continues with the next one.
			eventually(t, time.Minute, "the agent to be ready", agent.Ready)
			if !agent.Process().Running() {
				t.Error("the agent has ended")
			}
			must(t, agent.Stop(within(t, repair)))
		})
	}
}

// TestThreeClusters joins a third cluster, with a name too long for a device
// name, to a running pair.
func TestThreeClusters(t *testing.T) {
	t.Parallel()
	p := startPair(t, 1)
	ctx := within(t, 5*time.Minute)
	merit, err := p.Testbed.StartCluster(ctx, testbed.ClusterConfig{Name: "merit-on-premises"})
	must(t, err)
	must(t, programs.Grant(ctx, programs.WireGuard, merit))
	node, err := merit.AddNode(ctx, testbed.NodeConfig{})
	must(t, err)
	pod, err := node.AddPod(ctx, testbed.PodConfig{})
	must(t, err)
	must(t, pod.Serve(ctx, programs.PodPort, nil))
	third, err := programs.StartAgent(ctx, p.Binary, node, p.AWS, p.GCP)
	must(t, err)
	for i, agent := range p.Agents {
		must(t, agent.Stop(ctx))
		both, err := programs.PrepareAgent(ctx, p.Binary, agent.Node, p.Remotes(agent.Node.Cluster)[0], merit)
		must(t, err)
		// The port that merit's agent uses for this cluster is another one:
		// each side says where it listens.
		must(t, both.Start())
		p.Agents[i] = both
	}
	must(t, p.WaitConnected(within(t, time.Minute)))
	for _, other := range p.Pods {
		must(t, programs.WaitReach(within(t, time.Minute), pod, other))
		must(t, programs.WaitReach(within(t, time.Minute), other, pod))
	}
	status, err := third.Status(ctx)
	must(t, err)
	if got := status.Remote("gcp").Device.Name; got != "wireguard.gcp" {
		t.Errorf("device to gcp is %q", got)
	}
	status, err = p.Agents[0].Status(ctx)
	must(t, err)
	long := status.Remote("merit-on-premises").Device.Name
	if !strings.HasPrefix(long, "wg.merit.") || len(long) > 15 {
		t.Errorf("device to merit-on-premises is %q", long)
	}

	t.Run("a remote that is no longer configured goes", func(t *testing.T) {
		agent := p.Agents[0]
		must(t, agent.Stop(within(t, repair)))
		agent.Env["SEMAPHORE_REMOTES"] = "gcp"
		must(t, agent.Start())
		eventually(t, repair, "device, routes, stored peers and annotations to go", func(ctx context.Context) error {
			if readStored(agent.Node, long) > 0 {
				return fmt.Errorf("the peers of %s are stored", long)
			}
			links, err := agent.Node.Run(ctx, "ip", "link", "show")
			if err != nil {
				return err
			}
			if strings.Contains(links, long) {
				return fmt.Errorf("%s is there", long)
			}
			object, err := agent.Node.Object(ctx)
			if err != nil {
				return err
			}
			for k := range object.Annotations {
				if strings.HasPrefix(k, "merit-on-premises.") {
					return fmt.Errorf("annotation %s is there", k)
				}
			}
			return hasRoutes(ctx, agent.Node, 4)
		})
		must(t, p.WaitConnected(within(t, repair)))
	})
}

// hasAPIError returns nil if the agent reports that a remote's API server can't
// be used, with one of the words if there are any.
func hasAPIError(ctx context.Context, a *programs.Agent, remote string, words ...string) error {
	status, err := a.Status(ctx)
	if err != nil {
		return err
	}
	got := status.Remote(remote).API.Error
	if got == "" {
		return fmt.Errorf("%s reports no error of %s", a.Node.Name, remote)
	}
	for _, w := range words {
		if !strings.Contains(got, w) {
			return fmt.Errorf("%s reports %q of %s, want %q in it", a.Node.Name, got, remote, w)
		}
	}
	return nil
}

// waitStored waits until the agent of a node has its peers on disk.
func waitStored(t *testing.T, node *testbed.Node) error {
	return testbed.Wait(within(t, repair), "peers on disk", func(context.Context) error {
		found, err := filepath.Glob(filepath.Join(node.VarLib(), programs.WireGuard, "*.peers.json"))
		if err == nil && len(found) == 0 {
			err = os.ErrNotExist
		}
		return err
	})
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	must(t, err)
	return string(data)
}
