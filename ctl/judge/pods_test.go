package judge

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

// tries returns the results of pods on the first node of each cluster, without faults.
func tries() *probe.Results {
	aws, gcp := probe.NodeRef{Cluster: "aws", Node: "aws-1"}, probe.NodeRef{Cluster: "gcp", Node: "gcp-1"}
	try := reach.Try{RTT: 1234, MTU: 1420, Carries: 1420}
	return &probe.Results{
		Connections: []probe.Connection{{From: aws, To: gcp, Address: "10.4.1.7", Try: try}, {From: gcp, To: aws, Address: "10.2.1.7", Try: try}},
		Requests: []probe.ServiceTest{
			{From: aws, Remote: "gcp", ServiceRequest: reach.ServiceRequest{Name: "web.shop.svc.cluster.gcp", Want: []string{"10.96.0.7"}, Addresses: []string{"10.96.0.7:80", "10.4.1.9:80"}}},
			{From: aws, Remote: "gcp", Fresh: true, To: gcp, ServiceRequest: reach.ServiceRequest{Addresses: []string{"10.96.9.9:8642"}}},
			{From: gcp, Remote: "gcp", ServiceRequest: reach.ServiceRequest{Addresses: []string{"10.4.1.9:80"}}},
		},
	}
}

func TestResultsOfPods(t *testing.T) {
	silent := func(f *probe.Results) {
		f.Connections[0].Try, f.Connections[1].Try = reach.Try{Error: "i/o timeout"}, reach.Try{Error: "i/o timeout"}
	}
	for name, tt := range map[string]struct {
		change  func(p *patient, f *probe.Results)
		want    string
		verdict string
	}{
		"all is well": {func(*patient, *probe.Results) {}, "", Well},
		"masqueraded": {func(_ *patient, f *probe.Results) { f.Connections[0].Seen = "10.2.1.1" }, "pods-masqueraded", Wrong},
		"masqueraded in one direction, and dropped in the other": {func(_ *patient, f *probe.Results) {
			silent(f)
			f.Connections[0].Try = reach.Try{Seen: "10.2.1.1", RTT: 1, MTU: 1420, Carries: 1420}
		}, "pods-masqueraded", Wrong},
		"dropped": {func(_ *patient, f *probe.Results) { silent(f) }, "pods-dropped", Wrong},
		"dropped over IPv4": {func(_ *patient, f *probe.Results) {
			six := f.Connections[0]
			silent(f)
			six.Address = "fd00:10:4:1::7"
			f.Connections = append(f.Connections, six)
			f.Requests[1].Result.Failed = map[string]string{"10.96.9.9:8642": "i/o timeout"}
		}, "pods-dropped", Wrong},
		"dropped in one direction": {func(_ *patient, f *probe.Results) {
			f.Connections[1].Try = reach.Try{Error: "i/o timeout"}
		}, "pods-dropped", Wrong},
		"datagrams are dropped": {func(_ *patient, f *probe.Results) {
			f.Connections[0].Try = reach.Try{Datagrams: "no answer to small datagrams"}
		}, "pods-dropped", Wrong},
		"full-size packets get lost": {func(_ *patient, f *probe.Results) { f.Connections[0].Carries = 1300 }, "pods-mtu", Wrong},
		"the path is down": {func(p *patient, f *probe.Results) {
			silent(f)
			down(p.path(0, 0), "one_way", 9)
			down(p.back(0, 0), "no_answer", 9)
		}, "udp-one-way", Wrong},
		"the path isn't known": {func(p *patient, f *probe.Results) {
			silent(f)
			p.path(0, 0).Path.State = "unknown"
		}, "pods-unreached", Wrong},
		"a stopped kube-proxy": {func(_ *patient, f *probe.Results) {
			f.Requests[1].Result.Failed = map[string]string{"10.96.9.9:8642": "i/o timeout"}
		}, "cluster-ip-unanswered", Wrong},
		"a flushed kube-proxy": {func(_ *patient, f *probe.Results) {
			f.Requests[0].Result = reach.ServiceResult{Name: "i/o timeout", DNS: "i/o timeout", Failed: map[string]string{"10.96.0.7:80": "i/o timeout"}}
			f.Requests[1].Result.Failed = map[string]string{"10.96.9.9:8642": "i/o timeout"}
		}, "cluster-ip-unanswered", Wrong},
		"DNS doesn't answer": {func(_ *patient, f *probe.Results) {
			f.Requests[0].Result = reach.ServiceResult{Name: "i/o timeout", DNS: "i/o timeout"}
		}, "dns-unanswered", Wrong},
		"a name that doesn't exist": {func(_ *patient, f *probe.Results) { f.Requests[0].Result = reach.ServiceResult{Name: "no such host"} }, "name-wrong", Wrong},
		"a name with another address": {func(_ *patient, f *probe.Results) {
			f.Requests[0].Result = reach.ServiceResult{Found: []string{"192.0.2.1"}}
		}, "name-wrong", Wrong},
		"a ClusterIP without an endpoint at its port": {func(_ *patient, f *probe.Results) {
			f.Requests[0].Addresses = []string{"10.96.0.7:80"}
			f.Requests[0].Result.Failed = map[string]string{"10.96.0.7:80": "connection refused"}
		}, "", Unknown},
		"a policy that denies": {func(_ *patient, f *probe.Results) {
			f.Requests[0].Result.Failed = map[string]string{"10.96.0.7:80": "i/o timeout", "10.4.1.9:80": "i/o timeout"}
		}, "service-denied", Wrong},
		"a policy that denies everyone": {func(_ *patient, f *probe.Results) {
			f.Requests[0].Result.Failed = map[string]string{"10.96.0.7:80": "i/o timeout", "10.4.1.9:80": "i/o timeout"}
			f.Requests[2].Result.Failed = map[string]string{"10.4.1.9:80": "i/o timeout"}
		}, "", Unknown},
		"a service behind a path that is down": {func(p *patient, f *probe.Results) {
			silent(f)
			down(p.path(0, 0), "one_way", 9)
			down(p.back(0, 0), "no_answer", 9)
			f.Requests[0].Result.Failed = map[string]string{"10.96.0.7:80": "i/o timeout", "10.4.1.9:80": "i/o timeout"}
			f.Requests[1].Result.Failed = map[string]string{"10.96.9.9:8642": "i/o timeout"}
		}, "udp-one-way", Wrong},
		"nothing listens": {func(_ *patient, f *probe.Results) {
			f.Requests[0].Result.Failed = map[string]string{"10.96.0.7:80": "connect: connection refused", "10.4.1.9:80": "connect: connection refused"}
			f.Requests[2].Result.Failed = map[string]string{"10.4.1.9:80": "connect: connection refused"}
		}, "endpoint-not-listening", Wrong},
		"the pods aren't admitted": {func(_ *patient, f *probe.Results) {
			f.Refused = probe.Refusals{f.Connections[1].From: `pods "x" is forbidden: ValidatingAdmissionPolicy 'no' with binding 'no' denied request: no`}
			f.Connections[0].Skipped, f.Connections[1].Skipped = "no pod runs", "no pod runs"
			f.Requests[1].Skipped, f.Requests[1].To = "no temporary Service could be created: no pod of gcp runs", probe.NodeRef{}
			f.Requests = f.Requests[:2]
		}, "test-pods-refused", Wrong},
		"the temporary Service isn't admitted": {func(_ *patient, f *probe.Results) {
			f.Refused = probe.Refusals{{Cluster: "aws"}: `services "x" is forbidden: exceeded quota: q`}
			f.Requests[1].Skipped = "no temporary Service could be created: exceeded quota: q"
		}, "test-pods-refused", Wrong},
		"a cluster that doesn't admit pods, and an agent that doesn't answer": {func(p *patient, f *probe.Results) {
			f.Refused = probe.Refusals{{Cluster: "aws", Node: "aws-1"}: `pods "x" is forbidden: violates PodSecurity "restricted:latest"`}
			f.Connections[0].Skipped, f.Connections[1].Skipped, f.Requests = "no pod runs", "no pod runs", nil
			p.aws.Agents[0].Value, p.aws.Agents[0].Err = nil, "exec: no"
		}, "test-pods-refused", Wrong},
		"an administrator who may not create pods": {func(_ *patient, f *probe.Results) {
			f.Refused = probe.Refusals{f.Connections[1].From: `pods is forbidden: User "x" cannot create resource "pods"`}
			f.Connections[0].Skipped, f.Connections[1].Skipped, f.Requests = "no pod runs", "no pod runs", nil
		}, "", Unknown},
		"services that weren't asked": {func(_ *patient, f *probe.Results) { f.Requests[0].Skipped = "too old" }, "", Unknown},
		"no temporary Service":        {func(_ *patient, f *probe.Results) { f.Requests[1].Skipped = "forbidden" }, "", Unknown},
		"no pod runs": {func(_ *patient, f *probe.Results) {
			f.Connections[0].Try, f.Connections[0].Skipped = reach.Try{}, "no pod runs"
		}, "", Unknown},
		"there are no pods": {func(_ *patient, f *probe.Results) { f.Connections, f.Requests = nil, nil }, "", Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			clusters, tried := inspecttest.Pair(2), tries()
			tt.change(&patient{clusters[0], clusters[1]}, tried)
			d := diagnose(t, clusters, tried, true)
			var ids []string
			for _, c := range d.Causes {
				ids = append(ids, c.ID)
			}
			if got := strings.Join(ids, " "); got != tt.want || d.Verdict != tt.verdict {
				t.Errorf("causes %q and %s, want %q and %s: %+v, %+v", got, d.Verdict, tt.want, tt.verdict, d.Causes, d.Unknown)
			}
			// A refused pod explains what it didn't find out, and nothing else.
			if silent := strings.HasSuffix(name, "doesn't answer") && tt.want != ""; tt.want == "test-pods-refused" && (len(d.Unknown) == 0) == silent {
				t.Errorf("unknown: %+v", d.Unknown)
			}
		})
	}
}

// Where packets end between two nodes is what their agents have counted meanwhile.
func TestWherePacketsEnd(t *testing.T) {
	const burst = 1_000_000
	type counts struct{ sent, received int64 } // of a direction, by its nodes
	for name, tt := range map[string]struct {
		there, back counts
		answers     bool // pods of gcp get answers from aws
		want        string
	}{
		"a chain of forwarded packets to the tunnel on the first": {counts{9_000, 8_000}, counts{burst, burst}, false, "on aws-1, before they enter the tunnel"},
		"one on the second":                {counts{burst, burst}, counts{9_000, 8_000}, false, "on gcp-1, before they enter the tunnel"},
		"addresses of another node":        {counts{burst, 8_000}, counts{burst, burst}, false, "by WireGuard on gcp-1: aws-1 gives them addresses that aren't those of its pods"},
		"new connections from the tunnel":  {counts{burst, burst}, counts{9_000, 8_000}, true, "on gcp-1, where they come out of the tunnel"},
		"all packets from the tunnel":      {counts{burst, burst}, counts{burst, burst}, false, "on aws-1 or gcp-1, where they come out of the tunnel"},
		"counters that were reset":         {counts{-5_000, burst}, counts{burst, burst}, false, "on aws-1, where they come out of the tunnel"},
		"counters that are hardly enough":  {counts{burst - 1, burst}, counts{burst - 1, burst}, false, "on one of these nodes"},
		"others that send in the meantime": {counts{burst / 3, burst / 3}, counts{9 * burst, 9 * burst}, false, "on aws-1, before they enter the tunnel"},
	} {
		t.Run(name, func(t *testing.T) {
			clusters, tried := inspecttest.Pair(2), tries()
			tried.Connections[0].Try = reach.Try{Error: "i/o timeout", Burst: burst}
			if !tt.answers {
				tried.Connections[1].Try = tried.Connections[0].Try
			}
			before, after := &patient{clusters[0], clusters[1]}, inspecttest.Pair(2)
			later := &patient{after[0], after[1]}
			for _, p := range []*patient{before, later} {
				for _, of := range []*statuspage.Peer{p.path(0, 0), p.back(0, 0)} {
					of.TxBytes, of.RxBytes = 50_000, 50_000
				}
			}
			later.path(0, 0).TxBytes += tt.there.sent
			later.back(0, 0).RxBytes += tt.there.received
			later.back(0, 0).TxBytes += tt.back.sent
			later.path(0, 0).RxBytes += tt.back.received
			for i, c := range clusters {
				c.Later = after[i].Acting()
			}
			d := diagnose(t, clusters, tried, true)
			if len(d.Causes) != 1 || d.Causes[0].ID != "pods-dropped" || !strings.HasSuffix(d.Causes[0].What, "packets between their pods are dropped "+tt.want) {
				t.Errorf("causes %+v, want packets to be dropped %s", d.Causes, tt.want)
			}
		})
	}
}

// Packets of temporary pods that the exit filter has dropped name the node.
func TestPacketsOfTestsAreStopped(t *testing.T) {
	clusters, tried := inspecttest.Pair(2), tries()
	tried.Connections[0].Try = reach.Try{Error: "i/o timeout", Burst: 1_000_000}
	after := inspecttest.Pair(2)
	n, now := uint64(1_000), after[0].Taken
	gcp := &after[0].Agents[0].Value.Remotes[0]
	gcp.Stopped, gcp.LastStopped, gcp.Stopping = &n, &now, true
	clusters[0].Later, clusters[1].Later = after[0].Acting(), after[1].Acting()
	if d := diagnose(t, clusters, tried, true); len(d.Causes) != 1 || d.Causes[0].ID != "foreign-rule" || d.Causes[0].Where.Node != "aws-1" {
		t.Errorf("causes %+v, want a foreign rule on aws-1", d.Causes)
	}
}

// TestAsks checks that a cluster's imports make pods of the origin request nothing but endpoints
// that the origin exports.
func TestAsks(t *testing.T) {
	clusters := inspecttest.Pair(1)
	p := &patient{clusters[0], clusters[1]}
	p.services("gcp", 2)
	web := &p.aws.Imports.Value[0]
	web.Sample = []netip.AddrPort{netip.MustParseAddrPort("10.4.1.9:80"), netip.MustParseAddrPort("10.0.0.1:443")}
	p.gcp.Exports.Value[0].Sample = web.Sample[:1]
	own := [2]string{"gcp", "gcp"}
	if got := Asks(clusters)[own]; len(got) != 1 || !slices.Equal(got[0].Addresses, []string{"10.4.1.9:80"}) {
		t.Errorf("pods of gcp request %+v", got)
	}
	p.gcp.Exports.Value = nil
	if got := Asks(clusters)[own]; len(got) > 0 {
		t.Errorf("without the export pods of gcp request %+v", got)
	}
}

// TestNotAsked lists what is left out because of settings, and without CoreDNS what only requests
// of pods have shown.
func TestNotAsked(t *testing.T) {
	clusters := inspecttest.Pair(2)
	p := &patient{clusters[0], clusters[1]}
	p.services("gcp", 2)
	p.aws.DNS.Value = nil
	p.aws.Imports.Value[0].Digest = "other" // Not a fault: its origin may be another one.
	p.aws.Settings.Value["SEMAPHORE_MIRROR_SELECTOR"], p.aws.Settings.Value["SEMAPHORE_GLOBAL_SELECTOR"] = "", inspect.GlobalSelector
	d := diagnose(t, clusters, tries(), true)
	var got []string
	for _, o := range d.NotAsked {
		got = append(got, o.What+": "+o.Why)
	}
	for _, want := range []string{
		"aws: whether its mirrors are those of their origins: SEMAPHORE_MIRROR_SELECTOR isn't the default, so which services it selects isn't known",
		"aws: the configuration of its DNS: " + noCoreDNS,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("no %q in %q", want, got)
		}
	}
	if d.Verdict != Well || strings.Contains(strings.Join(got, " "), "GLOBAL") {
		t.Errorf("%s: %+v, not asked %q", d.Verdict, d.Causes, got)
	}
}
