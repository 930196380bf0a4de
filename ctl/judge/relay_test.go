package judge

import (
	"slices"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/inspecttest"
)

// TestRelay has faults of semaphore-relay, each of which has one cause.
func TestRelay(t *testing.T) {
	for name, c := range map[string]struct {
		ready  int32
		change func(*statuspage.Relay)
		want   []string
	}{
		"well":            {2, nil, nil},
		"not running":     {0, nil, []string{"relay-not-running"}},
		"a pod not ready": {1, nil, []string{"relay-not-ready"}},
		"a remote is silent": {2, func(r *statuspage.Relay) {
			r.Clusters[1].API.Reason, r.Clusters[1].API.Error = kube.Away, "dial tcp 192.0.2.1:6443: connect: connection refused"
		}, []string{"api-away"}},
		"a write is refused": {2, func(r *statuspage.Relay) {
			r.Clusters[1].Failing = map[string]string{"gcp.n0": "update gcp.n0: the server is currently unable to handle the request"}
		}, []string{"relay-objects-not-written"}},
		"another client reverts an object": {2, func(r *statuspage.Relay) {
			r.Clusters[0].Overridden = []statuspage.Override{{Object: "aws.n0"}}
		}, []string{"relay-objects-not-written"}},
		"objects are incomplete": {2, func(r *statuspage.Relay) { r.Clusters[1].Incomplete = "2 of 3 objects" }, []string{"relay-incomplete"}},
		"an admission controller refuses an object": {2, func(r *statuspage.Relay) {
			r.Clusters[0].Failing = map[string]string{"aws.n0": `update aws.n0: admission webhook "x" denied the request: no`}
		}, []string{"admission-refuses"}},
		"a right is missing": {2, func(r *statuspage.Relay) {
			r.Clusters[1].Failing = map[string]string{"gcp.n0": `update gcp.n0: wireguardpeers.semaphore.uw.io "gcp.n0" is forbidden: User "x" cannot update resource "wireguardpeers"`}
		}, []string{"own-api-failing"}},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := inspecttest.Pair(2)
			p := &patient{clusters[0], clusters[1]}
			p.install(inspect.Relay, c.ready)
			api := statuspage.Connection{Synced: true, LastContact: &inspecttest.Now}
			report := &statuspage.Relay{
				Cluster: "aws", Leading: true, Objects: api,
				Clusters: []statuspage.RelayCluster{{Name: "aws", Local: true, API: api, Nodes: 2, Objects: 2}, {Name: "gcp", API: api, Nodes: 2, Objects: 2}},
			}
			if c.change != nil {
				c.change(report)
			}
			if c.ready > 0 {
				p.aws.Relays = []inspect.Reported[statuspage.Relay]{{Fact: inspect.Fact[*statuspage.Relay]{Value: report}}}
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

// TestAgentsOfARelay has agents that read the objects of semaphore-relay: a relay
// that is gone, a remote that is silent, and an agent that is behind have causes of their own.
func TestAgentsOfARelay(t *testing.T) {
	late := func(of string) func(*inspect.Cluster) {
		return func(c *inspect.Cluster) {
			for i := range c.Agents {
				contact := c.Agents[i].Value.Relay[of]
				contact.Late = true
				c.Agents[i].Value.Relay[of] = contact
			}
		}
	}
	for name, c := range map[string]struct {
		ready  int32 // pods of the relay; -1: it isn't installed
		change func(*inspect.Cluster)
		want   []string
		unsure bool
	}{
		"well":                   {2, nil, nil, false},
		"the relay isn't there":  {-1, late("aws"), []string{"relay-not-running"}, false},
		"the relay doesn't run":  {0, late("aws"), []string{"relay-not-running"}, false},
		"the relay hangs":        {2, late("aws"), []string{"relay-silent"}, false},
		"the remote is silent":   {2, late("gcp"), []string{"relay-silent"}, false},
		"both, and it names one": {2, func(c *inspect.Cluster) { late("aws")(c); late("gcp")(c) }, []string{"relay-silent"}, false},
		"an agent is behind": {2, func(c *inspect.Cluster) {
			c.Agents[1].Value.Relay["gcp"] = statuspage.RelayContact{Revision: "99"}
		}, []string{"agent-behind"}, false},
		"an agent has read nothing": {2, func(c *inspect.Cluster) {
			c.Agents[1].Value.Relay["gcp"] = statuspage.RelayContact{}
		}, []string{"agent-behind"}, false},
		"an agent's watch fails": {2, func(c *inspect.Cluster) {
			c.Agents[1].Value.Remotes[0].API.Error = `wireguardpeers.semaphore.uw.io is forbidden: User "x" cannot list resource "wireguardpeers"`
			c.Agents[1].Value.Conditions = []statuspage.Condition{{Type: statuspage.Failing, Reason: statuspage.ReasonError, Object: "objects of semaphore-relay for aws", Message: c.Agents[1].Value.Remotes[0].API.Error}}
		}, []string{"agent-behind"}, false},
		"an agent stands by": {2, func(c *inspect.Cluster) {
			next := c.Agents[1]
			behind := *next.Value
			behind.Standby, behind.Relay = &statuspage.Standby{Holder: "the other one"}, map[string]statuspage.RelayContact{"gcp": {Revision: "99"}}
			next.Value = &behind
			c.Agents = append(c.Agents, next)
		}, nil, false},
		"direct reading": {-1, func(c *inspect.Cluster) {
			for i := range c.Agents {
				c.Agents[i].Value.RemotesFrom, c.Agents[i].Value.Relay = "api", nil
			}
		}, nil, false},
		"what is stored isn't known": {2, func(c *inspect.Cluster) { c.Stored = inspect.Fact[map[string]string]{Err: "forbidden"} }, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			clusters := inspecttest.Pair(2)
			p := &patient{clusters[0], clusters[1]}
			api := statuspage.Connection{Synced: true, LastContact: &inspecttest.Now}
			if c.ready >= 0 {
				p.install(inspect.Relay, c.ready)
			}
			if c.ready > 0 {
				p.aws.Relays = []inspect.Reported[statuspage.Relay]{{Fact: inspect.Fact[*statuspage.Relay]{Value: &statuspage.Relay{
					Cluster: "aws", Leading: true, Objects: api,
					Clusters: []statuspage.RelayCluster{{Name: "aws", Local: true, API: api, Nodes: 2, Objects: 2}, {Name: "gcp", API: api, Nodes: 2, Objects: 2}},
				}}}}
			}
			p.aws.Stored.Value = map[string]string{"aws": "12", "gcp": "100"}
			for i := range p.aws.Agents {
				a := p.aws.Agents[i].Value
				a.RemotesFrom = inspect.RemotesFromRelay
				a.Relay = map[string]statuspage.RelayContact{"aws": {Renewed: &inspecttest.Now, Revision: "12"}, "gcp": {Renewed: &inspecttest.Now, Revision: "100"}}
			}
			if c.change != nil {
				c.change(p.aws)
			}
			d := diagnose(t, clusters, nil, false)
			var got []string
			for _, cause := range d.Causes {
				got = append(got, cause.ID)
			}
			if !slices.Equal(got, c.want) || len(c.want) == 0 && (d.Verdict != Well) != c.unsure {
				t.Errorf("causes %q, want %q:\n%s", got, c.want, findings(t, d))
			}
		})
	}
}
