package kubelet_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/join"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// TestRelay moves the agents of both clusters to semaphore-relay, back, and there again with
// interruptions, under traffic: each is a rollout, which upgrades engines. Then the clusters leave.
func TestRelay(t *testing.T) {
	l := startLab(t, "aws", "gcp")
	l.startDNS(t)
	before := l.everything(t)
	l.ctl(t, "join", "--yes", "--image", ourImage(), "aws", "gcp")
	l.waitReach(t)
	move := func(what, to string) {
		t.Helper()
		l.blink(t, what, func() {
			began := time.Now()
			l.ctl(t, "join", "--image", ourImage(), "--relay="+to, "aws", "gcp")
			t.Logf("FIGURE %s: semaphorectl join took %v", what, time.Since(began).Round(100*time.Millisecond))
		})
		l.readsFrom(t, to == "on")
		l.ctl(t, "status", "aws", "gcp")
		l.ctl(t, "doctor", "--paths-only", "aws", "gcp")
		versions := l.resourceVersions(t)
		l.ctl(t, "join", "--image", ourImage(), "aws", "gcp")
		if diff := cmp.Diff(versions, l.resourceVersions(t)); diff != "" {
			t.Errorf("%s: joined again it changed (-before +after):\n%s", what, diff)
		}
	}
	move("agents move to semaphore-relay", "on")
	move("agents move back to API servers", "off")
	for i := range l.clusters {
		if out := l.kubectl(t, i, "get", "customresourcedefinitions", "-o", "name"); strings.Contains(out, "wireguardpeers") {
			t.Errorf("the CRD is left:\n%s", out)
		}
	}
	l.blink(t, "a move to semaphore-relay that is interrupted after each step", func() {
		l.eachStep(t, "join --relay=on", func(ctx context.Context, s *cli.Session, clusters []*cli.Cluster, o join.Options) error {
			o.Relay = "on"
			return join.Join(ctx, s, clusters, o)
		})
	})
	l.readsFrom(t, true)
	t.Run("without the right to read objects", func(t *testing.T) {
		l.kubectl(t, 0, "-n", programs.Namespace, "delete", "rolebinding", "semaphore-wireguard-relay")
		l.blink(t, "agents restart without the right to read objects", func() {
			l.kubectl(t, 0, "-n", programs.Namespace, "rollout", "restart", "daemonset", programs.WireGuard)
			l.waitRolledOut(t, 0)
		})
		out, err := l.run(t, "doctor", "--paths-only", "aws", "gcp")
		if err == nil || strings.Count(out, "✗") != 1 || !strings.Contains(out, "own-api-failing") || !strings.Contains(out, "wireguardpeers: Forbidden") {
			t.Errorf("doctor names another cause, or several: %v", err)
		}
		l.ctl(t, "join", "--image", ourImage(), "aws", "gcp")
		must(t, testbed.Wait(within(t, 2*time.Minute), "doctor to find no fault", func(context.Context) error {
			_, err := l.run(t, "doctor", "--paths-only", "aws", "gcp")
			return err
		}))
	})
	l.eachStep(t, "leave", join.Leave)
	l.same(t, before)
}

// readsFrom checks that agents, and only they, read the relay's objects, and have credentials for
// other clusters and the right to list nodes only if they don't.
func (l *lab) readsFrom(t *testing.T, relay bool) {
	t.Helper()
	for i, c := range l.clusters {
		pods, err := l.agentPods(t.Context(), i)
		must(t, err)
		for _, pod := range pods {
			credentials := false
			for _, volume := range pod.Spec.Volumes {
				credentials = credentials || volume.Secret != nil
			}
			if credentials == relay {
				t.Errorf("%s: %s has credentials for other clusters: %v", c.Name, pod.Name, credentials)
			}
		}
		out, err := c.Kubectl(t.Context(), "auth", "can-i", "list", "nodes", "--as=system:serviceaccount:"+programs.Namespace+":"+programs.WireGuard)
		if may := strings.Contains(out, "yes"); may == relay {
			t.Errorf("%s: agents may list nodes: %s (%v)", c.Name, out, err)
		}
		deployments, err := c.Client().AppsV1().Deployments(programs.Namespace).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + programs.Relay})
		must(t, err)
		if is := len(deployments.Items) == 1; is != relay {
			t.Errorf("%s: semaphore-relay is installed: %v", c.Name, is)
		}
	}
}
