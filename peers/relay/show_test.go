package relay

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/reporttest"
)

func wellReport() statuspage.Relay {
	now := reporttest.Now
	api := statuspage.Connection{Synced: true, LastContact: &now}
	return statuspage.Relay{
		Version: "v1.2.3", Cluster: "aws", Leading: true, Leader: "relay-0", Objects: api, Unconfigured: []string{"old"},
		Clusters: []statuspage.RelayCluster{{Name: "aws", Local: true, API: api, Nodes: 40, Objects: 40}, {Name: "gcp", API: api, Nodes: 17, Objects: 16, Pending: 1}},
	}
}

func TestStatusForPeople(t *testing.T) {
	got := reporttest.Run(t, StatusCommand(), wellReport())
	const want = `semaphore-relay v1.2.3
cluster aws
this replica writes
objects of cluster old, which is not configured, are removed

CLUSTER  CONTACT  NODES  OBJECTS  WAITING  FAILING
aws      0s ago   40     40       0        0
gcp      0s ago   17     16       1        0

all is well
`
	if diff := cmp.Diff(reporttest.Printed{Stdout: want}, got); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
}

func TestStatusOfFaults(t *testing.T) {
	rep := wellReport()
	gcp := &rep.Clusters[1]
	gcp.Incomplete, gcp.Failing = "1 of 17 nodes are missing", map[string]string{"gcp.n0": "update gcp.n0: forbidden"}
	gcp.Overridden = []statuspage.Override{{Object: "gcp.n1", Since: reporttest.Now, Next: reporttest.Now.Add(time.Minute)}}
	got := reporttest.Run(t, StatusCommand(), rep)
	const want = `semaphore-relay v1.2.3
cluster aws
this replica writes
objects of cluster old, which is not configured, are removed

CLUSTER  CONTACT  NODES  OBJECTS  WAITING  FAILING
aws      0s ago   40     40       0        0
gcp      0s ago   17     16       1        1

FAILING OBJECT  ERROR
gcp.n0          update gcp.n0: forbidden

`
	if diff := cmp.Diff(want, got.Stdout[:min(len(got.Stdout), len(want))]); diff != "" || got.Code != 1 {
		t.Errorf("code %d, differs (-want +got):\n%s\n%s", got.Code, diff, got.Stdout)
	}
}
