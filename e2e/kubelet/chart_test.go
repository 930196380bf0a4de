package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
)

// TestChart acts like a new user with Helm: the chart in two fresh clusters, tokens, the first
// request by name, helm test, and everything removed. Agents of aws read from the relay.
func TestChart(t *testing.T) {
	binaries, err := tools.Build(t.Context(), t.Output(), tools.Helm)
	must(t, err)
	l := startLab(t, "aws", "gcp")
	l.startDNS(t)
	for i := range l.clusters {
		l.serveMeter(t, i)
	}
	helm := func(cluster int, args ...string) string {
		t.Helper()
		out, err := l.testbed.Run(within(t, 5*time.Minute), binaries[tools.Helm],
			append(args, "--namespace", programs.Namespace, "--kubeconfig", l.clusters[cluster].AdminKubeconfig())...)
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	name := func(of int) string {
		return l.clusters[of].Name + "-default-73736d-meter." + programs.Namespace + ".svc.cluster.local"
	}
	chart := func(command string, cluster int, more ...string) {
		t.Helper()
		c, other := l.clusters[cluster], l.clusters[1-cluster]
		helm(cluster, append([]string{
			command, "semaphore", filepath.Join(l.root, "deploy", "chart"), "--values", filepath.Join(l.root, "deploy", "example", c.Name, "values.yaml"),
			"--set", fmt.Sprintf("remotes.%s.apiURL=%s,image.tag=%s,policy.enabled=false,relay.enabled=%t,test.remote=%s:80", other.Name, other.APIURL(), versions[0], cluster == 0, name(1-cluster)),
		}, more...)...)
	}
	started := time.Now()
	for i := range l.clusters {
		chart("install", i, "--create-namespace", "--wait", "--timeout", "3m")
	}
	l.ctl(t, "tokens", "aws", "gcp")
	for from := range l.clusters {
		must(t, testbed.Wait(within(t, 3*time.Minute), "an answer by name", func(ctx context.Context) error {
			answer, err := l.ask(ctx, from, "/get?url="+url.QueryEscape("http://"+name(1-from)+"/"))
			if err == nil && !strings.Contains(answer, "asked by "+l.meters[from].Status.PodIP+":") {
				err = errors.New("unexpected answer: " + answer)
			}
			return err
		}))
	}
	t.Logf("FIGURE answers by name both ways %v after the installation began", time.Since(started).Round(10*time.Millisecond))
	for i := range l.clusters {
		if out := helm(i, "test", "semaphore", "--timeout", "3m"); strings.Count(out, "Succeeded") != 2 {
			t.Errorf("helm test:\n%s", out)
		}
	}
	for i, c := range l.clusters {
		// It reads the Secrets with the token that its pod mounts, and no token is due.
		l.kubectl(t, i, "--namespace", programs.Namespace, "create", "job", "renew-now", "--from=cronjob/semaphore-tokens")
		must(t, testbed.Wait(within(t, 3*time.Minute), "the job of semaphore-tokens in "+c.Name, func(ctx context.Context) error {
			job, err := c.Client().BatchV1().Jobs(programs.Namespace).Get(ctx, "renew-now", metav1.GetOptions{})
			if err == nil && job.Status.Succeeded != 1 {
				err = fmt.Errorf("its status is %+v", job.Status)
			}
			return err
		}))
		l.kubectl(t, i, "--namespace", programs.Namespace, "delete", "job", "renew-now", "--cascade=foreground")
		chart("upgrade", i, "--set", "wireguard.cleanup=true")
		must(t, testbed.Wait(within(t, 3*time.Minute), "agents to clean up "+c.Name, func(ctx context.Context) error {
			node, err := l.nodes[i].Object(ctx)
			if err != nil {
				return err
			}
			for annotation := range node.Annotations {
				if strings.Contains(annotation, "wireguard.semaphore.uw.io") {
					return fmt.Errorf("%s is still there", annotation)
				}
			}
			return nil
		}))
		helm(i, "uninstall", "semaphore", "--wait")
		if i == 0 { // The CRD was kept, and the relay's objects with it.
			out, err := c.Kubectl(t.Context(), "delete", "wireguardpeers", "--all", "--namespace", programs.Namespace)
			if err != nil || !strings.Contains(out, `"gcp-nodes"`) {
				t.Errorf("objects of the relay: %v\n%s", err, out)
			}
		}
		must(t, programs.Clean(t.Context(), l.nodes[i]))
		pods, err := c.Client().CoreV1().Pods(programs.Namespace).List(t.Context(), metav1.ListOptions{})
		must(t, err)
		for _, pod := range pods.Items {
			if pod.DeletionTimestamp == nil {
				t.Errorf("%s is left in %s", pod.Name, c.Name)
			}
		}
	}
}
