package doctor

import (
	"strings"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/probe"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/survey/surveytest"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// tries returns the results of pods on the first node of each cluster, without faults.
func tries() *probe.Tried {
	aws, gcp := probe.NodeRef{Cluster: "aws", Node: "aws-1"}, probe.NodeRef{Cluster: "gcp", Node: "gcp-1"}
	try := reach.Try{RTT: 1234, MTU: 1420, Carries: 1420}
	return &probe.Tried{Legs: []probe.Leg{{From: aws, To: gcp, Address: "10.4.1.7", Try: try}, {From: gcp, To: aws, Address: "10.2.1.7", Try: try}}}
}

func TestResultsOfPods(t *testing.T) {
	silent := func(f *probe.Tried) {
		f.Legs[0].Try, f.Legs[1].Try = reach.Try{Error: "i/o timeout"}, reach.Try{Error: "i/o timeout"}
	}
	for name, tt := range map[string]struct {
		change  func(p *patient, f *probe.Tried)
		want    string
		verdict string
	}{
		"all is well": {func(*patient, *probe.Tried) {}, "", Well},
		"masqueraded": {func(_ *patient, f *probe.Tried) { f.Legs[0].Seen = "10.2.1.1" }, "pods-masqueraded", Wrong},
		"masqueraded in one direction, and dropped in the other": {func(_ *patient, f *probe.Tried) {
			silent(f)
			f.Legs[0].Try = reach.Try{Seen: "10.2.1.1", RTT: 1, MTU: 1420, Carries: 1420}
		}, "pods-masqueraded", Wrong},
		"dropped": {func(_ *patient, f *probe.Tried) { silent(f) }, "pods-dropped", Wrong},
		"dropped in one direction": {func(_ *patient, f *probe.Tried) {
			f.Legs[1].Try = reach.Try{Error: "i/o timeout"}
		}, "pods-dropped", Wrong},
		"datagrams are dropped": {func(_ *patient, f *probe.Tried) {
			f.Legs[0].Try = reach.Try{Datagrams: "no answer to small datagrams"}
		}, "pods-dropped", Wrong},
		"full-size packets get lost": {func(_ *patient, f *probe.Tried) { f.Legs[0].Carries = 1300 }, "pods-mtu", Wrong},
		"the path is down": {func(p *patient, f *probe.Tried) {
			silent(f)
			down(p.path(0, 0), "one_way", 9)
			down(p.back(0, 0), "no_answer", 9)
		}, "udp-one-way", Wrong},
		"the path isn't known": {func(p *patient, f *probe.Tried) {
			silent(f)
			p.path(0, 0).Path.State = "unknown"
		}, "pods-unreached", Wrong},
		"no pod runs":       {func(_ *patient, f *probe.Tried) { f.Legs[0].Try, f.Legs[0].Untried = reach.Try{}, "no pod runs" }, "", Unknown},
		"there are no pods": {func(_ *patient, f *probe.Tried) { f.Legs = nil }, "", Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			clusters, tried := surveytest.Pair(2), tries()
			tt.change(&patient{clusters[0], clusters[1]}, tried)
			d := diagnose(t, clusters, tried, true)
			var ids []string
			for _, c := range d.Causes {
				ids = append(ids, c.ID)
			}
			if got := strings.Join(ids, " "); got != tt.want || d.Verdict != tt.verdict {
				t.Errorf("causes %q and %s, want %q and %s: %+v, %+v", got, d.Verdict, tt.want, tt.verdict, d.Causes, d.Unknown)
			}
		})
	}
}
