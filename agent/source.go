package agent

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// nodeSource is a peers.Source with its state: direct, or a relayedCluster.
type nodeSource interface {
	peers.Source
	Synced() bool
	// Err is why they may be out of date; nil: they aren't.
	Err() error
	status() statuspage.Connection
	tasks() []run.Task
}

// direct reads a remote's API server.
type direct struct {
	*kube.Watch[*peers.Node]
	cluster string
	reader  *kube.Reader
	spread  func() time.Duration
	whole   time.Time // when to read whole nodes; zero: metadata suffices, or they are read
	log     *slog.Logger
}

func newDirect(a *agent, cfg *config.Remote, changed func(), metrics *kube.Metrics) *direct {
	bounds := kube.Bounds{Answer: int64(cfg.MaxAnswer), Objects: cfg.MaxObjects}
	reader := kube.NewNodeReader(kube.LazyClient(kube.ClientConfig{
		Access: cfg.Access, UserAgent: a.userAgent(), Bounds: bounds, Logger: a.log.With("cluster", cfg.Name),
	}), peers.Suffices(a.cfg.ClusterName))
	return &direct{
		Watch: kube.NewWatch(kube.WatchConfig[*peers.Node]{
			Cluster: cfg.Name, Kind: "nodes",
			Reader:  reader,
			Keep:    keepNode(a.cfg.ClusterName, cfg),
			Equal:   (*peers.Node).Equal,
			Notify:  changed,
			Spread:  a.local.spread,
			Bounds:  bounds,
			Logger:  a.log,
			Metrics: metrics,
		}),
		cluster: cfg.Name, reader: reader, spread: a.local.spread, log: a.log,
	}
}

// Decided implements peers.Source. If the nodes' metadata doesn't suffice to decide, it lists them whole,
// for as long as this process runs. All agents notice that at the same time: their lists are spread.
func (d *direct) Decided(now time.Time, undecided bool) (again time.Time) {
	switch {
	case !undecided || d.reader.Whole():
		d.whole = time.Time{}
	case d.whole.IsZero():
		d.whole = now.Add(time.Duration(rand.Float64() * float64(d.spread())))
	case !now.Before(d.whole):
		d.whole = time.Time{}
		d.reader.SetWhole(true)
		d.log.Info("listing whole nodes, to decide about prefixes", "cluster", d.cluster)
		d.Renew()
	}
	return d.whole
}

// keepNode returns a function that trims what kube.NewNodeReader reads.
func keepNode(local string, cfg *config.Remote) func(runtime.Object) (*peers.Node, bool) {
	whole, bare := peers.NodeFor(local, cfg.MaxPrefixes, cfg.PodSubnetsMap), peers.BareNodeFor(local, cfg.MaxPrefixes)
	return func(object runtime.Object) (*peers.Node, bool) {
		switch n := object.(type) {
		case *corev1.Node:
			return whole(n)
		case *metav1.PartialObjectMetadata:
			return bare(n)
		}
		return nil, false
	}
}

func (d *direct) status() statuspage.Connection {
	s := kube.Connection(d.Synced(), d.LastContact(), errors.Join(d.Err(), d.OverQuota()))
	s.Whole = d.reader.Whole()
	return s
}

func (d *direct) tasks() []run.Task { return []run.Task{d.Watch} }
