package judge

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

// patient is a survey to which tests add faults.
type patient struct{ aws, gcp *inspect.Cluster }

func (p *patient) agent(node int) *statuspage.Agent { return p.aws.Agents[node].Value }

func (p *patient) remote(node int) *statuspage.Remote { return &p.agent(node).Remotes[0] }

// path is the path from a node of aws to a node of gcp, back the reverse one.
func (p *patient) path(node, peer int) *statuspage.Peer { return &p.remote(node).Peers[peer] }

func (p *patient) back(node, peer int) *statuspage.Peer {
	return &p.gcp.Agents[peer].Value.Remotes[0].Peers[node]
}

func down(p *statuspage.Peer, sign string, rx int64) {
	p.Path.State, p.Path.Sign, p.RxBytes, p.Health = "down", sign, rx, "down"
}

func (p *patient) install(program string, ready int32) {
	p.aws.Workloads.Value = append(p.aws.Workloads.Value, inspect.Workload{Kind: "Deployment", Name: program, Wanted: 2, Ready: ready})
	if program == inspect.ServiceMirror && ready > 0 {
		p.aws.Mirrors = []inspect.Reported[statuspage.Mirror]{{Fact: inspect.Fact[*statuspage.Mirror]{Value: &statuspage.Mirror{Leading: true}}}}
	}
}

// corefile makes CoreDNS of aws one with this configuration.
func (p *patient) corefile(text string) { p.aws.DNS.Value = setupOf(text) }

func setupOf(corefile string) *coredns.Setup {
	s, _ := coredns.Read(context.Background(), fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system"}, Data: map[string]string{"Corefile": corefile},
	}))
	return s
}

// services installs the mirror in aws, with a mirror of a service of gcp that has so many ready
// endpoints.
func (p *patient) services(origin string, ready int) {
	p.install(inspect.ServiceMirror, 2)
	p.corefile("cluster.gcp:53 {\n}\n")
	p.aws.Settings.Value = map[string]string{"SEMAPHORE_REMOTES": "gcp"}
	of := inspect.Endpoints{Ready: ready, All: 2, Digest: "now", Changed: inspecttest.Now.Add(-time.Hour)}
	web := inspect.KubeService{Namespace: "shop", Name: "web", Port: 80, Created: inspecttest.Now.Add(-time.Hour), Endpoints: of}
	p.gcp.Exports.Value = []inspect.KubeService{web}
	web.Object, web.Origin = origin+"-shop-73736d-web", origin
	p.aws.Imports.Value = []inspect.KubeService{web}
}

func diagnose(t *testing.T, clusters []*inspect.Cluster, results *probe.Results, pods bool) *Diagnosis {
	t.Helper()
	d, err := Diagnose(t.Context(), clusters, results, pods)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range slices.Concat(d.Causes, d.Following) {
		if word := unfilled.FindString(c.What + c.Remedy); word != "" {
			t.Errorf("%s: %s is not filled in: %s; %s", c.ID, word, c.What, c.Remedy)
		}
	}
	return d
}

// known returns the table of reasons.
func known(t *testing.T) map[string]*reason {
	t.Helper()
	all, err := reasons()
	if err != nil {
		t.Fatal(err)
	}
	table := map[string]*reason{}
	for _, r := range all {
		table[r.ID] = r
	}
	return table
}

// outdated returns what oldAgents finds.
func outdated(t *testing.T, clusters []*inspect.Cluster) (all []string) {
	t.Helper()
	r := known(t)["old-agent"]
	oldAgents(&Facts{Clusters: clusters}, func(f Finding) { all = append(all, r.text(&f)+": "+f.Evidence[0].Text) })
	return all
}

// TestWithdrawnEndpointsAreExplained mirrors a service of which endpoints are withdrawn because
// packets are dropped.
func TestWithdrawnEndpointsAreExplained(t *testing.T) {
	clusters := inspecttest.Pair(2)
	p := &patient{clusters[0], clusters[1]}
	p.services("gcp", 2)
	p.gcp.Workloads.Value, p.gcp.Exports.Value, p.gcp.Imports.Value = p.aws.Workloads.Value, nil, p.aws.Imports.Value
	p.gcp.Settings.Value = map[string]string{"SEMAPHORE_REMOTES": "aws"}
	p.aws.Exports.Value, p.aws.Imports.Value = []inspect.KubeService{p.gcp.Imports.Value[0]}, nil
	p.gcp.Imports.Value[0].Digest, p.gcp.Imports.Value[0].Origin = "old", "aws"
	down(p.path(0, 0), "no_answer", 0)
	down(p.back(0, 0), "no_answer", 0)
	if d := diagnose(t, clusters, nil, false); len(d.Causes) != 1 || d.Causes[0].ID != "udp-blocked" {
		t.Errorf("%+v", d.Causes)
	}
}

// TestRenamedNode has a node whose object of a former name, which isn't ready, has its key: the
// remedy deletes that one. Of two nodes with one key that are ready, or have other endpoints, none
// is deleted.
func TestRenamedNode(t *testing.T) {
	for name, c := range map[string]struct {
		change func(former, now *inspect.Node)
		want   string
	}{
		"renamed":        {func(*inspect.Node, *inspect.Node) {}, "kubectl --context the-gcp delete node gcp-1"},
		"both are ready": {func(former, _ *inspect.Node) { former.Ready = "True" }, "delete the file of the younger node"},
		"neither is":     {func(_, now *inspect.Node) { now.Ready = "False" }, "delete the file of the younger node"},
		"another endpoint": {func(former, _ *inspect.Node) {
			former.Annotations["aws.wireguard.semaphore.uw.io/endpoint"] = "10.66.0.9:51820"
		}, "delete the file of the younger node"},
		"without endpoints": {func(former, now *inspect.Node) {
			former.Annotations["aws.wireguard.semaphore.uw.io/endpoint"] = ""
			now.Annotations["aws.wireguard.semaphore.uw.io/endpoint"] = ""
		}, "delete the file of the younger node"},
	} {
		clusters := inspecttest.Pair(2)
		former, now := &clusters[1].Nodes.Value[0], &clusters[1].Nodes.Value[1]
		former.Ready, former.Annotations["aws.wireguard.semaphore.uw.io/pubKey"] = "False", now.Annotations["aws.wireguard.semaphore.uw.io/pubKey"]
		c.change(former, now)
		r := &clusters[0].Agents[0].Value.Remotes[0]
		r.Peers, r.Rejected = r.Peers[:1], []statuspage.Rejection{{Node: "gcp-2", Reason: "duplicate_key", Detail: `public key k is already that of node "gcp-1"`}}
		remedy, table := "", known(t)
		rejected("duplicate_key")(&Facts{Clusters: clusters}, func(f Finding) { remedy = table["duplicate-key"].remedy(&f) })
		if !strings.Contains(remedy, c.want) {
			t.Errorf("%s: %q, want %q", name, remedy, c.want)
		}
	}
}

func TestANodeMayInitiateHandshakes(t *testing.T) {
	clusters := inspecttest.Pair(2)
	clusters[0].Nodes.Value[0].Annotations["gcp."+inspect.AnnotationGroup+"/endpoint"] = ""
	if d := diagnose(t, clusters, nil, false); d.Verdict != Well {
		t.Errorf("%+v", d)
	}
}

func TestUnknownIsNotWell(t *testing.T) {
	if d := diagnose(t, inspecttest.Pair(2), nil, true); d.Verdict != Unknown {
		t.Errorf("without a request of a pod it is %s", d.Verdict)
	}
	// Without paths nothing can be checked.
	for name, clusters := range map[string][]*inspect.Cluster{
		"one cluster": inspecttest.Pair(1)[:1], "no nodes": inspecttest.Pair(0), "one of them has none": {inspecttest.Pair(0)[0], inspecttest.Pair(1)[1]},
		"of three one has none": append(inspecttest.Pair(1), &inspect.Cluster{Name: "merit", Workloads: inspecttest.Pair(0)[0].Workloads}),
	} {
		if d := diagnose(t, clusters, nil, false); d.Verdict == Well {
			t.Errorf("%s: the verdict is %s", name, Well)
		}
	}
	if d := diagnose(t, inspecttest.Pair(1), nil, false); d.Verdict != Well {
		t.Errorf("a node in each of two clusters: %+v", d)
	}
	if d := diagnose(t, nil, nil, false); d.Verdict == Wrong {
		t.Errorf("without clusters: %+v", d)
	}
}

// TestOldAgents checks which agents are reported if versions differ, and with which evidence.
func TestOldAgents(t *testing.T) {
	for name, tt := range map[string]struct {
		versions [4]string // aws-1, aws-2, gcp-1 and gcp-2
		want     []string  // findings and their evidence
	}{
		"one version": {versions: [4]string{"v1", "v1", "v1", "v1"}},
		"one of four": {[4]string{"v1.2.0", "v1.2.0", "v1.1.0", "v1.2.0"}, []string{
			"the agent of gcp-1 has another version: it has v1.1.0; 3 of 4 agents have v1.2.0"}},
		"a tie, the newer one wins": {[4]string{"v1.9.0", "v1.9.0", "v1.10.0", "v1.10.0"}, []string{
			"the agent of aws-1 has another version: it has v1.9.0; 2 of 4 agents have v1.10.0",
			"the agent of aws-2 has another version: it has v1.9.0; 2 of 4 agents have v1.10.0"}},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := inspecttest.Pair(2)
			for i, version := range tt.versions {
				clusters[i/2].Agents[i%2].Value.Version = version
			}
			if diff := cmp.Diff(tt.want, outdated(t, clusters)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestOldAgentsOfAnyVersions checks that the result is deterministic, also for versions
// without an order.
func TestOldAgentsOfAnyVersions(t *testing.T) {
	clusters := inspecttest.Pair(2)
	for i, version := range []string{"v1.9.0", "v1.10.0", "v1.2-devel", "v1.10.0-1-gabcdef"} {
		clusters[i/2].Agents[i%2].Value.Version = version
	}
	first := outdated(t, clusters)
	for range 100 {
		if diff := cmp.Diff(first, outdated(t, clusters)); diff != "" {
			t.Fatalf("another time (-first +got):\n%s", diff)
		}
	}
}
