package agent

import (
	"errors"
	"log/slog"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// nodeSource is where the nodes of a remote come from: its API server (direct), or what
// semaphore-relay has stored in this cluster (relayedCluster).
type nodeSource interface {
	// Snapshot returns all nodes, and whether they have been read since start. Later they are
	// the last known ones.
	Snapshot() ([]*peers.Node, bool)
	Synced() bool
	// Err is why they may be out of date; nil: they aren't.
	Err() error
	// passed is called after each pass that used them.
	passed(now time.Time, state *peers.State)
	// due is when the next pass has to be; zero: when they change.
	due() time.Time
	status() statuspage.Connection
	tasks() []run.Task
}

// direct reads a remote's API server.
type direct struct {
	*kube.Watch[*peers.Node]
	cluster string
	reader  *kube.NodeReader
	form    form
	spread  func() time.Duration
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
			ListWatch: reader,
			Keep:      keepNode(a.cfg.ClusterName, cfg),
			Equal:     (*peers.Node).Equal,
			Notify:    changed,
			Spread:    a.local.spread,
			Bounds:    bounds,
			Logger:    a.log,
			Metrics:   metrics,
		}),
		cluster: cfg.Name, reader: reader, spread: a.local.spread, log: a.log,
	}
}

func (d *direct) due() time.Time { return d.form.due() }

// passed lists the nodes in another form when that is due.
func (d *direct) passed(now time.Time, state *peers.State) {
	if !d.form.next(now, state, d.reader.Whole(), d.spread()) {
		return
	}
	d.reader.SetWhole(state.Undecided)
	d.log.Info("listing nodes in another form", "cluster", d.cluster, "whole", state.Undecided)
	d.Renew()
}

func (d *direct) status() statuspage.Connection {
	s := statuspage.Connection{Synced: d.Synced(), LastContact: some(d.LastContact()), Whole: d.reader.Whole()}
	if err := errors.Join(d.Err(), d.OverQuota()); err != nil {
		s.Error = err.Error()
	}
	return s
}

func (d *direct) tasks() []run.Task { return []run.Task{d.Watch} }
