package relay

import (
	"context"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
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
	nodes   *kube.Feed[v1alpha1.Spec]
	trigger *reconcile.Trigger
	loop    *reconcile.Loop
	renewal *reconcile.Trigger // of the Lease
	set     *set
}

func newSource(c *Controller, cluster string, client func() (kube.Client, error), cfg kube.WatchConfig[*v1alpha1.Spec]) *source {
	s := &source{
		cluster: cluster, c: c, trigger: reconcile.NewTrigger(), renewal: reconcile.NewTrigger(), set: newSet(false),
	}
	s.server = kube.NewServer(kube.ServerConfig{Cluster: cluster, StaleAfter: staleAfter, Ping: kube.Ping(client), Logger: c.Logger})
	cfg.Cluster, cfg.Kind, cfg.Server = cluster, "nodes", s.server
	cfg.Equal, cfg.Notify, cfg.Logger, cfg.Metrics = (*v1alpha1.Spec).Equal, s.trigger.Fire, c.Logger, c.Watches
	s.nodes = kube.NewFeed(cfg)
	s.loop = reconcile.NewLoop(reconcile.Config{
		Name: "nodes " + cluster, Trigger: s.trigger, Reconcile: s.pass, MinInterval: passSpacing, RestShare: restShare,
		Logger: c.Logger.With("cluster", cluster),
	})
	return s
}

// pass follows the nodes, once they and the objects have been listed, and adds the objects of those
// that have changed to the writer. Until then nothing is written. It makes no request and never
// fails.
func (s *source) pass(context.Context) error {
	if !s.c.known.Load() {
		return nil
	}
	changes, synced := s.nodes.Changes()
	if !synced {
		return nil
	}
	var written, removed []Key
	for _, change := range changes {
		if change.After == nil {
			key := Key{s.cluster, change.Before.ObjectName()}
			s.set.desire(key.Object, nil)
			removed = append(removed, key)
			continue
		}
		key := Key{s.cluster, change.After.ObjectName()}
		s.set.desire(key.Object, change.After)
		written = append(written, key)
	}
	nodes, _, known := s.set.size()
	if s.cluster == s.c.Cluster {
		s.c.pace.SetRates(ratesFor(nodes))
	}
	if !known {
		s.set.read()
		s.renewal.Fire() // Agents that have the objects expect the Lease.
		written, removed = keysOf(s.cluster, s.set.all()), nil
	}
	s.c.write(0, append(written, countOf(s.cluster))...)
	s.c.write(removalWait, removed...)
	return nil
}

func keysOf(cluster string, objects []string) (keys []Key) {
	for _, name := range objects {
		keys = append(keys, Key{cluster, name})
	}
	return keys
}
