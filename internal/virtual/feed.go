package virtual

import (
	"context"
	"errors"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/errlog"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/status"
)

// quiet is the minimum interval of log lines about one remote's maps, which it may change all the
// time.
const quiet = time.Minute

// Config describes a Feed.
type Config struct {
	// Cluster is the remote, Server its API server.
	Cluster string
	Server  *kube.Server
	// Client returns its client, with the same bounds.
	Client func() (kube.Client, error)
	Bounds kube.Bounds
	// Notify is called when the result of Read or Known may have changed. It must not block.
	Notify  func()
	Logger  *slog.Logger
	Metrics *kube.Metrics
}

// Feed keeps the table of one remote up to date. Only Run is safe for concurrent use with other
// methods.
type Feed struct {
	*kube.Feed[Node]
	Table

	access *kube.NodeMetadata
	asked  int64 // number of refusals when nodes were requested again; 0: they weren't
	damper damper
	log    errlog.Log
	shown  string // last logged map
	at     time.Time
}

// NewFeed returns a feed that has read nothing until Run has.
func NewFeed(cfg Config) *Feed {
	f := &Feed{access: kube.NewNodeMetadata(cfg.Client, cfg.Notify), damper: newDamper(cfg.Notify)}
	f.log = errlog.Log{
		Logger: cfg.Logger.With("cluster", cfg.Cluster), Level: slog.LevelWarn, Quiet: quiet,
		Failing: "map of pod subnets of a remote not used for all of its addresses", Over: "map of pod subnets of a remote in order again",
		Kind: func(error) string { return "" },
	}
	f.Feed = kube.NewFeed(kube.WatchConfig[*Node]{
		Cluster: cfg.Cluster, Server: cfg.Server, Kind: "nodes", ListWatch: f.access,
		Keep: func(obj runtime.Object) (*Node, bool) {
			m, is := obj.(*metav1.PartialObjectMetadata)
			if !is {
				return nil, false
			}
			n := NodeOf(m.Annotations)
			return &n, true
		},
		Equal: func(a, b *Node) bool { return *a == *b }, Notify: cfg.Notify, Bounds: cfg.Bounds, Logger: cfg.Logger, Metrics: cfg.Metrics,
	})
	return f
}

// Read updates the table. It calls changed for each node on which addresses may be others by now,
// and for "" if those on no known node may be.
func (f *Feed) Read(ctx context.Context, changed func(node string)) {
	changes, _ := f.Changes()
	now := time.Now()
	if len(changes) == 0 && !f.damper.due(now) {
		return
	}
	update := func(name string, n *Node) (really bool) {
		known := f.Knows(name)
		if !f.Update(name, n) {
			return false
		}
		changed(name)
		return known // the first map of a node follows its creation
	}
	for i := range changes {
		f.damper.node(now, changes[i].Key, changes[i].After, update)
	}
	f.damper.release(now, update)
	if f.Undecided() && (f.New() || f.damper.agreement(now)) && f.Agree() {
		changed("")
	}
	f.report(ctx)
}

// report logs changes.
func (f *Feed) report(ctx context.Context) {
	s := f.Table.Status()
	var err error
	switch {
	case s.Fault != "":
		err = errors.New(s.Fault)
	case s.State == status.MapDiffers:
		err = errors.New("nodes have different maps")
	}
	f.log.Note(ctx, err)
	if s.State != status.MapKnown && s.State != status.MapNone {
		return
	}
	text := ""
	if len(s.Maps) > 0 {
		text = s.Maps[0].Map
	}
	if now := time.Now(); text != f.shown && now.Sub(f.at) >= quiet {
		f.shown, f.at = text, now
		f.log.Logger.InfoContext(ctx, "map of pod subnets of a remote", "map", text)
	}
}

// Known reports whether the table is that of the remote: nodes have been read since start, or
// are forbidden. answered is whether other lists of the same account have succeeded: an API
// server that starts may forbid everything at first, so that only a refusal after these counts.
func (f *Feed) Known(answered bool) bool {
	forbidden := f.access.Forbidden()
	switch {
	case forbidden == 0:
		return f.Synced()
	case !answered:
		return false
	case f.asked == 0:
		f.asked = forbidden
		f.Renew()
		return false
	}
	return forbidden > f.asked
}

// Status returns what nodes publish, as last read.
func (f *Feed) Status() status.PodSubnetsMap {
	s := f.Table.Status()
	switch {
	case f.access.Forbidden() > 0:
		s = status.PodSubnetsMap{State: status.MapForbidden}
	case !f.Synced():
		s.State = status.MapUnread
	}
	if err := errors.Join(f.Err(), f.OverQuota()); err != nil {
		s.Error = err.Error()
	}
	return s
}
