package relay

import (
	"context"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/peers/shards"
)

const (
	// passSpacing is the minimum interval between the starts of two passes over the nodes of
	// a cluster, and followSpacing over objects.
	passSpacing, followSpacing = 25 * time.Millisecond, 10 * time.Millisecond
	// restShare is reconcile.Config.RestShare: a remote that changes constantly uses at most
	// a fifth of a processor.
	restShare = 4
	// staleAfter is the time without contact after which a feed lists again. A third of it
	// is the interval of pings, which make the time of the last contact known.
	staleAfter = 30 * time.Second
)

// source has the nodes of one cluster. Sources never wait for each other.
type source struct {
	cluster string
	c       *Controller
	server  *kube.Server
	nodes   *kube.Feed[shards.Node]
	trigger *reconcile.Trigger
	loop    *reconcile.Loop
	renewal *reconcile.Trigger // of the Lease

	members map[string]*shards.Node // owned by loop
	plan    atomic.Pointer[shards.Plan]
	count   atomic.Int64 // of nodes
}

func newSource(c *Controller, cluster string, client func() (kube.Client, error), cfg kube.WatchConfig[*shards.Node]) *source {
	s := &source{
		cluster: cluster, c: c, trigger: reconcile.NewTrigger(), renewal: reconcile.NewTrigger(), members: map[string]*shards.Node{},
	}
	s.server = kube.NewServer(kube.ServerConfig{Cluster: cluster, StaleAfter: staleAfter, Ping: kube.Ping(client), Logger: c.Logger})
	cfg.Cluster, cfg.Kind, cfg.Server, cfg.Object = cluster, "nodes", s.server, &corev1.Node{}
	cfg.Equal, cfg.Notify, cfg.Logger, cfg.Metrics = (*shards.Node).Equal, s.trigger.Fire, c.Logger, c.Watches
	s.nodes = kube.NewFeed(cfg)
	s.loop = reconcile.NewLoop(reconcile.Config{
		Name: "nodes " + cluster, Trigger: s.trigger, Reconcile: s.pass, MinInterval: passSpacing, RestShare: restShare,
		Logger: c.Logger.With("cluster", cluster),
	})
	return s
}

// pass makes a plan of the nodes, once they and the objects have been listed, and adds the
// objects that it changes to the writer. Without a plan nothing is written. It makes no
// request and never fails.
func (s *source) pass(context.Context) error {
	changes, synced := s.nodes.Changes()
	for _, change := range changes {
		if change.After == nil {
			delete(s.members, change.Key)
		} else {
			s.members[change.Key] = change.After
		}
	}
	before := s.plan.Load()
	if !synced || !s.c.known.Load() || before != nil && len(changes) == 0 {
		return nil
	}
	plan := shards.Desired(s.cluster, slices.Collect(maps.Values(s.members)), s.c.shardsOf(s.cluster))
	s.plan.Store(plan)
	if before == nil {
		s.renewal.Fire() // Agents that have the objects expect the Lease.
	}
	s.count.Store(int64(len(s.members)))
	if s.cluster == s.c.Cluster {
		s.c.pace.SetRates(ratesFor(len(s.members)))
	}
	change := plan.Since(before)
	s.c.write(0, keysOf(s.cluster, change.Written)...)
	s.c.write(shrinkWait, keysOf(s.cluster, change.Shrunk)...)
	s.c.write(0, Key{Cluster: s.cluster})
	return nil
}

func keysOf(cluster string, names []string) (keys []Key) {
	for _, name := range names {
		keys = append(keys, Key{cluster, name})
	}
	return keys
}
