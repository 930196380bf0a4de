package relay

import (
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/pace"
)

// Limits of writes in bytes. Each write is sent to all agents: with 1,000 agents, 64 KiB a second
// take 64 MB/s and about a core of the API server.
const (
	// toAgents limits the bytes per second that all agents together get for one cluster, and
	// slowest and fastest the resulting rate.
	toAgents         = 64 << 20
	slowest, fastest = 12 << 10, 64 << 10
	// burst is what is written for one cluster without that limit: some 100 nodes.
	burst = 64 << 10
	// clusters is the number of clusters that may write at their limit without delaying others.
	clusters = 2
	// removalWait delays removals, so that they come after other writes: a node that was renamed
	// has its new object before it loses the former one.
	removalWait = time.Second
)

// ratesFor returns the rates for each cluster and for all of them, with this many nodes of the
// relay's own cluster.
func ratesFor(agents int) (cluster, total int) {
	cluster = min(fastest, max(slowest, toAgents/max(1, agents)))
	return cluster, clusters * cluster
}

// newPacer returns a Pacer with the limits for any number of agents.
func newPacer(ready func(Key)) *pace.Pacer[Key] {
	return pace.New(pace.Config[Key]{
		Cluster: pace.Limit{Rate: slowest, Burst: burst}, Total: pace.Limit{Rate: clusters * slowest, Burst: clusters * burst}, Ready: func(key Key, _ bool) { ready(key) },
	})
}
