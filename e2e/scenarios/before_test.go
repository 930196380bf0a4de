package scenarios_test

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/nstest"
)

// TestMovingFromTheReleaseBefore replaces an agent of the previous release, which doesn't
// support takeover, and moves back, under a TCP connection. The upgrade surges: both are
// active for a while.
func TestMovingFromTheReleaseBefore(t *testing.T) {
	t.Parallel()
	nstest.Root(t)
	before, err := programs.BuildBefore(t.Context(), programs.WireGuard, t.TempDir())
	must(t, err)
	p := startPair(t, 1)
	capture, err := p.Testbed.Capture()
	must(t, err)
	t.Cleanup(func() { must(t, capture.Close()) })
	next, from, to := p.Agents[0], p.Pods[0], p.Pods[1]
	next.Env["SEMAPHORE_PROBE_SOCKET"] = "/run/probe.sock"
	must(t, next.Stop(within(t, time.Minute)))
	// It ends the engine that the agent has started. From now on the engine runs as in a pod.
	must(t, next.Cleanup(within(t, time.Minute)))
	old, err := programs.PrepareAgent(t.Context(), before, next.Node, p.GCP)
	must(t, err)
	must(t, old.Start())
	eventually(t, time.Minute, "the old agent to be ready", old.Ready)
	must(t, p.WaitConnected(within(t, time.Minute)))
	conn := dialEcho(t, from, to)
	must(t, conn.exchange("on the old agent"))

	for round := range 2 {
		node, err := next.Node.Object(t.Context())
		must(t, err)
		annotations := maps.Clone(node.Annotations)
		routes, err := allRoutes(t.Context(), next.Node)
		must(t, err)
		written := monitor(t, next.Node)
		must(t, next.StartEngine())
		must(t, next.Start())
		eventually(t, time.Minute, "the new agent to be ready beside the old one", func(ctx context.Context) error {
			return probe(ctx, next, p.Binary, "/readyz")
		})
		must(t, conn.exchange("with both"))
		must(t, old.Stop(within(t, time.Minute)))
		must(t, programs.WaitReach(within(t, time.Minute), from, to))
		must(t, conn.exchange("on the new agent"))
		// Both agents repaired their rules and filters; such a fault lasts until a minute after that.
		eventually(t, 3*time.Minute, "the new agent to be ready alone", func(ctx context.Context) error {
			status, err := next.Status(ctx) // at the port of the old one
			if err == nil && (len(status.Of(statuspage.Failing)) > 0 || !status.Published || status.Remote("gcp").Device.Error != "") {
				err = fmt.Errorf("%+v", status)
			}
			return err
		})
		must(t, probe(within(t, time.Minute), next, p.Binary, "/readyz"))

		// The older manifest doesn't surge, so one ends before the other one starts.
		must(t, next.StopPod(within(t, time.Minute)))
		must(t, old.Start())
		must(t, programs.WaitReach(within(t, time.Minute), from, to))
		must(t, conn.exchange("on the old agent again"))
		eventually(t, time.Minute, "the old agent to be ready again", old.Ready)

		// The new agent adds the address for probes to the device, which the old one keeps. It has other
		// policy rules, and routes in its own table only (docs/decisions/0048).
		lines := slices.DeleteFunc(written(), func(line string) bool {
			return round == 0 && strings.Contains(line, " fe80::") || strings.Contains(line, " proto 115")
		})
		if len(lines) > 0 {
			t.Errorf("round %d: ip monitor:\n%s", round, strings.Join(lines, "\n"))
		}
		if got, err := allRoutes(t.Context(), next.Node); err != nil || got != routes {
			t.Errorf("round %d: routes: %v\n%s\nbefore:\n%s", round, err, got, routes)
		}
		node, err = next.Node.Object(t.Context())
		must(t, err)
		if diff := cmp.Diff(annotations, node.Annotations); diff != "" {
			t.Errorf("round %d: annotations (-before +after):\n%s", round, diff)
		}
	}
	noPlaintext(t, capture)
}

// probe runs an agent's probe like the kubelet, with its own program.
func probe(ctx context.Context, a *programs.Agent, binary, path string) error {
	process, err := a.Node.Start(sandbox.Command{
		Name: "probe", Path: binary, Args: []string{"probe", path}, Env: []string{"SEMAPHORE_PROBE_SOCKET=" + a.Env["SEMAPHORE_PROBE_SOCKET"]},
	})
	if err != nil {
		return err
	}
	select {
	case <-process.Done():
	case <-ctx.Done():
		process.Kill()
	}
	if process.Err() != nil {
		return fmt.Errorf("%w: %s", process.Err(), process.Tail(1))
	}
	return nil
}

// TestManifestsOfTheReleaseBefore applies the DaemonSet of the previous release, ours, and
// the previous one again: strategy and sidecar must be those of the applied manifest.
func TestManifestsOfTheReleaseBefore(t *testing.T) {
	t.Parallel()
	cluster := startCluster(t)
	older, err := programs.FileBefore(t.Context(), "deploy/wireguard/daemonset.yaml")
	must(t, err)
	file := filepath.Join(t.TempDir(), "daemonset.yaml")
	must(t, os.WriteFile(file, older, 0o600))
	for _, c := range []struct {
		manifest           string
		surge, unavailable int
		ports, engine      bool
	}{
		{file, 0, 1, true, false}, {filepath.Join(deployFolder(t), "wireguard", "daemonset.yaml"), 1, 0, false, true}, {file, 0, 1, true, false},
	} {
		out, err := cluster.Kubectl(t.Context(), "apply", "-f", c.manifest)
		must(t, err)
		set, err := daemonSet(t, cluster)
		must(t, err)
		rolling, pod := set.Spec.UpdateStrategy.RollingUpdate, &set.Spec.Template.Spec
		if rolling.MaxSurge.IntValue() != c.surge || rolling.MaxUnavailable.IntValue() != c.unavailable {
			t.Errorf("%s: maxSurge %s, maxUnavailable %s", out, rolling.MaxSurge, rolling.MaxUnavailable)
		}
		if ports := len(pod.Containers[0].Ports) > 0; len(pod.Containers) != 1 || ports != c.ports {
			t.Errorf("%s: %d containers, ports %v", out, len(pod.Containers), pod.Containers[0].Ports)
		}
		sidecars := slices.DeleteFunc(pod.InitContainers, func(c corev1.Container) bool {
			return c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways
		})
		if engine := len(sidecars) == 1 && sidecars[0].Name == "engine"; engine != c.engine || len(sidecars) > 1 {
			t.Errorf("%s: the sidecars are %v", out, sidecars)
		}
	}
}

func daemonSet(t *testing.T, c *testbed.Cluster) (*appsv1.DaemonSet, error) {
	t.Helper()
	return c.Client().AppsV1().DaemonSets(systemNamespace).Get(t.Context(), programs.WireGuard, metav1.GetOptions{})
}
