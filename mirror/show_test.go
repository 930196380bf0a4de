package mirror

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/reporttest"
)

// wellReport is a report in which nothing is wrong.
func wellReport() statuspage.Mirror {
	now := reporttest.Now
	up := statuspage.Connection{Synced: true, LastContact: &now}
	watches := func() []statuspage.Watch {
		return []statuspage.Watch{
			{Kind: "services to mirror", Connection: up},
			{Kind: "endpoint slices of services to mirror", Connection: up},
		}
	}
	return statuspage.Mirror{
		Version: "v1.2.3", Cluster: "gcp", Election: &statuspage.Election{Leader: "mirror-0"},
		Leading: true,
		Clusters: []statuspage.MirrorCluster{
			{Name: "aws", Prefix: "aws", Watches: watches(), Services: 2, Endpoints: 7},
			{Name: "gcp", Local: true, Watches: watches()},
		},
		Services: []statuspage.Service{
			{Name: "aws-sys-log-73736d-fluentd", Origin: "aws/sys-log/fluentd", Clusters: []string{"aws"}},
		},
		Rejected: []statuspage.RejectedOrigin{},
	}
}

func TestStatusForPeople(t *testing.T) {
	got := reporttest.Run(t, StatusCommand(), wellReport())
	const want = `semaphore-service-mirror v1.2.3
cluster gcp
this replica writes

CLUSTER  PREFIX  CONTACT  SYNCED  SERVICES  ENDPOINTS  REFUSED
aws      aws     0s ago   2 of 2  2         7          0
gcp      -       0s ago   2 of 2  0         0          0

all is well
`
	if diff := cmp.Diff(reporttest.Printed{Stdout: want}, got); diff != "" {
		t.Errorf("differs (-want +got):\n%s", diff)
	}
}

func TestStatusListsWhatStillUsesADrainedCluster(t *testing.T) {
	rep := wellReport()
	rep.Clusters[0].Drained = true
	rep.Services = append(rep.Services,
		statuspage.Service{Name: "gl-shop-73736d-web", Drained: []string{"aws"}, Needed: map[string][]string{"aws": {"IPv6 http", "IPv6 metrics"}}},
		statuspage.Service{Name: "gl-shop-73736d-api", Drained: []string{"aws"}, Needed: map[string][]string{"merit": {"IPv6"}}})
	got := reporttest.Run(t, StatusCommand(), rep)
	const want = "\ncluster aws is drained\nit is still used where no other cluster has a ready endpoint: gl-shop-73736d-web (IPv6 http, IPv6 metrics)\n"
	if got.Code != 0 || !strings.Contains(got.Stdout, want) {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}

func TestStatusOfAReplicaThatWaits(t *testing.T) {
	rep := wellReport()
	rep.Leading = false
	got := reporttest.Run(t, StatusCommand(), rep)
	if got.Code != 0 || !strings.Contains(got.Stdout, "\nreplica mirror-0 writes; this one stands by") {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}

func TestStatusOfAClusterThatIsNotHeard(t *testing.T) {
	rep := wellReport()
	before := reporttest.Now.Add(-time.Hour)
	rep.Clusters[0].Watches[0].LastContact = &before
	got := reporttest.Run(t, StatusCommand(), rep)
	if got.Code != 2 || !strings.HasSuffix(got.Stdout, "\nunknown:\n  cluster aws: services to mirror: last response of the API server: 1h0m ago\n") {
		t.Errorf("code %d, printed:\n%s", got.Code, got.Stdout)
	}
}

func TestStatusSaysWhatIsWrong(t *testing.T) {
	before, later := reporttest.Now.Add(-time.Hour), reporttest.Now.Add(time.Minute)
	for _, c := range []struct {
		name  string
		spoil func(*statuspage.Mirror)
		want  []string // what is wrong, a line each
		shown string   // something in a table
	}{
		{
			"no leader",
			func(rep *statuspage.Mirror) {
				rep.Leading, rep.Election = false, &statuspage.Election{Error: "forbidden"}
			},
			[]string{"no replica writes, as far as this one knows", "election: forbidden"}, "",
		},
		{
			"a cluster that is out of contact, by its worst watch",
			func(rep *statuspage.Mirror) {
				w := rep.Clusters[0].Watches
				w[0].LastContact, w[0].Error, w[0].Stale = &before, "connection refused", true
			},
			[]string{
				"cluster aws: services to mirror: connection refused",
				"cluster aws: services to mirror: no contact for longer than is allowed",
			},
			"aws      aws     1h0m ago  2 of 2",
		},
		{
			"a cluster that was never read",
			func(rep *statuspage.Mirror) {
				rep.Clusters[0].Watches[1] = statuspage.Watch{Kind: "endpoint slices"}
				rep.NotReady = "services of aws: not read\nand more"
			},
			[]string{"not ready: services of aws: not read; and more", "cluster aws: endpoint slices: not synced since start"},
			"aws      aws     never    1 of 2",
		},
		{
			"services that are not in order, and what is not copied",
			func(rep *statuspage.Mirror) {
				rep.Services = append(rep.Services, statuspage.Service{
					Name: "gl-a-73736d-b", Origin: "a/b", Error: "forbidden", Held: "aws not read",
					Conflicts: []statuspage.Conflict{{Cluster: "aws", What: "port \x1b[31m80"}},
					Refused:   map[string]string{"merit": "192.0.2.1", "aws": "127.0.0.1"}, Foreign: []string{"s-1", "s-2"},
				})
				rep.Rejected = []statuspage.RejectedOrigin{{Origin: "aws/a/external", Reason: "type ExternalName"}}
				rep.Omitted = 7
			},
			[]string{"services not in order: gl-a-73736d-b", "not copied: aws/a/external"},
			`SERVICE        ORIGIN  WHAT               DETAIL
gl-a-73736d-b  a/b     failing            forbidden
gl-a-73736d-b  a/b     held               aws not read
gl-a-73736d-b  a/b     conflict           aws: port \x1b[31m80
gl-a-73736d-b  a/b     endpoints refused  aws: 127.0.0.1
gl-a-73736d-b  a/b     endpoints refused  merit: 192.0.2.1
gl-a-73736d-b  a/b     foreign slices     s-1, s-2

NOT COPIED      REASON
aws/a/external  type ExternalName

7 more services are not listed
`,
		},
		{
			"clusters that were removed",
			func(rep *statuspage.Mirror) {
				rep.Former = []statuspage.FormerCluster{{Name: "merit", Services: 2, Slices: 3, RemovedAt: &later}, {Name: "old", Slices: 1}}
				rep.Departed = []string{"aws"}
			},
			[]string{
				"cluster merit is no longer configured: its objects (Services: 2, EndpointSlices: 3) are removed in 1m0s",
				"cluster old is no longer configured: its objects (Services: 0, EndpointSlices: 1) are removed now",
				"cluster aws is ignored: it is in SEMAPHORE_DEPARTED_REMOTES as well as in SEMAPHORE_REMOTES",
			}, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			rep := wellReport()
			c.spoil(&rep)
			reporttest.Finds(t, StatusCommand(), rep, c.want, c.shown)
		})
	}
}
