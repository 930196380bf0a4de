package judge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

// TestClusterHidesNoOther checks that nothing that a hostile cluster reports explains faults
// of another cluster alone, or between others, or hides what is unknown about them.
func TestClusterHidesNoOther(t *testing.T) {
	claim := func(node string, remotes ...statuspage.Remote) func(gcp *inspect.Cluster) {
		return func(gcp *inspect.Cluster) {
			for i := range gcp.Agents {
				gcp.Agents[i].Value.Node = node
				gcp.Agents[i].Value.Remotes = append(gcp.Agents[i].Value.Remotes, remotes...)
			}
		}
	}
	refused := func(name string) statuspage.Remote { return statuspage.Remote{Name: name, Refused: "x"} }
	for name, lie := range map[string]func(gcp *inspect.Cluster){
		"nothing":                    func(*inspect.Cluster) {},
		"a remote is refused":        claim("gcp-1", refused("aws")),
		"an agent of no node":        claim("", refused("aws")),
		"an agent of others' node":   claim("aws-1", refused("aws"), refused("gcp")),
		"remotes without a name":     claim("", refused(""), refused(anyNode)),
		"an API server that is down": claim("", statuspage.Remote{Name: "aws", API: statuspage.Connection{Error: "connection refused", Reason: kube.Away}}, statuspage.Remote{Name: "merit", API: statuspage.Connection{Error: "Unauthorized", Reason: kube.TokenRefused}}),
		"rejected nodes": claim("", statuspage.Remote{Name: "aws", Rejected: []statuspage.Rejection{
			{Node: "aws-1", Reason: "duplicate_key"}, {Node: "", Reason: "pod_cidr"}, {Node: anyNode, Reason: "x"},
		}}),
		"null among its reports": func(gcp *inspect.Cluster) {
			report := &statuspage.Policy{}
			if err := json.Unmarshal([]byte(`{"leading":true,"remotes":[{"name":"aws","skipped":{"x":null}}]}`), report); err != nil {
				panic(err)
			}
			gcp.Policies = []inspect.Reported[statuspage.Policy]{{Fact: inspect.Fact[*statuspage.Policy]{Value: report}}}
		},
		"a false date": func(gcp *inspect.Cluster) { gcp.Clock.Value = -10 * time.Minute },
		"nodes that aren't ready": func(gcp *inspect.Cluster) {
			for i := range gcp.Nodes.Value {
				gcp.Nodes.Value[i].Ready = "False"
			}
		},
		"more unknowns than are printed": func(gcp *inspect.Cluster) {
			for i := range 10 * maxOpen {
				pod := inspect.Pod{Name: fmt.Sprint("agent-", i), Node: fmt.Sprint("n", i)}
				gcp.Agents = append(gcp.Agents, inspect.Reported[statuspage.Agent]{Pod: pod, Fact: inspect.Fact[*statuspage.Agent]{Err: "no"}})
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, order := range [][3]int{{0, 1, 2}, {1, 0, 2}, {2, 1, 0}} {
				all := inspecttest.Mesh(2, "aws", "gcp", "merit")
				aws, gcp, merit := all[0], all[1], all[2]
				aws.Agents[0].Value.Filter.State = "missing"
				aws.Agents[1].Value.Conditions = []statuspage.Condition{{Type: statuspage.Pending, Object: "routes"}}
				merit.Agents[0].Value.Conditions = []statuspage.Condition{{Type: statuspage.Failing, Reason: statuspage.ReasonError, Object: "orphans", Message: "no"}}
				merit.Agents[1].Value.Remotes[0].Peers[0].Path.State = "down"
				lie(gcp)
				d := diagnose(t, []*inspect.Cluster{all[order[0]], all[order[1]], all[order[2]]}, nil, false)
				for _, want := range []Cause{
					{ID: "agent-failing", Where: Scope{Cluster: "aws", Node: "aws-1"}}, {ID: "agent-failing", Where: Scope{Cluster: "merit", Node: "merit-1"}},
					{ID: "path-down", Where: Scope{"merit", "merit-2", "aws", "aws-1"}},
				} {
					if !slices.ContainsFunc(d.Causes, func(c Cause) bool { return c.ID == want.ID && c.Where == want.Where }) {
						t.Errorf("in the order %d no %s at %+v: %+v", order, want.ID, want.Where, d.Causes)
					}
				}
				if !slices.ContainsFunc(d.Unknown, func(o Open) bool { return o.What == "aws: the agent of aws-2" }) {
					t.Errorf("in the order %d an unknown of aws is missing: %+v", order, d.Unknown)
				}
				if d.Verdict != Wrong {
					t.Errorf("the verdict is %s", d.Verdict)
				}
			}
		})
	}
}

func TestExplain(t *testing.T) {
	aws, node, pair := Scope{Cluster: "aws"}, Scope{Cluster: "aws", Node: "aws-1"}, Scope{"aws", "aws-1", "gcp", "gcp-1"}
	clusters := Scope{Cluster: "aws", Remote: "gcp"}
	for _, tt := range []struct {
		root  Scope
		local bool
		of    Scope
		want  bool
	}{
		{aws, false, aws, true}, {aws, false, node, true}, {node, false, aws, true}, {aws, false, pair, true},
		{node, false, Scope{Cluster: "aws", Node: "aws-2"}, false}, {node, false, pair, true}, {pair, false, pair, true},
		{node, false, pair.turned(), true}, {pair, false, pair.turned(), true}, {clusters, false, pair.turned(), true},
		{Scope{"aws", "aws-1", "gcp", "gcp-2"}, false, pair, false},
		{Scope{Cluster: "gcp", Node: "gcp-1"}, false, pair, true}, {Scope{Cluster: "gcp", Node: "gcp-2"}, false, pair, false},
		// A fault of a remote explains none of the cluster itself, unless it is local.
		{clusters, false, aws, false}, {clusters, true, aws, true}, {clusters, true, node, true}, {pair, false, node, false}, {pair, true, node, true},
		{clusters, true, Scope{Cluster: "aws", Remote: "merit"}, false},
		{clusters, true, Scope{Cluster: "gcp"}, false}, {Scope{Cluster: "gcp"}, true, node, false}, {clusters.turned(), true, node, false},
		// Seen from the other side, only faults between two nodes are the same.
		{Scope{Cluster: "gcp"}, false, clusters, false}, {Scope{Cluster: "gcp", Node: "gcp-1"}, false, Scope{"aws", "aws-1", "gcp", ""}, false},
		{Scope{Cluster: "merit"}, true, pair, false}, {Scope{Cluster: "merit", Remote: "aws"}, true, pair, false},
	} {
		wrong := scopes{}
		wrong.add(tt.root, tt.local, false)
		if got := wrong.explain(tt.of); got != tt.want {
			t.Errorf("%+v (%t) explains %+v: %t", tt.root, tt.local, tt.of, got)
		}
	}
}

// TestWorkIsBounded diagnoses reports that take minutes with quadratic algorithms. The
// deadline allows for a busy machine.
func TestWorkIsBounded(t *testing.T) {
	n := 20_000
	if testing.Short() {
		n = 2_000
	}
	report := func(change func(a *statuspage.Agent)) []*inspect.Cluster {
		clusters := inspecttest.Pair(1)
		change(clusters[1].Agents[0].Value)
		return clusters
	}
	nodes := func(n int) []*inspect.Cluster {
		clusters := inspecttest.Pair(20)
		gcp := clusters[1]
		gcp.Nodes.Value, gcp.Pods.Value, gcp.Agents = nil, nil, nil
		for i := range n {
			node := inspect.Node{Name: fmt.Sprint("n", i), Ready: "True", Annotations: map[string]string{}}
			if i%3 > 0 {
				node.Annotations["aws."+inspect.AnnotationGroup+"/pubKey"], node.Annotations["aws."+inspect.AnnotationGroup+"/endpoint"] = "k", ""
			}
			pod := inspect.Pod{Name: "agent-" + node.Name, Node: node.Name, Program: inspect.WireGuard}
			gcp.Nodes.Value, gcp.Pods.Value = append(gcp.Nodes.Value, node), append(gcp.Pods.Value, pod)
			gcp.Agents = append(gcp.Agents, inspect.Reported[statuspage.Agent]{Pod: pod, Fact: inspect.Fact[*statuspage.Agent]{Err: "no"}})
		}
		return clusters
	}
	pools := report(func(a *statuspage.Agent) {
		for i := range n {
			a.Remotes[0].PodSubnets = append(a.Remotes[0].PodSubnets, fmt.Sprintf("10.%d.%d.0/24", i/256, i%256))
		}
	})
	for i := range n {
		pools[1].Pools.Value = append(pools[1].Pools.Value, inspect.Pool{CIDR: fmt.Sprintf("10.%d.%d.0/24", i/256, i%256), Disabled: true, NoExport: true})
	}
	for name, clusters := range map[string][]*inspect.Cluster{
		"nodes without agents": nodes(4000),
		"rejections": report(func(a *statuspage.Agent) {
			for i := range n {
				a.Remotes[0].Rejected = append(a.Remotes[0].Rejected, statuspage.Rejection{Node: fmt.Sprint("n", i), Reason: "duplicate_key"})
			}
		}),
		"remotes": report(func(a *statuspage.Agent) {
			for i := range n {
				a.Remotes = append(a.Remotes, statuspage.Remote{Name: fmt.Sprint("r", i), Refused: "x"})
			}
		}),
		"remotes and failures": report(func(a *statuspage.Agent) {
			for i := range n {
				a.Remotes = append(a.Remotes, statuspage.Remote{Name: fmt.Sprint("r", i)})
				a.Conditions = append(a.Conditions, statuspage.Condition{Type: statuspage.Failing, Reason: statuspage.ReasonPortTaken, Object: fmt.Sprint("device r", i), Message: "x"})
			}
		}),
		"pools and subnets": pools,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			d, err := Diagnose(ctx, clusters, nil, false)
			if err != nil {
				t.Fatal(err)
			}
			evidence := 0
			for _, c := range d.Causes {
				evidence = max(evidence, len(c.Evidence))
			}
			if len(d.Causes) > 10 || evidence > maxEvidence || len(d.Unknown) > 2*(maxOpen+1) {
				t.Errorf("%d causes with up to %d evidence, and %d unknown", len(d.Causes), evidence, len(d.Unknown))
			}
		})
	}
}

// TestEndsWithTheContext checks that loops over reports end with the context.
func TestEndsWithTheContext(t *testing.T) {
	over := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(over)
	if d, err := Diagnose(ctx, inspecttest.Pair(2), nil, false); !errors.Is(err, over) || d != nil {
		t.Errorf("got %+v, %v", d, err)
	}
	f := &Facts{Clusters: inspecttest.Pair(2), Done: ctx.Done()}
	for range f.Pairs() {
		t.Error("pairs continue")
	}
	for range f.views() {
		t.Error("views continue")
	}
	f.unread(func(Scope, string, Evidence) { t.Error("connections continue") })
}

// TestUnknownIsBoundedByCluster checks that omitted unknowns of a cluster are counted.
func TestUnknownIsBoundedByCluster(t *testing.T) {
	clusters := inspecttest.Pair(maxOpen + 3)
	for i := range clusters[1].Agents {
		clusters[1].Agents[i].Value.Conditions = []statuspage.Condition{{Type: statuspage.Pending, Object: "routes"}}
	}
	clusters[0].Agents[0].Value.Conditions = []statuspage.Condition{{Type: statuspage.Pending, Object: "routes"}}
	slices.Reverse(clusters)
	var got []string
	for _, o := range diagnose(t, clusters, nil, false).Unknown[maxOpen:] {
		got = append(got, o.What)
	}
	if diff := cmp.Diff([]string{"aws: the agent of aws-1", "gcp: 3 more"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestOtherRemotes checks that faults of remotes that aren't arguments are reported as one
// cause of each rule.
func TestOtherRemotes(t *testing.T) {
	clusters := inspecttest.Pair(1)
	a := clusters[0].Agents[0].Value
	for _, name := range []string{"merit", "titan"} {
		a.Remotes = append(a.Remotes, statuspage.Remote{Name: name, API: statuspage.Connection{Error: "Unauthorized", Reason: kube.TokenRefused}})
	}
	a.Remotes[0].API.Error, a.Remotes[0].API.Reason = "Unauthorized", kube.TokenRefused
	var got []string
	for _, c := range diagnose(t, clusters, nil, false).Causes {
		texts := []string{c.What}
		for _, e := range c.Evidence {
			texts = append(texts, e.Text)
		}
		got = append(got, c.ID+" "+c.Where.Remote+": "+strings.Join(texts, "; "))
	}
	want := []string{
		"token-refused gcp: aws to gcp: the token is refused; semaphore-wireguard: Unauthorized",
		"token-refused : aws to merit: the token is refused; semaphore-wireguard: Unauthorized; aws to titan: the token is refused; semaphore-wireguard: Unauthorized",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestPoolHoldsSubnet(t *testing.T) {
	c := &inspect.Cluster{}
	c.Pools.Value = []inspect.Pool{
		{CIDR: "10.4.0.0/15", Disabled: true, NoExport: true}, {CIDR: "fd00:4::/32", Disabled: true, NoExport: true}, {CIDR: "10.8.0.0/16", Disabled: true},
		{CIDR: "10.9.0.0/16", NoExport: true}, {CIDR: "x", Disabled: true, NoExport: true},
	}
	for subnet, want := range map[string]bool{
		"10.4.0.0/15": true, "10.5.255.255/32": true, "10.5.0.0/16": true, "fd00:4:1::/48": true,
		"10.4.0.0/14": false, "10.6.0.0/16": false, "10.8.0.0/16": false, "10.9.0.0/16": false, "fd00::/16": false, "x": false, "": false,
	} {
		if got := contains(pools(c), subnet); got != want {
			t.Errorf("%s: %t", subnet, got)
		}
	}
}
