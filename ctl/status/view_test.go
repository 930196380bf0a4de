package status

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
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

var now = inspecttest.Now

func TestView(t *testing.T) {
	path := func(c *inspect.Cluster) *statuspage.Peer { return &c.Agents[0].Value.Remotes[0].Peers[0] }
	for name, tt := range map[string]struct {
		change         func(aws, gcp *inspect.Cluster)
		wrong, unknown []string
	}{
		"all is up": {change: func(_, _ *inspect.Cluster) {}},
		"a path is down": {
			change: func(aws, _ *inspect.Cluster) { path(aws).Path.State, path(aws).Path.Sign = "down", "one_way" },
			wrong:  []string{"aws to gcp: 1 of 4 paths is down: aws-1 to gcp-1"},
		},
		"a node that doesn't forward": {
			change: func(aws, _ *inspect.Cluster) { aws.Agents[0].Value.Forwarding.Off = []string{"net.ipv4.ip_forward=0"} },
			wrong:  []string{"aws: aws-1 doesn't forward packets of its pods: net.ipv4.ip_forward=0"},
		},
		"packets that are stopped now, and some that were": {
			change: func(aws, gcp *inspect.Cluster) {
				n, lately, before := uint64(283), now.Add(-30*time.Second), now.Add(-2*time.Minute)
				here, there := &aws.Agents[0].Value.Remotes[0], &gcp.Agents[0].Value.Remotes[0]
				here.Stopped, here.LastStopped, here.Stopping = &n, &lately, true
				there.Stopped, there.LastStopped = &n, &before
			},
			wrong: []string{"aws-1: drops packets to pods of gcp that would leave in plaintext, the last one 30s ago"},
		},
		"the name of a network set is taken": {
			change: func(aws, _ *inspect.Cluster) {
				sets := []statuspage.NetworkSet{{Object: "gcp-shop-db-1f2e3d", NameTaken: "the network set of gcp/shop/db is gcp-shop-db-1f2e3d: an object that isn't ours has the name gcp-shop-db"}, {Object: "gcp-shop-web"}}
				aws.Policies = []inspect.Reported[statuspage.Policy]{{}}
				aws.Policies[0].Value = &statuspage.Policy{Leading: true, Remotes: []statuspage.PolicyRemote{{Name: "gcp", Sets: sets}}}
			},
			wrong: []string{"aws: the network set of gcp/shop/db is gcp-shop-db-1f2e3d: an object that isn't ours has the name gcp-shop-db"},
		},
		"small packets only are a fault, but the path is up": {
			change: func(aws, _ *inspect.Cluster) { path(aws).Path.SmallOnly = true },
			wrong:  []string{"aws to gcp: 1 of 4 paths carry small packets only: aws-1 to gcp-1"},
		},
		"an older agent": {
			change:  func(aws, _ *inspect.Cluster) { path(aws).Path, path(aws).Health = nil, "silent" },
			unknown: []string{"aws to gcp: 1 of 4 paths is unknown: aws-1 to gcp-1"},
		},
		"a state of a newer agent is not up": {
			change:  func(aws, _ *inspect.Cluster) { path(aws).Path.State = "splendid" },
			unknown: []string{"aws to gcp: 1 of 4 paths is unknown: aws-1 to gcp-1"},
		},
		"an agent that doesn't answer": {
			change:  func(_, gcp *inspect.Cluster) { gcp.Agents[0].Value, gcp.Agents[0].Err = nil, "exec: no" },
			unknown: []string{"gcp to aws: 2 of 4 paths are unknown: gcp-1 to aws-1, gcp-1 to aws-2"},
		},
		"controllers that don't answer": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Mirrors = []inspect.Reported[statuspage.Mirror]{{Pod: inspect.Pod{Name: "mirror-1"}}, {Pod: inspect.Pod{Name: "mirror-2"}}}
				aws.Mirrors[0].Value, aws.Mirrors[1].Err = &statuspage.Mirror{}, "exec: no"
				aws.Policies = []inspect.Reported[statuspage.Policy]{{}}
				aws.Policies[0].Value = &statuspage.Policy{}
			},
			unknown: []string{"aws: no report of the leader of semaphore-service-mirror: mirror-2: exec: no", "aws: no report of the leader of semaphore-policy: no replica leads"},
		},
		"clusters that left": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Mirrors = []inspect.Reported[statuspage.Mirror]{{}}
				aws.Mirrors[0].Value = &statuspage.Mirror{
					Leading: true, Former: []statuspage.FormerCluster{{Name: "merit", Services: 1, Slices: 2}}, Departed: []string{"gcp"},
				}
			},
			wrong: []string{
				"aws: merit is no longer configured, and still has services (1) and endpoint slices (2) there",
				"aws: services of gcp are ignored: it is in SEMAPHORE_DEPARTED_REMOTES",
			},
		},
		"a token that is refused while its watch goes on": {
			change: func(aws, _ *inspect.Cluster) {
				refused := map[string]statuspage.CredentialCheck{"gcp": {Error: "get version: Unauthorized"}}
				aws.Mirrors = []inspect.Reported[statuspage.Mirror]{{}}
				aws.Mirrors[0].Value = &statuspage.Mirror{Leading: true, Credentials: refused}
				for i := range aws.Agents {
					aws.Agents[i].Value.Credentials = refused
				}
			},
			wrong: []string{
				"aws: semaphore-wireguard on aws-1, aws-2: a request to gcp with the credentials on disk: get version: Unauthorized",
				"aws: semaphore-service-mirror: a request to gcp with the credentials on disk: get version: Unauthorized",
			},
		},
		"a program that can't read its own API server": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Policies = []inspect.Reported[statuspage.Policy]{{}}
				aws.Policies[0].Value = &statuspage.Policy{Leading: true, Credentials: map[string]statuspage.CredentialCheck{"aws": {Error: "forbidden"}}}
			},
			wrong: []string{"aws: semaphore-policy: a request to aws with the credentials on disk: forbidden"},
		},
		"a token that isn't renewed": {
			change: func(aws, _ *inspect.Cluster) {
				issued, expires := now.Add(-29*24*time.Hour), now.Add(24*time.Hour)
				aws.Agents[0].Value.Credentials = map[string]statuspage.CredentialCheck{"gcp": {Issued: &issued, Expires: &expires}}
			},
			wrong: []string{"aws: semaphore-wireguard on aws-1: the token for gcp on disk expires at 2026-01-03T03:04:05Z and hasn't been renewed"},
		},
		"a request that isn't answered": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Agents[0].Value.Credentials = map[string]statuspage.CredentialCheck{"gcp": {Waiting: &now}}
			},
			unknown: []string{"aws: semaphore-wireguard on aws-1: a request to gcp with the credentials on disk isn't answered yet"},
		},
		"a request beside one that was answered lately": {
			change: func(aws, _ *inspect.Cluster) {
				lately := now.Add(-20 * time.Second)
				aws.Agents[0].Value.Credentials = map[string]statuspage.CredentialCheck{"gcp": {Waiting: &now, Asked: &lately}}
			},
		},
		"a request long after the last one": {
			change: func(aws, _ *inspect.Cluster) {
				before := now.Add(-time.Hour)
				aws.Agents[0].Value.Credentials = map[string]statuspage.CredentialCheck{"gcp": {Waiting: &now, Asked: &before}}
			},
			unknown: []string{"aws: semaphore-wireguard on aws-1: a request to gcp with the credentials on disk isn't answered yet"},
		},
		"the leader answers": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Policies = []inspect.Reported[statuspage.Policy]{{}, {}}
				aws.Policies[0].Err, aws.Policies[1].Value = "exec: no", &statuspage.Policy{Leading: true}
			},
		},
		"an API server that is down": {
			change: func(_, gcp *inspect.Cluster) {
				*gcp = inspect.Cluster{Name: "gcp", Kubernetes: inspect.Fact[string]{Err: "refused"}}
			},
			unknown: []string{"gcp: its API server can't be read: refused", "gcp to aws: no nodes are known"},
		},
		"nodes and pods that can't be read": {
			change: func(_, gcp *inspect.Cluster) {
				gcp.Nodes.Value, gcp.Nodes.Err = nil, `a Node: metadata.name: "--all"`
				gcp.Agents, gcp.Pods.Value, gcp.Pods.Err = nil, nil, "forbidden"
			},
			unknown: []string{`gcp: its nodes: a Node: metadata.name: "--all"`, "gcp: its pods of Kube-Semaphore: forbidden", "gcp to aws: no nodes are known"},
		},
		"names that CoreDNS doesn't serve": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Workloads.Value = append(aws.Workloads.Value, inspect.Workload{Name: inspect.ServiceMirror})
				aws.DNS.Value, _ = coredns.Read(context.Background(), fake.NewClientset(&corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Name: "coredns", Namespace: "kube-system"}, Data: map[string]string{"Corefile": ".:53 {\n}\n"},
				}))
			},
			wrong: []string{"aws: CoreDNS serves no names of gcp"},
		},
		"a cluster without CoreDNS": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Workloads.Value = append(aws.Workloads.Value, inspect.Workload{Name: inspect.ServiceMirror, Wanted: 1, Ready: 1})
			},
			unknown: []string{"aws: names of other clusters: kube-system has no CoreDNS"},
		},
		"CoreDNS that can't be read": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Workloads.Value = append(aws.Workloads.Value, inspect.Workload{Name: inspect.ServiceMirror})
				aws.DNS.Err = "forbidden"
			},
			unknown: []string{"aws: CoreDNS's configuration: forbidden"},
		},
		"a node that is rejected": {
			change: func(aws, _ *inspect.Cluster) {
				r := &aws.Agents[0].Value.Remotes[0]
				r.Peers, r.Rejected = r.Peers[1:], []statuspage.Rejection{{Node: "gcp-1", Reason: "public_key", Detail: "missing"}}
			},
			wrong: []string{"aws to gcp: 1 of 4 paths is down: aws-1 to gcp-1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := inspecttest.Pair(2)
			tt.change(clusters[0], clusters[1])
			v := Of(now, clusters)
			if diff := cmp.Diff(tt.wrong, v.Wrong); diff != "" {
				t.Errorf("wrong (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.unknown, v.Unknown); diff != "" {
				t.Errorf("unknown (-want +got):\n%s", diff)
			}
		})
	}
}

func TestText(t *testing.T) {
	clusters := inspecttest.Pair(2)
	gone := clusters[0].Agents[1].Value.Remotes[0].Peers[0].Path
	gone.State, gone.Sign, gone.Since, gone.RTT = "down", "no_answer", now.Add(-time.Minute), 0
	clusters[1].Nodes.Value[1].Name = "gcp-2\x1b[2J"
	var b strings.Builder
	if err := Of(now, clusters).Text(&b, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"aws to gcp: 1 paths up, 3 down, 0 unknown; backend kernel; last contact with API server 0s ago",
		"aws-1      12.3 ms           down (no_peer)",
		"aws-2      down (no_answer)  down (no_peer)", `gcp-2\x1b[2J`,
		"wrong:\n  aws to gcp: 3 of 4 paths are down",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in:\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), "\x1b") {
		t.Error("an escape sequence is printed")
	}
}

// TestVerdict is one line; links lead from it to the faults, and from these to the paths.
// TestAgentsOfARelay counts the agents that have read the latest objects of semaphore-relay.
func TestAgentsOfARelay(t *testing.T) {
	clusters := inspecttest.Pair(3)
	aws := clusters[0]
	aws.Stored.Value = map[string]string{"aws": "7", "gcp": "100"}
	for i, revision := range []string{"100", "101", "99"} {
		a := aws.Agents[i].Value
		a.RemotesFrom, a.Relay = inspect.RemotesFromRelay, map[string]statuspage.RelayContact{"aws": {Revision: "7"}, "gcp": {Revision: revision}}
	}
	v := Of(now, clusters)
	if diff := cmp.Diff(&Relay{Clusters: 2, Agents: 3, Current: 2}, v.Clusters[0].Relay); diff != "" || v.Clusters[1].Relay != nil {
		t.Errorf("gcp: %v, aws (-want +got):\n%s", v.Clusters[1].Relay, diff)
	}
	if want := []string{"aws: aws-3 hasn't read the latest nodes of gcp from semaphore-relay"}; !slices.Equal(v.Wrong, want) {
		t.Errorf("wrong: %q", v.Wrong)
	}
	var text, page strings.Builder
	if err := errors.Join(v.Text(&text, false), v.HTML(&page)); err != nil {
		t.Fatal(err)
	}
	const line = "aws: agents read the nodes of 2 clusters from semaphore-relay; 2 of 3 agents up to date"
	if !strings.Contains(text.String(), "\n"+line+"\n") || !strings.Contains(page.String(), ">"+line+"<") {
		t.Errorf("without %q:\n%s\n%s", line, text.String(), page.String())
	}
	// What is stored isn't known.
	aws.Stored = inspect.Fact[map[string]string]{Err: "forbidden"}
	if got := Of(now, clusters).Clusters[0].Relay; got.Current != 0 || got.Agents != 3 {
		t.Errorf("without knowing what is stored: %+v", got)
	}
}

func TestVerdict(t *testing.T) {
	path := func(c *inspect.Cluster, node int) *statuspage.Path {
		return c.Agents[0].Value.Remotes[0].Peers[node].Path
	}
	for name, tt := range map[string]struct {
		change      func(aws, gcp *inspect.Cluster)
		state, line string
		page        []string
	}{
		"well": {func(aws, _ *inspect.Cluster) { path(aws, 1).RTT = 0.12 }, "well", "No faults found: 8 paths are up, the slowest with 120.0 ms",
			[]string{`<td class="upon"`, `<td class="up20"`}},
		"one fault": {func(aws, _ *inspect.Cluster) { path(aws, 0).State = "down" }, "wrong", "1 fault: aws to gcp: 1 of 4 paths is down: aws-1 to gcp-1",
			[]string{`<a href="#wrong">`, `<a href="#m0">aws to gcp: 1 of 4`, `<a href="#m0-0-0">✗ down`, `<tr id="m0-0-0">`, "<code>semaphorectl doctor aws gcp</code>"}},
		"two": {func(aws, gcp *inspect.Cluster) { path(aws, 0).State, path(gcp, 1).SmallOnly = "down", true }, "wrong", "2 faults: aws to gcp: 1 of 4 paths is down: aws-1 to gcp-1; and 1 more",
			[]string{`<td class="small"`, `<a href="#m1-0-1">! small only 12.3 ms</a>`, "full-size packets are lost"}},
		"unknown": {func(aws, _ *inspect.Cluster) { path(aws, 0).State = "unknown" }, "unknown", "No fault is known, but 1 thing is unknown: aws to gcp: 1 of 4 paths is unknown: aws-1 to gcp-1",
			[]string{`<a href="#unknown">`}},
	} {
		clusters := inspecttest.Pair(2)
		tt.change(clusters[0], clusters[1])
		view := Of(now, clusters)
		if state, line := view.Verdict(); state != tt.state || line != tt.line {
			t.Errorf("%s: %s, %q", name, state, line)
		}
		var page strings.Builder
		if err := view.HTML(&page); err != nil {
			t.Fatal(err)
		}
		for _, want := range append(tt.page, `<p class="verdict `+tt.state+`" id="verdict">`) {
			if !strings.Contains(page.String(), want) {
				t.Errorf("%s: no %q in\n%s", name, want, page.String())
			}
		}
	}
}

func TestJSON(t *testing.T) {
	body, err := json.Marshal(Of(now, inspecttest.Pair(1)))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Meshes []struct {
			From  string
			Paths [][]struct{ State string }
		}
	}
	if err := json.Unmarshal(body, &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Meshes) != 2 || got.Meshes[0].From != "aws" || got.Meshes[0].Paths[0][0].State != "up" {
		t.Errorf("got %+v", got)
	}
}

// TestClusterOfNoNodes prints views of a large cluster and one that couldn't be read.
func TestClusterOfNoNodes(t *testing.T) {
	clusters := inspecttest.Pair(largest + 1)
	clusters[0].Agents, clusters[1].Agents, clusters[1].Nodes.Value = nil, nil, nil
	view := Of(now, clusters)
	var page, text strings.Builder
	if err := errors.Join(view.HTML(&page), view.Text(&text, true)); err != nil {
		t.Error(err)
	}
	if want := "no nodes are known"; !strings.Contains(page.String(), want) || !strings.Contains(text.String(), want) {
		t.Errorf("no \"no nodes are known\" in\n%s", text.String())
	}
}

// TestTooManyPaths views clusters whose agents report too many nodes of the other one.
func TestTooManyPaths(t *testing.T) {
	clusters := inspecttest.Pair(2)
	clusters[0].Nodes.Value = make([]inspect.Node, 1<<21)
	view := Of(now, clusters)
	if m := view.Meshes[0]; len(m.Paths) > 0 || len(view.Unknown) != 2 || !strings.Contains(view.Unknown[0], "too many paths between") {
		t.Errorf("%d rows, %q", len(m.Paths), view.Unknown)
	}
}

// TestClusterHidesNoOther views a cluster with more faults than are shown: they are counted,
// and those of the other one are shown.
func TestClusterHidesNoOther(t *testing.T) {
	clusters := inspecttest.Pair(2)
	aws, gcp := clusters[0], clusters[1]
	gcp.Workloads.Value = nil
	for i := range maxLines + 50 {
		gcp.Workloads.Value = append(gcp.Workloads.Value, inspect.Workload{Kind: "DaemonSet", Name: fmt.Sprint("x", i), Wanted: 1})
	}
	leads := &statuspage.Mirror{Leading: true, Services: []statuspage.Service{{Name: "shop/web", Error: "no room"}}}
	aws.Mirrors = []inspect.Reported[statuspage.Mirror]{{Fact: inspect.Fact[*statuspage.Mirror]{Value: leads}}}
	for _, order := range [][]*inspect.Cluster{{aws, gcp}, {gcp, aws}} {
		wrong := Of(now, order).Wrong
		for _, want := range []string{"aws: service shop/web: no room", "gcp: x0: 0 of 1 pod is ready", "gcp: and 50 more"} {
			if !slices.Contains(wrong, want) {
				t.Errorf("no %q in %d lines that end with %q", want, len(wrong), wrong[len(wrong)-1])
			}
		}
		if len(wrong) != maxLines+2 {
			t.Errorf("%d lines", len(wrong))
		}
	}
}

// TestWorkIsBounded views agents that report many peers, none of which is a node: a linear
// search for each node takes minutes. The deadline allows for a busy machine.
func TestWorkIsBounded(t *testing.T) {
	rows, columns, peers := 500, 4000, 20_000
	if testing.Short() {
		rows, columns, peers = 50, 400, 2_000
	}
	aws, gcp := &inspect.Cluster{Name: "aws"}, &inspect.Cluster{Name: "gcp"}
	for i := range columns {
		aws.Nodes.Value = append(aws.Nodes.Value, inspect.Node{Name: fmt.Sprintf("node-%05d", i)})
	}
	report := &statuspage.Agent{Remotes: []statuspage.Remote{{Name: "aws"}}}
	for i := range peers {
		report.Remotes[0].Peers = append(report.Remotes[0].Peers, statuspage.Peer{Node: fmt.Sprintf("node-%05d", columns+i)})
		report.Remotes[0].Rejected = append(report.Remotes[0].Rejected, statuspage.Rejection{Node: fmt.Sprintf("node-%05d", columns+i)})
	}
	for i := range rows {
		name := fmt.Sprint("gcp-", i)
		gcp.Nodes.Value = append(gcp.Nodes.Value, inspect.Node{Name: name})
		gcp.Agents = append(gcp.Agents, inspect.Reported[statuspage.Agent]{Pod: inspect.Pod{Node: name}, Fact: inspect.Fact[*statuspage.Agent]{Value: report}})
	}
	seen := make(chan *View, 1)
	go func() { seen <- Of(now, []*inspect.Cluster{aws, gcp}) }()
	select {
	case v := <-seen:
		if down := v.Meshes[1].Counts.Down; down != rows*columns {
			t.Errorf("%d paths are down", down)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("not done within the deadline")
	}
}
