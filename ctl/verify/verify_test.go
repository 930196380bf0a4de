package verify

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// well returns two clusters and the results of their pods, without faults.
func well() ([]cluster, *probe.Results) {
	aws, gcp := probe.NodeRef{Cluster: "aws", Node: "aws-1"}, probe.NodeRef{Cluster: "gcp", Node: "gcp-1"}
	try := reach.Try{RTT: 1234, MTU: 1420, Carries: 1420}
	named := reach.ServiceRequest{Name: "web.shop.svc.cluster.gcp", Want: []string{"10.96.0.7"}}
	return []cluster{
			{name: "aws", nodes: 1, mirror: true, state: Skipped, unguarded: "Calico isn't installed", names: map[string][]reach.ServiceRequest{"gcp": {named}}},
			{name: "gcp", nodes: 1, state: Skipped, unguarded: "Calico isn't installed"},
		}, &probe.Results{
			Connections: []probe.Connection{
				{From: aws, To: gcp, Address: "10.4.1.7", Try: try},
				{From: gcp, To: aws, Address: "10.2.1.7", Try: try},
			},
			Requests: []probe.ServiceTest{{From: aws, Remote: "gcp", ServiceRequest: named}},
			Streams:  []probe.Stream{{From: aws, To: gcp, Stream: reach.Stream{Rate: 5e8}}},
		}
}

var denied = reach.Try{Error: "i/o timeout"}

// guarding adds a guarded pod in aws with the results of gcp's pods; without connections they are
// as expected.
func guarding(found probe.Guarded) func([]cluster, *probe.Results) {
	return func(c []cluster, tried *probe.Results) {
		c[0].guard = &probe.Guard{Remotes: []string{"gcp"}}
		found.From, found.To = probe.NodeRef{Cluster: "gcp", Node: "gcp-1"}, "aws"
		if found.Connections == nil && found.Skipped == "" {
			found.Connections = []probe.GuardedConnection{{Unlabelled: denied}}
		}
		tried.Guarded = []probe.Guarded{found}
	}
}

// virtual are virtual subnets of gcp.
var virtual = config.SubnetMap{{Real: netip.MustParsePrefix("10.0.0.0/16"), Virtual: netip.MustParsePrefix("100.78.0.0/16")}}

func TestJudge(t *testing.T) {
	for title, tt := range map[string]struct {
		change func(c []cluster, tried *probe.Results)
		skip   []string
		want   State
		says   string // rows that aren't right
	}{
		"all is well": {want: Right},
		"no answer":   {change: func(_ []cluster, f *probe.Results) { f.Connections[0].Try = reach.Try{Error: "i/o timeout"} }, want: Wrong, says: "aws/aws-1 answer wrong: i/o timeout"},
		"masqueraded": {change: func(_ []cluster, f *probe.Results) { f.Connections[1].Seen = "10.4.1.1" }, want: Wrong, says: "gcp/gcp-1 source address wrong: 10.4.1.1: it is masqueraded"},
		"another NAT": {
			change: func(c []cluster, f *probe.Results) { c[1].subnets, f.Connections[1].Seen = virtual, "10.4.1.1" }, want: Wrong, says: "gcp/gcp-1 source address wrong: 10.4.1.1: it is masqueraded",
		},
		"not translated": {
			change: func(c []cluster, f *probe.Results) { c[1].subnets, f.Connections[1].Seen = virtual, "10.0.1.7" }, want: Wrong, says: "gcp/gcp-1 source address wrong: 10.0.1.7: it is the real one, gcp-1 doesn't translate",
		},
		"a black hole":     {change: func(_ []cluster, f *probe.Results) { f.Connections[0].Carries = 1333 }, want: Wrong, says: "aws/aws-1 full-size packets wrong: 1333 at most; larger ones are lost silently"},
		"no datagrams":     {change: func(_ []cluster, f *probe.Results) { f.Connections[0].Datagrams = "no answer" }, want: Wrong, says: "aws/aws-1 full-size packets wrong: no answer"},
		"nothing measured": {change: func(_ []cluster, f *probe.Results) { f.Connections[0].Try = reach.Try{} }, want: Wrong, says: "aws/aws-1 full-size packets wrong: they do"},
		"a pod that doesn't run": {
			change: func(_ []cluster, f *probe.Results) { f.Connections[0].Skipped = "no pod runs" }, want: Unknown, says: "aws/aws-1 answer not known: no pod runs",
		},
		"something wrong, and something not known": {
			change: func(_ []cluster, f *probe.Results) {
				f.Connections[0].Skipped, f.Connections[1].Seen = "no pod runs", "10.4.1.1"
			},
			want: Wrong, says: "aws/aws-1 answer not known: no pod runs; gcp/gcp-1 source address wrong: 10.4.1.1: it is masqueraded",
		},
		"a cluster without nodes":   {change: func(c []cluster, _ *probe.Results) { c[1].nodes = 0 }, want: Unknown, says: "gcp answer not known: no node is ready"},
		"no pods at all":            {change: func(_ []cluster, f *probe.Results) { *f = probe.Results{} }, skip: []string{throughput, name}, want: Unknown},
		"a stream that breaks":      {change: func(_ []cluster, f *probe.Results) { f.Streams[0].Stream = reach.Stream{Error: "reset"} }, want: Wrong, says: "aws/aws-1 throughput wrong: reset"},
		"no stream":                 {change: func(_ []cluster, f *probe.Results) { f.Streams = nil }, want: Unknown, says: " throughput not known: no pair of pods ran"},
		"no stream wanted":          {change: func(_ []cluster, f *probe.Results) { f.Streams = nil }, skip: []string{throughput}, want: Right},
		"an unknown name":           {change: func(_ []cluster, f *probe.Results) { f.Requests[0].Result.Name = "no such host" }, want: Wrong, says: "aws/aws-1 name wrong: no such host"},
		"another address of a name": {change: func(_ []cluster, f *probe.Results) { f.Requests[0].Result.Found = []string{"192.0.2.1"} }, want: Wrong, says: "aws/aws-1 name wrong: 192.0.2.1"},
		"a name that wasn't tried":  {change: func(_ []cluster, f *probe.Results) { f.Requests[0].Skipped = "no pod" }, want: Unknown, says: "aws/aws-1 name not known: no pod"},
		"names that weren't tried":  {change: func(_ []cluster, f *probe.Results) { f.Requests = nil }, want: Unknown, says: "aws name not known: no pod ran"},
		"mirrors that can't be listed": {
			change: func(c []cluster, _ *probe.Results) { c[0].unlisted = "forbidden" }, want: Unknown, says: "aws name not known: forbidden",
		},
		"a mirror without services": {change: func(c []cluster, f *probe.Results) { c[0].names, f.Requests = nil, nil }, want: Right},
		"a policy that is enforced": {change: guarding(probe.Guarded{}), want: Right},
		"a policy that isn't": {
			change: guarding(probe.Guarded{Connections: []probe.GuardedConnection{{To: probe.NodeRef{Cluster: "aws", Node: "aws-1"}}}}), want: Wrong,
			says: "gcp/gcp-1 network policy wrong: admitted: the policy isn't enforced on aws-1 (without Felix, or with another network plugin), or an earlier policy admits the pod; " +
				"gcp/gcp-1 network policy not known: all pods are",
		},
		"an empty set": {
			change: guarding(probe.Guarded{Set: "not within 20s", Connections: []probe.GuardedConnection{{Unlabelled: denied, Unknown: "its address is in no network set"}}}), want: Wrong,
			says: "gcp/gcp-1 network set wrong: not within 20s: semaphore-policy of aws doesn't run, can't reach gcp, or lacks rights; find out with semaphorectl doctor; " +
				"gcp/gcp-1 network policy not known: its address is in no network set",
		},
		"a set that can't be read": {
			change: guarding(probe.Guarded{Unlisted: "refused", Connections: []probe.GuardedConnection{{Unlabelled: denied, Unknown: "the pod with the label failed: refused"}}}), want: Unknown,
			says: "gcp/gcp-1 network set not known: refused; gcp/gcp-1 network policy not known: the pod with the label failed: refused",
		},
		"a set that doesn't let in": {
			change: guarding(probe.Guarded{Connections: []probe.GuardedConnection{{Unlabelled: denied, Labelled: denied}}}), want: Wrong,
			says: "gcp/gcp-1 network policy wrong: i/o timeout, though its address is in a network set",
		},
		"a policy that can't be created": {
			change: guarding(probe.Guarded{Skipped: "forbidden"}), want: Unknown, says: "gcp network policy not known: forbidden",
		},
		"policies without pods": {
			change: func(c []cluster, _ *probe.Results) { c[0].guard = &probe.Guard{Remotes: []string{"gcp"}} },
			want:   Unknown, says: "gcp network policy not known: no pod ran",
		},
		"policies without this remote": {change: func(c []cluster, _ *probe.Results) { c[0].guard = &probe.Guard{} }, want: Right},
		"rights that are missing": {
			change: func(c []cluster, _ *probe.Results) {
				c[0].state, c[0].unguarded = Unknown, "the context aws may not create networkpolicies"
			}, want: Unknown,
			says: " network policy not known: the context aws may not create networkpolicies",
		},
		"policies that are skipped": {
			change: func(c []cluster, _ *probe.Results) { c[0].guard = &probe.Guard{Remotes: []string{"gcp"}} }, skip: []string{policy}, want: Right,
		},
		"a cluster that can't be read": {
			change: func(c []cluster, _ *probe.Results) {
				c[1] = cluster{name: "gcp", unread: "refused", state: Unknown, unguarded: "refused"}
			}, want: Unknown,
			says: "gcp answer not known: refused; gcp name not known: refused;  network policy not known: refused",
		},
	} {
		t.Run(title, func(t *testing.T) {
			clusters, tried := well()
			if tt.change != nil {
				tt.change(clusters, tried)
			}
			r := judge(clusters, tried, tt.skip)
			var says []string
			for _, row := range r.Rows {
				if row.State != Right && row.State != Skipped {
					says = append(says, row.From+" "+row.What+" "+string(row.State)+": "+row.Found)
				}
				if row.Found == "" || row.What == "" {
					t.Errorf("a row without a result: %+v", row)
				}
			}
			if diff := cmp.Diff(tt.says, strings.Join(says, "; ")); diff != "" || r.Verdict != tt.want {
				t.Errorf("the verdict is %s, want %s (-want +got):\n%s", r.Verdict, tt.want, diff)
			}
		})
	}
}

func TestPrinted(t *testing.T) {
	clusters, tried := well()
	tried.Connections[0].Try = reach.Try{Error: "no \x1b[2J answer"}
	var table, object strings.Builder
	r := judge(clusters, tried, nil)
	if err := r.print(&table, ""); err != nil {
		t.Fatal(err)
	}
	if err := r.print(&object, "json"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gcp/gcp-1 10.4.1.7", "✗ wrong: no \\x1b[2J answer", "✓ 1.2 ms", "✓ 500 Mbit/s", "- not tried: Calico isn't installed", "1420 bytes get through"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in:\n%s", want, table.String())
		}
	}
	if !strings.Contains(object.String(), `"verdict": "wrong"`) || strings.Contains(object.String(), "\x1b") {
		t.Errorf("JSON:\n%s", object.String())
	}
}

func TestArguments(t *testing.T) {
	for _, tt := range []struct {
		output string
		skip   []string
		nodes  int
		right  bool
	}{
		{"", nil, 3, true},
		{"json", []string{"policy", "name", "throughput"}, 10, true},
		{"yaml", nil, 3, false},
		{"", []string{"answer"}, 3, false},
		{"", nil, 0, false},
		{"", nil, 11, false},
	} {
		if err := check(tt.output, tt.skip, tt.nodes); (err == nil) != tt.right {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// TestStreamsAndNodes checks the flags of streams and nodes.
func TestStreamsAndNodes(t *testing.T) {
	for _, tt := range []struct {
		duration time.Duration
		streams  int
		on       []string
		want     string // of the error; empty: none
	}{
		{30 * time.Second, 4, []string{"aws/aws-1", "gcp/gcp-2"}, ""},
		{51 * time.Second, 1, nil, "--duration 51s: 1s to 50s"},
		{1500 * time.Millisecond, 1, nil, "--duration 1.5s"},
		{time.Second, 17, nil, "--streams 17: 1 to 16"},
		{time.Second, 1, []string{"merit/merit-1"}, "--on merit/merit-1: expected a cluster of the arguments"},
		{time.Second, 1, []string{"aws"}, "--on aws: expected"},
		{time.Second, 1, []string{"aws/-x"}, "--on aws/-x: expected"},
	} {
		plan := probe.Plan{Streams: tt.streams}
		err := errors.Join(stream(&plan, tt.duration), nodes(&plan, tt.on, []string{"aws", "gcp"}))
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
	f := &inspect.Cluster{Name: "aws"}
	f.Nodes.Value = []inspect.Node{{Name: "aws-1", Ready: "True"}, {Name: "aws-2", Ready: "False"}}
	if err := missing("aws", []string{"aws-1"}, f); err != nil {
		t.Error(err)
	}
	if err := missing("aws", []string{"aws-2"}, f); err == nil || !strings.Contains(err.Error(), "--on aws/aws-2") {
		t.Error(err)
	}
}
