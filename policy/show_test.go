package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/reporttest"
)

// wellReport is a report in which nothing is wrong.
func wellReport() statuspage.Policy {
	now := reporttest.Now
	api := statuspage.Connection{Synced: true, LastContact: &now}
	return statuspage.Policy{
		Version: "v1.2.3", Cluster: "aws", Leading: true, Leader: "policy-0",
		CalicoAPI: "projectcalico.org/v3", Sets: api, Unconfigured: map[string]int{"old": 3},
		Remotes: []statuspage.PolicyRemote{{
			Name: "gcp", API: api, Pods: 4, Pending: 1,
			Sets: []statuspage.NetworkSet{
				{Object: "gcp-sys-log-forwarder", Namespace: "sys-log", Name: "forwarder", Addresses: 2},
				{Object: "gcp-shop-web", Namespace: "shop", Name: "web", Addresses: 1},
			},
			Skipped: map[string]statuspage.SkippedPods{string(ReasonFinished): {Pods: 1, Examples: []string{"shop/job-1"}}},
		}},
	}
}

func TestStatusForPeople(t *testing.T) {
	got := reporttest.Run(t, StatusCommand(), wellReport())
	const want = `semaphore-policy v1.2.3
cluster aws, Calico's API projectcalico.org/v3
this replica writes
3 sets are of cluster old, which is not configured: left alone

REMOTE  CONTACT  PODS  SETS  ADDRESSES  SKIPPED  WAITING  FAILING
gcp     0s ago   4     2     3          1        1        0

REMOTE  NAMESPACE  NAME       ADDRESSES  SET
gcp     sys-log    forwarder  2          gcp-sys-log-forwarder
gcp     shop       web        1          gcp-shop-web

REMOTE  SKIPPED PODS  REASON    EXAMPLES
gcp     1             finished  shop/job-1

all is well
`
	if diff := cmp.Diff(reporttest.Printed{Stdout: want}, got); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
}

func TestStatusOfAReplicaThatWaits(t *testing.T) {
	rep := wellReport()
	rep.Leading, rep.Leader = false, "policy-1"
	got := reporttest.Run(t, StatusCommand(), rep)
	if got.Code != 0 || !strings.Contains(got.Stdout, "\nreplica policy-1 writes; this one stands by") {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}

func TestStatusSaysWhenSetsOfAnUnconfiguredClusterGo(t *testing.T) {
	rep := wellReport()
	rep.RemovedAt = map[string]time.Time{"old": reporttest.Now.Add(-time.Second)}
	got := reporttest.Run(t, StatusCommand(), rep)
	if got.Code != 1 || !strings.Contains(got.Stdout, "\n  3 sets are of cluster old, which is not configured: removed in 0s\n") {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}

func TestStatusOfPoolsThatMayNotBeRead(t *testing.T) {
	rep := wellReport()
	rep.Pools.Unknown = "forbidden"
	got := reporttest.Run(t, StatusCommand(), rep)
	if got.Code != 0 || !strings.Contains(got.Stdout, "\nCalico's IP pools for remote subnets: unknown: forbidden\n") {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}

func TestStatusOfARemoteThatIsNotHeard(t *testing.T) {
	rep := wellReport()
	before := reporttest.Now.Add(-time.Hour)
	rep.Remotes[0].API.LastContact = &before
	got := reporttest.Run(t, StatusCommand(), rep)
	if got.Code != 2 || !strings.HasSuffix(got.Stdout, "\nunknown:\n  remote gcp: pods: last response of the API server: 1h0m ago\n") {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}

func TestStatusSaysWhatIsWrong(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*statuspage.Policy)
		want  []string // what is wrong, a line each
		shown string   // something in a table
	}{
		{
			"no leader",
			func(rep *statuspage.Policy) { rep.Leading, rep.Leader, rep.ElectionError = false, "", "forbidden" },
			[]string{"no replica writes, as far as this one knows", "election: forbidden"}, "",
		},
		{
			"Calico is not there, and neither is a remote",
			func(rep *statuspage.Policy) {
				rep.CalicoAPI = ""
				rep.Sets = statuspage.Connection{Error: "Calico is not installed"}
				rep.Remotes[0].API, rep.Remotes[0].Stale = statuspage.Connection{}, true
			},
			[]string{
				"network sets: Calico is not installed", "remote gcp: pods: not synced since start",
				"remote gcp: its sets are empty, because it has been out of contact for too long",
			},
			"gcp     never ",
		},
		{
			"pods that are skipped for a reason",
			func(rep *statuspage.Policy) {
				rep.Remotes[0].Skipped[string(ReasonOutside)] = statuspage.SkippedPods{Pods: 2, Examples: []string{"a/b\x1b[2J", "c/d"}}
			},
			[]string{"remote gcp: 2 pods are skipped: outside_pod_subnets"},
			`gcp     2             outside_pod_subnets  a/b\x1b[2J, c/d`,
		},
		{
			"IP pools that let packets out",
			func(rep *statuspage.Policy) {
				rep.Pools.Faults = map[string][]string{"gcp": {"the IP pool x lacks disableBGPExport: true"}}
			},
			[]string{"remote gcp: the IP pool x lacks disableBGPExport: true"}, "",
		},
		{
			"sets that can't be written",
			func(rep *statuspage.Policy) {
				rep.Remotes[0].Failing = map[string]string{"gcp-shop-web": "forbidden"}
			},
			[]string{"remote gcp: sets can't be written: gcp-shop-web"},
			"REMOTE  FAILING SET   ERROR\ngcp     gcp-shop-web  forbidden\n",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rep := wellReport()
			c.spoil(&rep)
			reporttest.Finds(t, StatusCommand(), rep, c.want, c.shown)
		})
	}
}
