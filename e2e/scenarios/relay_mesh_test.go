package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// TestMeshWithARelay joins a cluster with semaphore-relay, one whose agents read the others
// directly, and one with the original tool. The first moves to the relay and back, and loses the
// relay and its objects meanwhile; clients notice nothing.
func TestMeshWithARelay(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	tb := testbed.Start(t, testbed.Config{})
	t.Cleanup(func() { soundLogs(t, tb) })
	ctx := within(t, 8*time.Minute)
	var configs []testbed.ClusterConfig
	for name, subnet := range map[string]string{"aws": "10.2.0.0/16", "gcp": "10.4.0.0/16", "merit": "10.6.0.0/16"} {
		// The original knows one pod subnet for each cluster.
		configs = append(configs, testbed.ClusterConfig{Name: name, PodSubnets: []netip.Prefix{netip.MustParsePrefix(subnet)}})
	}
	started, err := tb.StartClusters(ctx, configs...)
	must(t, err)
	clusters := map[string]*testbed.Cluster{}
	for _, c := range started {
		clusters[c.Name] = c
	}
	aws, gcp, merit := clusters["aws"], clusters["gcp"], clusters["merit"]
	must(t, programs.Grant(ctx, programs.WireGuard, started...))
	wireguardGo, err := programs.BuildWireGuardGo(ctx, t.TempDir())
	must(t, err)
	pods := map[string]*testbed.Pod{}
	for name, c := range clusters {
		node, err := c.AddNode(ctx, testbed.NodeConfig{})
		must(t, err)
		pods[name], err = node.AddPod(ctx, testbed.PodConfig{})
		must(t, err)
		must(t, pods[name].Serve(ctx, programs.PodPort, nil))
	}
	agent, err := programs.StartAgent(ctx, program(t, programs.WireGuard), pods["aws"].Node, gcp, merit)
	must(t, err)
	direct, err := programs.StartAgent(ctx, program(t, programs.WireGuard), pods["gcp"].Node, aws, merit)
	must(t, err)
	// One device for each remote.
	for i, remote := range []*programs.Agent{agent, direct} {
		old := newOriginal(t, pods["merit"].Node, remote.Node.Cluster)
		old.binary, old.roots, old.port = wireguardGo, tb.PublicCAFile(), uint16(51821+i)
		old.start(t)
		eventually(t, repair, "the agent to publish for merit", func(ctx context.Context) error {
			object, err := remote.Node.Object(ctx)
			if err == nil && object.Annotations["merit.wireguard.semaphore.uw.io/endpoint"] == "" {
				err = errors.New("no endpoint")
			}
			return err
		})
		old.peerWith(t, &original{node: remote.Node})
	}
	for from, to := range map[string]string{"aws": "gcp", "gcp": "merit", "merit": "aws"} {
		must(t, programs.WaitReach(within(t, repair), pods[from], pods[to]))
		must(t, programs.WaitReach(within(t, repair), pods[to], pods[from]))
	}

	// From now on nothing is lost.
	clients := map[string]*asking{
		"aws to gcp":   ask(t, pods["aws"], pods["gcp"].URL(programs.PodPort)),
		"gcp to aws":   ask(t, pods["gcp"], pods["aws"].URL(programs.PodPort)),
		"aws to merit": ask(t, pods["aws"], pods["merit"].URL(programs.PodPort)),
	}
	began := time.Now()
	checked := func(what string) {
		t.Helper()
		for name, client := range clients {
			if failed, last := client.Failed(began); failed > 0 {
				t.Errorf("%s: %s: %d of %d requests failed, the last one after %v", what, name, failed, len(client.Since(began)), last.Sub(began))
			}
		}
	}
	gcpPeers := 1
	reads := func(what string, want func(*programs.Status) error) {
		t.Helper()
		eventually(t, time.Minute, what, func(ctx context.Context) error {
			s, err := agent.Status(ctx)
			if err != nil {
				return err
			}
			for remote, peers := range map[string]int{"gcp": gcpPeers, "merit": 1} {
				if n := len(s.Remote(remote).Peers); n != peers {
					return fmt.Errorf("remote %s has %d peers", remote, n)
				}
			}
			return want(s)
		})
		checked(what)
	}
	synced := func(s *programs.Status) error {
		for _, remote := range []string{"gcp", "merit"} {
			if r := s.Remote(remote); r.Source != "api" || r.API.Error != "" {
				return fmt.Errorf("remote %s: peers from %s: %s", remote, r.Source, r.API.Error)
			}
		}
		if len(s.Of(statuspage.Failing)) > 0 || !s.Local {
			return fmt.Errorf("failing: %v, own nodes known: %v", s.Conditions, s.Local)
		}
		return nil
	}
	reads("direct reading", synced)
	access := maps.Clone(agent.Env)
	restart := func(from string) {
		t.Helper()
		must(t, agent.Stop(within(t, repair)))
		maps.Copy(agent.Env, access)
		if from == config.RemotesFromRelay {
			for _, remote := range []string{"gcp", "merit"} {
				for _, name := range []string{"API_URL", "CA_FILE", "TOKEN_FILE"} {
					delete(agent.Env, programs.Variable(remote, name))
				}
			}
		}
		agent.Env["SEMAPHORE_REMOTES_FROM"] = from
		must(t, agent.Start())
		eventually(t, time.Minute, "the agent to be ready", agent.Ready)
	}

	// Without the CustomResourceDefinition, without credentials, and without the right to list
	// nodes.
	must(t, aws.Apply(ctx, filepath.Join(deployFolder(t), "wireguard", "relay", "rbac.yaml")))
	_, err = aws.Kubectl(ctx, "patch", "clusterrole", programs.WireGuard, "--type=json", "-p", `[{"op":"replace","path":"/rules/0/verbs","value":["get","patch"]}]`)
	must(t, err)
	must(t, aws.AwaitRight(ctx, systemNamespace, programs.WireGuard, authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}, false))
	restart(config.RemotesFromRelay)
	reads("no CRD", func(s *programs.Status) error {
		for _, remote := range []string{"gcp", "merit"} {
			if r := s.Remote(remote); !strings.Contains(r.API.Error, "apply deploy/relay") || r.Source != "disk" {
				return fmt.Errorf("remote %s: peers from %s: %s", remote, r.Source, r.API.Error)
			}
		}
		return nil
	})

	must(t, aws.Apply(ctx, filepath.Join(deployFolder(t), "relay", "crd.yaml")))
	must(t, programs.Grant(ctx, programs.Relay, aws))
	relay, err := programs.Prepare(ctx, programs.Config{Name: programs.Relay, Binary: program(t, programs.Relay), Port: 7790}, pods["aws"].Node, gcp, merit)
	must(t, err)
	must(t, relay.Start())
	heard := func(late bool) func(*programs.Status) error {
		return func(s *programs.Status) error {
			for name, c := range s.Relay {
				if c.Late != late || c.Error != "" {
					return fmt.Errorf("Lease for %s: %+v", name, c)
				}
			}
			return synced(s)
		}
	}
	reads("the relay's objects", heard(false))

	relay.Kill()
	restart(config.RemotesFromRelay)
	reads("a restart without the relay", synced)
	reads("a relay that is gone", heard(true))
	out, err := aws.Kubectl(ctx, "delete", "--namespace", systemNamespace, "--all", v1alpha1.Resource)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	incomplete := func(source string) func(*programs.Status) error {
		return func(s *programs.Status) error {
			for _, remote := range []string{"gcp", "merit"} {
				if r := s.Remote(remote); !strings.Contains(r.API.Error, "no objects") || r.Source != source {
					return fmt.Errorf("remote %s: peers from %s: %s", remote, r.Source, r.API.Error)
				}
			}
			return nil
		}
	}
	reads("objects that were deleted", incomplete("api"))
	restart(config.RemotesFromRelay)
	reads("a restart without objects", incomplete("disk"))

	must(t, relay.Start())
	reads("the relay again", heard(false))
	node, err := gcp.AddNode(ctx, testbed.NodeConfig{})
	must(t, err)
	pod, err := node.AddPod(ctx, testbed.PodConfig{})
	must(t, err)
	must(t, pod.Serve(ctx, programs.PodPort, nil))
	_, err = programs.StartAgent(ctx, program(t, programs.WireGuard), node, aws, merit)
	must(t, err)
	gcpPeers = 2
	must(t, programs.WaitReach(within(t, repair), pods["aws"], pod))
	must(t, programs.WaitReach(within(t, repair), pod, pods["aws"]))
	reads("a new node of gcp", heard(false))

	must(t, programs.Grant(ctx, programs.WireGuard, aws))
	must(t, aws.AwaitRight(ctx, systemNamespace, programs.WireGuard, authorizationv1.ResourceAttributes{Verb: "list", Resource: "nodes"}, true))
	restart(config.RemotesFromAPI)
	reads("direct reading again", synced)
	for name, client := range clients {
		client.Stop()
		failed, _ := client.Failed(began)
		t.Logf("%s: %d requests, %d failed", name, len(client.Since(began)), failed)
	}
	checked("in the end")
}
