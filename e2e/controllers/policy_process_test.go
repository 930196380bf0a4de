package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

// policyReplica starts a replica of the program in aws that reads gcp and merit by
// kubeconfigs, and accepts any address of them.
func (b *policyBed) policyReplica(t *testing.T, name string, port int) *programs.Program {
	t.Helper()
	r := b.replica(t, programs.Policy, name, port, b.aws, b.gcp, b.merit)
	for _, c := range []*testbed.Cluster{b.gcp, b.merit} {
		for _, setting := range []string{"API_URL", "CA_FILE", "TOKEN_FILE", "POD_SUBNETS"} {
			delete(r.Env, programs.Variable(c.Name, setting))
		}
		r.Env[programs.Variable(c.Name, "KUBECONFIG")] = b.remote(t, c).Kubeconfig()
	}
	must(t, r.Start())
	return r
}

// testKill kills the process several times while pods are created, relabelled and deleted.
// Some pods stay, and must be in every version of their sets.
func (b *policyBed) testKill(t *testing.T) {
	sets := b.sets(t, b.aws)
	var stable []*livePod
	for n := range 6 {
		remote := []*testbed.Cluster{b.gcp, b.merit}[n%2]
		p := &livePod{cluster: remote, podSpec: running("ns", fmt.Sprintf("stable-%d", n), fmt.Sprintf("app-%d", n/2), fmt.Sprintf("10.9.0.%d", n+1))}
		putPods(t, remote, p.podSpec)
		stable = append(stable, p)
	}
	r := b.policyReplica(t, "killed", 8080)
	expectMembers(t, sets, stable)
	rec := recordSets(t, sets)

	churning, stop := context.WithCancel(t.Context())
	defer stop()
	churned := make(chan []*livePod, 1)
	go func() { churned <- b.churn(churning, t) }()

	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	kills := 0
	for began := time.Now(); time.Since(began) < 15*time.Second || len(rec.all()) < 20; kills++ {
		before := len(rec.all())
		select {
		case <-time.After(time.Duration(rng.IntN(1200)) * time.Millisecond):
		case <-t.Context().Done():
		}
		if kills%3 == 2 {
			// On a slow machine, too, it writes now and then.
			wait(t, "one more version", func() error {
				if n := len(rec.all()); n == before {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
		}
		r.Kill()
		must(t, r.Start())
	}
	stop()
	expectMembers(t, sets, append(stable, <-churned...))
	rec.end(t)
	versions := 0
	rec.replay(func(v version, s state) {
		versions++
		for _, p := range stable {
			if !holds(s, p.membership().id, p.ips[0]) {
				t.Errorf("version %s of %s: %s has lost %s", v.object.GetResourceVersion(), v.object.GetName(), p.name, p.ips[0])
			}
		}
	})
	t.Logf("%d kills, %d versions", kills, versions)
}

// churn creates, relabels and deletes pods until ctx ends, and returns those that are left.
func (b *policyBed) churn(ctx context.Context, t *testing.T) []*livePod {
	var live []*livePod
	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 1))
	step := context.WithoutCancel(ctx)
	for n := 0; ctx.Err() == nil; n++ {
		var err error
		switch remote := []*testbed.Cluster{b.gcp, b.merit}[rng.IntN(2)]; {
		case len(live) < 6 || len(live) < 20 && rng.IntN(2) == 0:
			p := &livePod{cluster: remote, podSpec: running("ns", fmt.Sprintf("churn-%d", n), fmt.Sprintf("app-%d", rng.IntN(4)), fmt.Sprintf("10.8.%d.%d", n/200, 1+n%200))}
			err = putPod(step, remote, p.podSpec)
			live = append(live, p)
		case rng.IntN(3) == 0:
			p := live[rng.IntN(len(live))]
			p.set = fmt.Sprintf("app-%d", rng.IntN(4))
			err = relabel(step, p.cluster, "ns", p.name, p.set)
		default:
			i := rng.IntN(len(live))
			err = deletePod(step, live[i].cluster, "ns", live[i].name)
			live = append(live[:i], live[i+1:]...)
		}
		if err != nil {
			t.Error(err)
			return live
		}
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
	return live
}

// testReplicas ends the leader, by SIGTERM and by SIGKILL, and checks the program's metrics and
// status.
func (b *policyBed) testReplicas(t *testing.T) {
	sets := b.sets(t, b.aws)
	pods := []*livePod{{cluster: b.gcp, podSpec: running("ns", "p-0", "app", "10.4.0.1")}}
	putPods(t, b.gcp, pods[0].podSpec)
	first := b.policyReplica(t, "one", 8081)
	expectMembers(t, sets, pods)
	second := b.policyReplica(t, "two", 8082)
	wait(t, "the standby to be ready", func() error {
		return second.Ready(t.Context())
	})
	if oneLeader(t, first, second) != first {
		t.Error("the second process leads")
	}
	more := func() {
		t.Helper()
		n := len(pods)
		pods = append(pods, &livePod{cluster: b.gcp, podSpec: running("ns", fmt.Sprintf("p-%d", n), "app", fmt.Sprintf("10.4.0.%d", n+1))})
		putPods(t, b.gcp, pods[n].podSpec)
		expectMembers(t, sets, pods)
	}
	more()
	ctx, cancel := context.WithTimeout(t.Context(), settle)
	defer cancel()
	must(t, first.Stop(ctx))
	began := time.Now()
	more()
	t.Logf("after a SIGTERM the standby wrote within %v", time.Since(began).Round(time.Millisecond))

	must(t, first.Start())
	second.Kill()
	more()
	wait(t, "the first process to lead again", func() error {
		leads, err := first.Leads(t.Context())
		if err == nil && !leads {
			err = errors.New("it doesn't")
		}
		return err
	})

	// A write is counted once the API server has answered.
	wait(t, "the metrics", func() error {
		page, err := first.Metrics(t.Context())
		if err != nil {
			return err
		}
		for _, metric := range []string{
			`semaphore_policy_remote_synced{cluster="gcp",kind="pods"} 1`, `semaphore_policy_remote_last_contact_timestamp_seconds{cluster="merit",kind="pods"} 1`,
			`semaphore_policy_sets{cluster="gcp"} 1`, `semaphore_policy_set_nets{cluster="gcp"} 4`, `semaphore_policy_pods{cluster="gcp"} 4`,
			`semaphore_policy_writes_total{cluster="gcp",verb="patch"} 1`, `semaphore_policy_leader 1`, `semaphore_policy_remote_stale{cluster="gcp"} 0`,
			`kube_policy_semaphore_pod_watcher_failures{cluster="gcp",kind="pods",verb="watch"} 0`, `semaphore_policy_build_info{`,
		} {
			if !strings.Contains(page, metric) {
				return fmt.Errorf("no %s among the metrics", metric)
			}
		}
		return nil
	})
	must(t, first.Healthy(t.Context()), first.Ready(t.Context()))
	wait(t, "the status", func() error {
		var status statuspage.Policy
		if err := first.Status(t.Context(), &status); err != nil {
			return err
		}
		if status.CalicoAPI != "crd.projectcalico.org/v1" || len(status.Remotes) != 2 || status.Remotes[0].Sets[0].Addresses != 4 {
			return fmt.Errorf("status: %+v", status)
		}
		return nil
	})
	must(t, first.Stop(ctx))
}

// testOriginal runs the program with the flags and labels of the oldest document, and expects
// the set that is shown there.
func (b *policyBed) testOriginal(t *testing.T) {
	const oldDomain, oldMark = "semaphore.uw.systems", "calico-global-network-sync-operator"
	sets := b.sets(t, b.aws)
	createNamespace(t, b.gcp, "my-ns")
	p := running("my-ns", "pod", "ignored", "10.4.1.38")
	must(t, putPod(t.Context(), b.gcp, p))
	_, err := b.gcp.Client().CoreV1().Pods("my-ns").Patch(t.Context(), "pod", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"`+oldDomain+`/name":"my-app"}}}`), metav1.PatchOptions{})
	must(t, err)

	otherMark(t, b.aws, oldMark, oldDomain, "semaphore-policy-my-cluster")
	mount, env := b.local(t, b.aws).InCluster()
	process, err := b.node(t, b.aws).Start(sandbox.Command{
		Name: "policy-original", Path: b.binary(t, programs.Policy), Mounts: []sandbox.Mount{mount},
		Args: []string{
			"-target-cluster-name=my-cluster", "-remote-api-url=" + b.gcp.APIURL(), "-remote-ca-url=" + b.gcp.CAURL(),
			"-remote-sa-token-path=" + b.remote(t, b.gcp).TokenFile(), "-full-store-resync-period=1s", "-pod-resync-period=1s", "-log-level=debug",
		},
		Env: append(env, "SSL_CERT_FILE="+b.tb.PublicCAFile(), "SEMAPHORE_LISTEN_ADDRESS=:8082", "SEMAPHORE_PROBE_ADDRESS=:9082",
			"SEMAPHORE_POLICY_LABEL_DOMAIN="+oldDomain, "SEMAPHORE_POLICY_MANAGED_BY="+oldMark),
	})
	must(t, err)
	t.Cleanup(process.Kill)
	wait(t, "the document's set", func() error {
		got, err := sets.Get(t.Context(), "my-cluster-my-ns-my-app", metav1.GetOptions{})
		if err != nil {
			return err
		}
		want := map[string]string{
			"managed-by": oldMark, oldDomain + "/name": "my-app", oldDomain + "/namespace": "my-ns", oldDomain + "/cluster": "my-cluster",
		}
		if !maps.Equal(got.Labels, want) || !slices.Equal(got.Spec.Nets, []string{"10.4.1.38/32"}) {
			return fmt.Errorf("labels %v, nets %v", got.Labels, got.Spec.Nets)
		}
		return nil
	})
	all, err := readSets(t.Context(), sets)
	must(t, err)
	if len(all) != 1 {
		t.Errorf("sets:\n%v", all)
	}
}

// otherMark gives semaphore-policy another mark and domain in a cluster, by the patch in
// docs/policy.md, and a Lease of another name, until the test ends.
func otherMark(t *testing.T, c *testbed.Cluster, mark, prefix, lease string) {
	t.Helper()
	document, err := os.ReadFile("../../docs/policy.md")
	must(t, err)
	_, text, _ := strings.Cut(string(document), "```yaml\npatches:\n")
	text, _, _ = strings.Cut(text, "```")
	var documented []struct{ Patch string }
	must(t, yaml.Unmarshal([]byte(text), &documented))
	if len(documented) != 1 {
		t.Fatalf("documented patches: %q", text)
	}
	patch, err := yaml.YAMLToJSON([]byte(documented[0].Patch))
	must(t, err)
	clusterRoles, roles := c.Client().RbacV1().ClusterRoles(), c.Client().RbacV1().Roles(home)
	wide, err := clusterRoles.Get(t.Context(), programs.Policy, metav1.GetOptions{})
	must(t, err)
	_, err = clusterRoles.Patch(t.Context(), programs.Policy, types.JSONPatchType, patch, metav1.PatchOptions{})
	must(t, err)
	role, err := roles.Get(t.Context(), programs.Policy, metav1.GetOptions{})
	must(t, err)
	other := role.DeepCopy()
	for i := range other.Rules {
		if slices.Equal(other.Rules[i].ResourceNames, []string{programs.Policy}) {
			other.Rules[i].ResourceNames = []string{lease}
		}
	}
	_, err = roles.Update(t.Context(), other, metav1.UpdateOptions{})
	must(t, err)
	may := func(ctx context.Context, mark, prefix string) {
		for _, r := range []authorizationv1.ResourceAttributes{
			{Resource: "accounts", Name: programs.Policy, Verb: "confined"}, {Resource: "marks", Name: mark, Verb: "use"}, {Resource: "domains", Name: prefix, Verb: "use"},
		} {
			r.Group = "semaphore.uw.io"
			must(t, c.AwaitRight(ctx, home, programs.Policy, r, true))
		}
	}
	may(t.Context(), mark, prefix)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		wide.ResourceVersion, role.ResourceVersion = "", ""
		_, err := clusterRoles.Update(ctx, wide, metav1.UpdateOptions{})
		must(t, err)
		_, err = roles.Update(ctx, role, metav1.UpdateOptions{})
		must(t, err)
		may(ctx, programs.Policy, domain)
	})
}
