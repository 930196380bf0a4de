package policy_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed/sandbox"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// replica is a process of the program on a node, with the service accounts of
// deploy/.
type replica struct {
	node *testbed.Node
	port int
	cmd  sandbox.Command
	*sandbox.Process
}

// build compiles the program.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "semaphore-policy")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../cmd/semaphore-policy").CombinedOutput()
	if err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// replica prepares a process in aws that watches gcp and merit.
func (b *bed) replica(t *testing.T, node *testbed.Node, binary string, port int) *replica {
	t.Helper()
	mount, env := b.accounts["aws"].InCluster()
	r := &replica{node: node, port: port, cmd: sandbox.Command{
		Name: fmt.Sprintf("policy-%d", port), Path: binary, Mounts: []sandbox.Mount{mount},
		Env: append(env,
			"SEMAPHORE_CLUSTER_NAME=aws", "SEMAPHORE_REMOTES=gcp,merit", "SEMAPHORE_LOG_FORMAT=text",
			fmt.Sprintf("SEMAPHORE_LISTEN_ADDRESS=:%d", port), fmt.Sprintf("SEMAPHORE_PROBE_ADDRESS=:%d", port+1000),
			"SEMAPHORE_REMOTE_GCP_KUBECONFIG="+b.remote["gcp"].Kubeconfig(),
			"SEMAPHORE_REMOTE_MERIT_KUBECONFIG="+b.remote["merit"].Kubeconfig(),
		),
	}}
	r.start(t)
	t.Cleanup(func() { r.Kill() })
	return r
}

func (r *replica) start(t *testing.T) {
	t.Helper()
	p, err := r.node.Start(r.cmd)
	if err != nil {
		t.Fatal(err)
	}
	r.Process = p
}

// get asks the process for a page.
func (r *replica) get(ctx context.Context, page string) (string, error) {
	return r.node.Get(ctx, fmt.Sprintf("http://127.0.0.1:%d%s", r.port+1000, page))
}

// leads reports whether the process is the one that writes.
func (r *replica) leads(ctx context.Context) bool {
	page, err := r.get(ctx, "/status")
	var status struct{ Leading bool }
	return err == nil && json.Unmarshal([]byte(page), &status) == nil && status.Leading
}

// addNode is where the replicas run.
func (b *bed) addNode(t *testing.T) *testbed.Node {
	t.Helper()
	if nodes := b.aws.Nodes(); len(nodes) > 0 {
		return nodes[0]
	}
	ctx, cancel := context.WithTimeout(t.Context(), settle)
	defer cancel()
	node, err := b.aws.AddNode(ctx, testbed.NodeConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return node
}

// testKill kills the process again and again while pods come and go. Some pods
// are there all the time, and must be in every version of their sets.
func testKill(t *testing.T, b *bed) {
	sets := b.sets(t, b.aws)
	var stable []*livePod
	for n := range 6 {
		remote := []*testbed.Cluster{b.gcp, b.merit}[n%2]
		p := &livePod{cluster: remote, podSpec: running("ns", fmt.Sprintf("stable-%d", n), fmt.Sprintf("app-%d", n/2), fmt.Sprintf("10.9.0.%d", n+1))}
		put(t, remote, p.podSpec)
		stable = append(stable, p)
	}
	r := b.replica(t, b.addNode(t), build(t), 8080)
	expectMembers(t, sets, stable)
	rec := record(t, sets)

	churning, stop := context.WithCancel(t.Context())
	defer stop()
	churned := make(chan []*livePod, 1)
	go func() { churned <- churn(churning, t, b) }()

	rng := rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 0))
	kills := 0
	for began := time.Now(); time.Since(began) < 15*time.Second || len(rec.all()) < 20; kills++ {
		before := len(rec.all())
		select {
		case <-time.After(time.Duration(rng.IntN(1200)) * time.Millisecond):
		case <-t.Context().Done():
		}
		if kills%3 == 2 {
			// However slowly it starts here, sometimes it comes to write.
			wait(t, "a version more", func() error {
				if n := len(rec.all()); n == before {
					return fmt.Errorf("%d", n)
				}
				return nil
			})
		}
		r.Kill()
		r.start(t)
	}
	stop()
	expectMembers(t, sets, append(stable, <-churned...))
	rec.end(t)
	versions := 0
	rec.replay(func(v version, state map[string]*calico.GlobalNetworkSet) {
		versions++
		for _, p := range stable {
			if !holds(state, p.membership().id, p.ips[0]) {
				t.Errorf("version %s of %s: %s has lost %s", v.set.ResourceVersion, v.name, p.name, p.ips[0])
			}
		}
	})
	t.Logf("%d kills, %d versions", kills, versions)
}

// churn lets pods come, move and go until ctx ends, and returns those that are
// left.
func churn(ctx context.Context, t *testing.T, b *bed) []*livePod {
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

// testReplicas has the leader end, first as Kubernetes ends it and then for
// good, and looks at what the program says about itself.
func testReplicas(t *testing.T, b *bed) {
	sets := b.sets(t, b.aws)
	binary, node := build(t), b.addNode(t)
	pods := []*livePod{{cluster: b.gcp, podSpec: running("ns", "p-0", "app", "10.4.0.1")}}
	put(t, b.gcp, pods[0].podSpec)
	first := b.replica(t, node, binary, 8080)
	expectMembers(t, sets, pods)
	second := b.replica(t, node, binary, 8081)
	wait(t, "the standby to be ready", func() error {
		_, err := second.get(t.Context(), "/readyz")
		return err
	})
	wait(t, "the first process to lead, and only that", func() error {
		if !first.leads(t.Context()) || second.leads(t.Context()) {
			return errors.New("it doesn't")
		}
		return nil
	})
	more := func() {
		t.Helper()
		n := len(pods)
		pods = append(pods, &livePod{cluster: b.gcp, podSpec: running("ns", fmt.Sprintf("p-%d", n), "app", fmt.Sprintf("10.4.0.%d", n+1))})
		put(t, b.gcp, pods[n].podSpec)
		expectMembers(t, sets, pods)
	}
	more()
	ctx, cancel := context.WithTimeout(t.Context(), settle)
	defer cancel()
	must(t, first.Stop(ctx))
	began := time.Now()
	more()
	t.Logf("with a SIGTERM the standby had taken over after %v", time.Since(began).Round(time.Millisecond))

	first.start(t)
	second.Kill()
	more()
	wait(t, "the first process to lead again", func() error {
		if !first.leads(t.Context()) {
			return errors.New("it doesn't")
		}
		return nil
	})

	// What was written is counted, and told, when the API server's answer has come.
	wait(t, "the metrics", func() error {
		page, err := first.get(t.Context(), "/metrics")
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
	for _, check := range []string{"/healthz", "/readyz"} {
		if _, err := first.get(t.Context(), check); err != nil {
			t.Errorf("%s: %v", check, err)
		}
	}
	wait(t, "the status", func() error {
		page, err := first.get(t.Context(), "/status")
		if err != nil {
			return err
		}
		var status policy.Status
		if err := json.Unmarshal([]byte(page), &status); err != nil {
			return err
		}
		if status.CalicoAPI != "crd.projectcalico.org/v1" || len(status.Remotes) != 2 || status.Remotes[0].Sets[0].Addresses != 4 {
			return fmt.Errorf("status:\n%s", page)
		}
		return nil
	})
	must(t, first.Stop(ctx))
}

// testOriginal runs the program with the flags of the oldest document, and with
// its labels: the set comes out as written there.
func testOriginal(t *testing.T, b *bed) {
	const oldDomain, oldMark = "semaphore.uw.systems", "calico-global-network-sync-operator"
	sets := b.sets(t, b.aws)
	createNamespace(t, b.gcp, "my-ns")
	p := running("my-ns", "pod", "ignored", "10.4.1.38")
	must(t, putPod(t.Context(), b.gcp, p))
	_, err := b.gcp.Client().CoreV1().Pods("my-ns").Patch(t.Context(), "pod", types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"`+oldDomain+`/name":"my-app"}}}`), metav1.PatchOptions{})
	must(t, err)

	otherMark(t, b.aws, oldMark, oldDomain, "semaphore-policy-my-cluster")
	mount, env := b.accounts["aws"].InCluster()
	process, err := b.addNode(t).Start(sandbox.Command{
		Name: "policy-original", Path: build(t), Mounts: []sandbox.Mount{mount},
		Args: []string{
			"-target-cluster-name=my-cluster", "-remote-api-url=" + b.gcp.APIURL(), "-remote-ca-url=" + b.gcp.CAURL(),
			"-remote-sa-token-path=" + b.remote["gcp"].TokenFile(), "-full-store-resync-period=1s", "-pod-resync-period=1s", "-log-level=debug",
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
	all, err := read(t.Context(), sets)
	must(t, err)
	if len(all) != 1 {
		t.Errorf("sets:\n%v", all)
	}
}

// otherMark gives semaphore-policy another mark, domain and Lease in a cluster, as
// docs/policy.md tells, until the test ends.
func otherMark(t *testing.T, c *testbed.Cluster, mark, domain, lease string) {
	t.Helper()
	rbac := c.Client().RbacV1()
	set := func(ctx context.Context, mark, domain, lease string) {
		patch := fmt.Sprintf(`[{"op":"replace","path":"/rules/2/resourceNames","value":[%q]},{"op":"replace","path":"/rules/3/resourceNames","value":[%q]}]`, mark, domain)
		_, err := rbac.ClusterRoles().Patch(ctx, "semaphore-policy", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
		patch = fmt.Sprintf(`[{"op":"replace","path":"/rules/1/resourceNames","value":[%q]}]`, lease)
		_, err = rbac.Roles("sys-semaphore").Patch(ctx, "semaphore-policy", types.JSONPatchType, []byte(patch), metav1.PatchOptions{})
		must(t, err)
	}
	set(t.Context(), mark, domain, lease)
	t.Cleanup(func() {
		set(context.WithoutCancel(t.Context()), managedBy, "policy.semaphore.uw.io", "semaphore-policy")
	})
}
