package doctor

import (
	"slices"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/ctl/inspect/inspecttest"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

// TestRelay has faults of semaphore-relay, each of which has one cause.
func TestRelay(t *testing.T) {
	for name, c := range map[string]struct {
		ready  int32
		change func(*status.Relay)
		want   []string
	}{
		"well":            {2, nil, nil},
		"not running":     {0, nil, []string{"relay-not-running"}},
		"a pod not ready": {1, nil, []string{"relay-not-ready"}},
		"a remote is silent": {2, func(r *status.Relay) {
			r.Clusters[1].API.Error = "dial tcp 192.0.2.1:6443: connect: connection refused"
		}, []string{"api-away"}},
		"a write is refused": {2, func(r *status.Relay) {
			r.Clusters[1].Failing = map[string]string{"gcp.p0": "update gcp.p0: the server is currently unable to handle the request"}
		}, []string{"relay-objects-not-written"}},
		"another client reverts an object": {2, func(r *status.Relay) {
			r.Clusters[0].Overridden = []status.Override{{Object: "aws.p", By: "kubectl-edit"}}
		}, []string{"relay-objects-not-written"}},
		"a right is missing": {2, func(r *status.Relay) {
			r.Clusters[1].Failing = map[string]string{"gcp.p0": `update gcp.p0: wireguardpeers.semaphore.uw.io "gcp.p0" is forbidden: User "x" cannot update resource "wireguardpeers"`}
		}, []string{"own-api-failing"}},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := inspecttest.Pair(2)
			p := &patient{clusters[0], clusters[1]}
			p.install(inspect.Relay, c.ready)
			api := status.Connection{Synced: true, LastContact: &inspecttest.Now}
			report := &status.Relay{
				Cluster: "aws", Leading: true, Objects: api,
				Clusters: []status.RelayCluster{{Name: "aws", Local: true, API: api, Nodes: 2, Shards: 1}, {Name: "gcp", API: api, Nodes: 2, Shards: 1}},
			}
			if c.change != nil {
				c.change(report)
			}
			if c.ready > 0 {
				p.aws.Relays = []inspect.Reported[status.Relay]{{Fact: inspect.Fact[*status.Relay]{Value: report}}}
			}
			var got []string
			for _, cause := range diagnose(t, clusters, nil, false).Causes {
				got = append(got, cause.ID)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("causes %q, want %q", got, c.want)
			}
		})
	}
}
