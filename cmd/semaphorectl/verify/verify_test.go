package verify

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// well are two clusters, and what their pods find where all is well.
func well() ([]cluster, *probe.Tried) {
	aws, gcp := probe.Place{Cluster: "aws", Node: "aws-1"}, probe.Place{Cluster: "gcp", Node: "gcp-1"}
	try := reach.Try{RTT: 1234, MTU: 1420, Carries: 1420}
	const web = "web.shop.svc.cluster.gcp"
	return []cluster{
			{name: "aws", nodes: 1, mirror: true, addresses: map[string]string{web: "10.96.0.7"}, named: map[string]int{"gcp": 1}},
			{name: "gcp", nodes: 1},
		}, &probe.Tried{
			Legs: []probe.Leg{
				{From: aws, To: gcp, Address: "10.4.1.7", Try: try},
				{From: gcp, To: aws, Address: "10.2.1.7", Try: try},
			},
			Names:   []probe.Name{{From: aws, Remote: "gcp", Name: web, Found: reach.Name{Addresses: []string{"10.96.0.7"}}}},
			Streams: []probe.Stream{{From: aws, To: gcp, Stream: reach.Stream{Rate: 5e8}}},
		}
}

func TestJudge(t *testing.T) {
	for title, tt := range map[string]struct {
		change func(c []cluster, tried *probe.Tried)
		skip   []string
		want   State
		says   string // of what isn't right
	}{
		"all is well":      {want: Right},
		"no answer":        {change: func(_ []cluster, f *probe.Tried) { f.Legs[0].Try = reach.Try{Error: "i/o timeout"} }, want: Wrong, says: "aws/aws-1 answer wrong: i/o timeout"},
		"masqueraded":      {change: func(_ []cluster, f *probe.Tried) { f.Legs[1].Seen = "10.4.1.1" }, want: Wrong, says: "gcp/gcp-1 source address wrong: 10.4.1.1: it is masqueraded"},
		"a black hole":     {change: func(_ []cluster, f *probe.Tried) { f.Legs[0].Carries = 1333 }, want: Wrong, says: "aws/aws-1 full-size packets wrong: 1333 at most; larger ones get lost without a word"},
		"no datagrams":     {change: func(_ []cluster, f *probe.Tried) { f.Legs[0].Datagrams = "no answer" }, want: Wrong, says: "aws/aws-1 full-size packets wrong: no answer"},
		"nothing measured": {change: func(_ []cluster, f *probe.Tried) { f.Legs[0].Try = reach.Try{} }, want: Wrong, says: "aws/aws-1 full-size packets wrong: they do"},
		"a pod that doesn't run": {
			change: func(_ []cluster, f *probe.Tried) { f.Legs[0].Untried = "no pod runs" }, want: Unknown, says: "aws/aws-1 answer not known: no pod runs",
		},
		"something wrong, and something not known": {
			change: func(_ []cluster, f *probe.Tried) { f.Legs[0].Untried, f.Legs[1].Seen = "no pod runs", "10.4.1.1" },
			want:   Wrong, says: "aws/aws-1 answer not known: no pod runs; gcp/gcp-1 source address wrong: 10.4.1.1: it is masqueraded",
		},
		"a cluster without nodes":   {change: func(c []cluster, _ *probe.Tried) { c[1].nodes = 0 }, want: Unknown, says: "gcp answer not known: no node is ready"},
		"no pods at all":            {change: func(_ []cluster, f *probe.Tried) { *f = probe.Tried{} }, skip: []string{throughput, name}, want: Unknown},
		"a stream that breaks":      {change: func(_ []cluster, f *probe.Tried) { f.Streams[0].Stream = reach.Stream{Error: "reset"} }, want: Wrong, says: "aws/aws-1 throughput wrong: reset"},
		"no stream":                 {change: func(_ []cluster, f *probe.Tried) { f.Streams = nil }, want: Unknown, says: " throughput not known: no pair of pods was there for it"},
		"no stream wanted":          {change: func(_ []cluster, f *probe.Tried) { f.Streams = nil }, skip: []string{throughput}, want: Right},
		"a name that nobody knows":  {change: func(_ []cluster, f *probe.Tried) { f.Names[0].Found = reach.Name{Error: "no such host"} }, want: Wrong, says: "aws/aws-1 name wrong: no such host"},
		"another address of a name": {change: func(_ []cluster, f *probe.Tried) { f.Names[0].Found.Addresses[0] = "192.0.2.1" }, want: Wrong, says: "aws/aws-1 name wrong: 192.0.2.1"},
		"a name that wasn't tried":  {change: func(_ []cluster, f *probe.Tried) { f.Names[0].Untried = "no pod" }, want: Unknown, says: "aws/aws-1 name not known: no pod"},
		"names that weren't tried":  {change: func(_ []cluster, f *probe.Tried) { f.Names = nil }, want: Unknown, says: "aws name not known: no pod was there for it"},
		"mirrors that can't be listed": {
			change: func(c []cluster, _ *probe.Tried) { c[0].unlisted = "forbidden" }, want: Unknown, says: "aws name not known: forbidden",
		},
		"a mirror without services": {change: func(c []cluster, f *probe.Tried) { c[0].named, f.Names = nil, nil }, want: Right},
		"policies that could be tried": {
			change: func(c []cluster, _ *probe.Tried) { c[0].calico, c[0].sets = true, true }, want: Unknown,
			says: "aws network policy not known: verify makes no network policies; try one of docs/policy.md, or --skip policy",
		},
		"policies that nobody wants tried": {change: func(c []cluster, _ *probe.Tried) { c[0].calico, c[0].sets = true, true }, skip: []string{policy}, want: Right},
		"a cluster that can't be read": {
			change: func(c []cluster, _ *probe.Tried) { c[1] = cluster{name: "gcp", unread: "refused"} }, want: Unknown,
			says: "gcp answer not known: refused; gcp name not known: refused; gcp network policy not known: refused",
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
				if row.State != Right && row.State != Untried {
					says = append(says, row.From+" "+row.What+" "+string(row.State)+": "+row.Found)
				}
				if row.Found == "" || row.What == "" {
					t.Errorf("a row says nothing: %+v", row)
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
	tried.Legs[0].Try = reach.Try{Error: "no \x1b[2J answer"}
	var table, object strings.Builder
	r := judge(clusters, tried, nil)
	if err := r.print(&table, ""); err != nil {
		t.Fatal(err)
	}
	if err := r.print(&object, "json"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"gcp/gcp-1 10.4.1.7", "✗ wrong: no \\x1b[2J answer", "✓ 1.2 ms", "✓ 500 Mbit/s", "- not tried: there is no Calico", "1420 bytes get through"} {
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
