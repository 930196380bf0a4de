package status

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/judge"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

var now = inspecttest.Now

// view is a view of surveys.
func view(t *testing.T, clusters []*inspect.Cluster) *View {
	t.Helper()
	v, err := Of(t.Context(), now, clusters)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// mirrored installs the service mirror.
func mirrored(c *inspect.Cluster) {
	c.Workloads.Value = append(c.Workloads.Value, inspect.Workload{Name: inspect.ServiceMirror, Wanted: 1, Ready: 1})
	c.Mirrors = []inspect.Reported[statuspage.Mirror]{{Fact: inspect.Fact[*statuspage.Mirror]{Value: &statuspage.Mirror{Leading: true}}}}
}

func TestView(t *testing.T) {
	path := func(c *inspect.Cluster) *statuspage.Peer { return &c.Agents[0].Value.Remotes[0].Peers[0] }
	for name, tt := range map[string]struct {
		change         func(aws, gcp *inspect.Cluster)
		wrong, unknown []string
	}{
		"all is up": {change: func(_, _ *inspect.Cluster) {}},
		"a path is down": {
			change: func(aws, _ *inspect.Cluster) { path(aws).Path.State, path(aws).Path.Sign = "down", "one_way" },
			wrong:  []string{"udp-one-way: packets from aws-1 to gcp-1 are dropped, and those in the other direction aren't: aws-1 to gcp-1 at 10.66.0.1:51820: down one_way"},
		},
		"a state of a newer agent is not up": {
			change:  func(aws, _ *inspect.Cluster) { path(aws).Path.State = "splendid" },
			unknown: []string{"the path from aws-1 to gcp-1: answer"},
		},
		"an agent that doesn't answer": {
			change: func(_, gcp *inspect.Cluster) { gcp.Agents[0].Value, gcp.Agents[0].Err = nil, "exec: no" },
			unknown: []string{
				"gcp: the report of agent-gcp-1 on gcp-1: exec: no",
				"the path from gcp-1 to aws-1: no agent answers on gcp-1",
				"the path from gcp-1 to aws-2: no agent answers on gcp-1",
			},
		},
		"controllers that don't answer": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Mirrors = []inspect.Reported[statuspage.Mirror]{{Pod: inspect.Pod{Name: "mirror-1"}}, {Pod: inspect.Pod{Name: "mirror-2"}}}
				aws.Mirrors[0].Value, aws.Mirrors[1].Err = &statuspage.Mirror{}, "exec: no"
				aws.Policies = []inspect.Reported[statuspage.Policy]{{}}
				aws.Policies[0].Value = &statuspage.Policy{}
			},
			unknown: []string{
				"aws: the report of mirror-2 on : exec: no",
				"aws: what semaphore-service-mirror does: no replica reports that it leads",
				"aws: what semaphore-policy does: no replica reports that it leads",
			},
		},
		"a token that is refused while its watch goes on": {
			change: func(aws, _ *inspect.Cluster) {
				refused := map[string]statuspage.CredentialCheck{"gcp": {Error: "get version: Unauthorized", Reason: kube.TokenRefused}}
				aws.Mirrors = []inspect.Reported[statuspage.Mirror]{{}}
				aws.Mirrors[0].Value = &statuspage.Mirror{Leading: true, Credentials: refused}
				for i := range aws.Agents {
					aws.Agents[i].Value.Credentials = refused
				}
			},
			wrong: []string{"token-refused: aws to gcp: the token is refused: semaphore-wireguard, with the credentials on disk: get version: Unauthorized (3 times)"},
		},
		"the leader answers": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Policies = []inspect.Reported[statuspage.Policy]{{}, {}}
				aws.Policies[0].Err, aws.Policies[1].Value = "exec: no", &statuspage.Policy{Leading: true}
			},
			unknown: []string{"aws: the report of  on : exec: no"},
		},
		"an API server that is down": {
			change: func(_, gcp *inspect.Cluster) {
				*gcp = inspect.Cluster{Name: "gcp", Kubernetes: inspect.Fact[string]{Err: "refused"}}
			},
			unknown: []string{"gcp: everything, as its API server can't be read: refused"},
		},
		"nodes and pods that can't be read": {
			change: func(_, gcp *inspect.Cluster) {
				gcp.Nodes.Value, gcp.Nodes.Err = nil, `a Node: metadata.name: "--all"`
				gcp.Agents, gcp.Pods.Value, gcp.Pods.Err = nil, nil, "forbidden"
			},
			unknown: []string{
				"gcp: its nodes: a Node: metadata.name: \"--all\"",
				"gcp: its pods of Kube-Semaphore: forbidden",
				"the path from gcp-1 to aws-1: no agent answers on gcp-1",
				"the path from gcp-1 to aws-2: no agent answers on gcp-1",
				"the path from gcp-2 to aws-1: no agent answers on gcp-2",
				"the path from gcp-2 to aws-2: no agent answers on gcp-2",
			},
		},
		"settings that are invalid": {
			change: func(aws, _ *inspect.Cluster) {
				aws.Settings.Err = "ConfigMap sys-semaphore/semaphore: SEMAPHORE_REMOTES: no"
			},
			unknown: []string{"aws: its settings: ConfigMap sys-semaphore/semaphore: SEMAPHORE_REMOTES: no"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := inspecttest.Pair(2)
			tt.change(clusters[0], clusters[1])
			v := view(t, clusters)
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
	if err := view(t, clusters).Text(&b, false); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"aws to gcp: 1 paths up, 3 down, 0 unknown; backend kernel; last contact with API server 0s ago",
		"aws-1      12.3 ms           down (no_peer)",
		"aws-2      down (no_answer)  down (no_peer)", `gcp-2\x1b[2J`,
		"wrong:\n  agent-missing: no agent runs on ",
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
	aws.Workloads.Value = append(aws.Workloads.Value, inspect.Workload{Name: inspect.Relay, Wanted: 1, Ready: 1})
	aws.Relays = []inspect.Reported[statuspage.Relay]{{Fact: inspect.Fact[*statuspage.Relay]{Value: &statuspage.Relay{Leading: true}}}}
	aws.Stored.Value = map[string]string{"aws": "7", "gcp": "100"}
	for i, revision := range []string{"100", "101", "99"} {
		a := aws.Agents[i].Value
		a.RemotesFrom, a.Relay = inspect.RemotesFromRelay, map[string]statuspage.RelayContact{"aws": {Revision: "7"}, "gcp": {Revision: revision}}
	}
	v := view(t, clusters)
	if diff := cmp.Diff(&Relay{Clusters: 2, Agents: 3, Current: 2}, v.Clusters[0].Relay); diff != "" || v.Clusters[1].Relay != nil {
		t.Errorf("gcp: %v, aws (-want +got):\n%s", v.Clusters[1].Relay, diff)
	}
	if want := []string{"agent-behind: the agent of aws-3 lacks the latest nodes of semaphore-relay: of gcp it has read revision 99, and 100 was stored 5s before"}; !slices.Equal(v.Wrong, want) {
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
	if got := view(t, clusters).Clusters[0].Relay; got.Current != 0 || got.Agents != 3 {
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
		"one fault": {func(aws, _ *inspect.Cluster) { path(aws, 0).State = "down" }, "wrong", "1 fault: path-down: aws-1 can't reach gcp-1: aws-1 to gcp-1 at 10.66.0.1:51820: down answer",
			[]string{`<a href="#wrong">`, `<a href="#m0">path-down: aws-1 can&#39;t reach gcp-1: `, `<a href="#m0-0-0">✗ down`, `<tr id="m0-0-0">`, "<code>semaphorectl doctor aws gcp</code>"}},
		"two": {func(aws, gcp *inspect.Cluster) { path(aws, 0).State, path(gcp, 1).SmallOnly = "down", true }, "wrong", "2 faults: mtu-too-large: only small packets get from gcp-1 to aws-2 and back: probes of 1420 bytes, the MTU of wireguard.aws, are lost; and 1 more",
			[]string{`<td class="small"`, `<a href="#m1-0-1">! small only 12.3 ms</a>`, "full-size packets are lost"}},
		"unknown": {func(aws, _ *inspect.Cluster) { path(aws, 0).State = "unknown" }, "unknown", "No fault is known, but 1 thing is unknown: the path from aws-1 to gcp-1: answer",
			[]string{`<a href="#unknown">`}},
	} {
		clusters := inspecttest.Pair(2)
		tt.change(clusters[0], clusters[1])
		v := view(t, clusters)
		if v.Verdict != tt.state || v.Summary() != tt.line {
			t.Errorf("%s: %s, %q", name, v.Verdict, v.Summary())
		}
		var page strings.Builder
		if err := v.HTML(&page); err != nil {
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
	body, err := json.Marshal(view(t, inspecttest.Pair(1)))
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
	v := view(t, clusters)
	var page, text strings.Builder
	if err := errors.Join(v.HTML(&page), v.Text(&text, true)); err != nil {
		t.Error(err)
	}
	if want := "it has no nodes"; !strings.Contains(page.String(), want) || !strings.Contains(text.String(), want) {
		t.Errorf("no \"it has no nodes\" in\n%s", text.String())
	}
}

// TestTooManyPaths views clusters whose agents report too many nodes of the other one, whose own
// can't be read.
func TestTooManyPaths(t *testing.T) {
	clusters := inspecttest.Pair(1)
	clusters[1].Nodes.Value, clusters[1].Nodes.Err = nil, "forbidden"
	for i := range 3000 {
		clusters[0].Nodes.Value = append(clusters[0].Nodes.Value, inspect.Node{Name: fmt.Sprint("n", i)})
	}
	gcp := &clusters[0].Agents[0].Value.Remotes[0]
	for i := range 1000 {
		gcp.Peers = append(gcp.Peers, statuspage.Peer{Node: fmt.Sprint("p", i)})
	}
	v := view(t, clusters)
	if m := v.Meshes[0]; len(m.Paths) > 0 || v.Verdict == judge.Well || !slices.Contains(v.Unknown, "gcp: its nodes: forbidden") {
		t.Errorf("%d rows, %s, %q", len(m.Paths), v.Verdict, v.Unknown)
	}
}

// TestClusterHidesNoOther views a cluster with more faults than have room: they are one line, and
// that of the other one is shown.
func TestClusterHidesNoOther(t *testing.T) {
	clusters := inspecttest.Pair(2)
	aws, gcp := clusters[0], clusters[1]
	for i := range 250 {
		gcp.Workloads.Value = append(gcp.Workloads.Value, inspect.Workload{Kind: "DaemonSet", Name: fmt.Sprint("x", i), Wanted: 1})
	}
	mirrored(aws)
	aws.Mirrors[0].Value.Services = []statuspage.Service{{Name: "shop/web", Error: "no room"}}
	for _, order := range [][]*inspect.Cluster{{aws, gcp}, {gcp, aws}} {
		wrong := view(t, order).Wrong
		want := []string{"service-not-in-order: service shop/web has errors: no room", "program-not-ready: gcp: 0 of 1 pods of x0 are ready (250 times)"}
		if diff := cmp.Diff(want, wrong); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
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
	go func() { seen <- view(t, []*inspect.Cluster{aws, gcp}) }()
	select {
	case v := <-seen:
		if down := v.Meshes[1].Counts.Down; down != rows*columns {
			t.Errorf("%d paths are down", down)
		}
	case <-time.After(5 * time.Minute): // It takes 12 s, and a minute with the race detector.
		t.Fatal("not done within the deadline")
	}
}
