package policy

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
)

const (
	// passSpacing is the minimum interval between the starts of two passes over pods:
	// frequent events share passes and writes. It doesn't delay events after a quiet time.
	passSpacing = 25 * time.Millisecond
	// passBurst is the number of passes without passSpacing after a quiet time.
	passBurst = 4
	// restShare is reconcile.Config.RestShare: a remote that changes constantly uses at most
	// a fifth of a processor.
	restShare = 4
	// quietPeriod is the minimum interval between two warnings that pods are skipped for one reason.
	quietPeriod = time.Minute
)

// RemoteConfig describes one remote cluster.
type RemoteConfig struct {
	// Rules are the remote's bounds, with its name.
	Rules Rules
	// Client returns its client. After an error it is called again.
	Client func() (kube.Client, error)
	// Bounds are those of cached objects, which the client has as well.
	Bounds kube.Bounds
	// ResyncPeriod is the interval of comparing everything without an event; 0: never.
	ResyncPeriod time.Duration
	// StaleAfter is the time without contact after which the remote's sets become empty; 0:
	// never. See kube.ServerConfig.
	StaleAfter time.Duration
}

// remote has the pods of one remote cluster. Remotes never wait for each other.
type remote struct {
	RemoteConfig
	c       *Controller
	log     *slog.Logger
	server  *kube.Server
	feed    *kube.Feed[Pod]
	trigger *reconcile.Trigger
	loop    *reconcile.Loop
	all     atomic.Bool // the next pass enqueues all sets

	mu       sync.Mutex
	pods     podIndex
	quota    quota
	counted  bool // quota has existing objects
	synced   bool // pods are complete
	stale    bool
	compared time.Time // of the last full comparison
	reported map[Reason]bool
	warned   map[Reason]time.Time // last
}

func newRemote(cfg RemoteConfig, c *Controller) *remote {
	r := &remote{
		RemoteConfig: cfg, c: c, log: c.Logger.With("cluster", cfg.Rules.Cluster), trigger: reconcile.NewTrigger(),
		pods: newPodIndex(cfg.Rules), quota: newQuota(&cfg.Rules), reported: map[Reason]bool{}, warned: map[Reason]time.Time{},
	}
	r.server = kube.NewServer(kube.ServerConfig{
		Cluster: cfg.Rules.Cluster, StaleAfter: cfg.StaleAfter, Ping: kube.Ping(cfg.Client), Logger: c.Logger,
	})
	r.feed = newPods(&c.Config, &r.RemoteConfig, r.server, r.trigger.Fire)
	passes := c.Metrics.passes.WithLabelValues(cfg.Rules.Cluster)
	r.loop = reconcile.NewLoop(reconcile.Config{
		Name: "pods " + cfg.Rules.Cluster, Trigger: r.trigger, Reconcile: func(ctx context.Context) error {
			defer func(started time.Time) { passes.Observe(time.Since(started).Seconds()) }(time.Now())
			return r.pass(ctx)
		},
		MinInterval: passSpacing, Burst: passBurst, RestShare: restShare, Resync: cfg.ResyncPeriod, Logger: r.log,
	})
	return r
}

// pass updates the index of pods and enqueues the sets of those that changed, what may lose an
// address first. It makes no request and never fails.
func (r *remote) pass(ctx context.Context) error {
	// In this order: if it isn't stale, the list is complete before Changes is called.
	stale := r.feed.Stale()
	changes, synced := r.feed.Changes()
	now := time.Now()
	var remove, lost, got []Identity
	r.mu.Lock()
	for i := range changes {
		from, to := r.pods.update(changes[i].Before, changes[i].After)
		if len(from) > 0 && r.removes(from[0], &changes[i]) {
			remove, from = append(remove, from...), nil
		}
		lost, got = append(lost, from...), append(got, to...)
	}
	all := r.all.Swap(false) || stale != r.stale || synced != r.synced || r.ResyncPeriod > 0 && now.Sub(r.compared) >= r.ResyncPeriod
	if all {
		r.compared = now
	}
	before := r.stale
	r.synced, r.stale = synced, stale
	r.report(ctx, before)
	if all {
		lost, got = r.everything()
	}
	if r.stale && !before {
		remove, lost = lost, nil
	}
	r.mu.Unlock()
	if w := r.c.term(); w != nil {
		w.AddNow(remove...) // Additions of these that fail don't delay it.
	}
	r.c.enqueue(lost...)
	r.c.enqueue(got...)
	return nil
}

// removes reports whether objects of the set that a pod was in have an address that it no longer
// has there. Callers hold mu.
func (r *remote) removes(id Identity, pod *kube.Change[Pod]) bool {
	had, _ := r.pods.rules.admit(pod.Before)
	var has []netip.Addr
	if pod.After != nil && r.pods.identity(pod.After) == id {
		has, _ = r.pods.rules.admit(pod.After)
	}
	have := r.c.objects(id)
	return slices.ContainsFunc(had, func(addr netip.Addr) bool { return !slices.Contains(has, addr) && holds(have, addr) })
}

// everything returns all sets of the remote, those with objects first, and none that wait for
// room. Callers hold mu.
func (r *remote) everything() (existing, others []Identity) {
	for _, id := range r.c.owned.all(func(cluster string) bool { return cluster == r.Rules.Cluster }) {
		existing = append(existing, id)
	}
	for id := range r.pods.sets {
		if !r.quota.waits(id) {
			others = append(others, id)
		}
	}
	return existing, others
}

// report logs changes: when the remote becomes stale or recovers, and when the first and the
// last pod is skipped for a reason, unless it was within quietPeriod. Callers hold mu.
func (r *remote) report(ctx context.Context, stale bool) {
	switch {
	case r.stale && !stale:
		r.log.WarnContext(ctx, "remote is stale, network sets become empty", "stale_after", r.server.StaleAfter())
	case stale && !r.stale:
		r.log.InfoContext(ctx, "remote is no longer stale, network sets are restored")
	}
	for _, reason := range abnormal {
		is := len(r.pods.skipped[reason]) > 0 || len(r.quota.short[reason]) > 0
		switch {
		case is && !r.reported[reason] && time.Since(r.warned[reason]) >= quietPeriod:
			r.reported[reason], r.warned[reason] = true, time.Now()
			skipped := r.skipped(reason)
			r.log.WarnContext(ctx, "pods or some of their addresses are in no set", "reason", reason, "pods", skipped.Pods, "examples", skipped.Examples)
		case !is && r.reported[reason]:
			delete(r.reported, reason)
			r.log.InfoContext(ctx, "no pods are skipped for this reason any more", "reason", reason)
		}
	}
}

// skipped returns the pods that are in no set, or not with all of their addresses, for a reason.
// Those for which there is no room are known to the leader only. Callers hold mu.
func (r *remote) skipped(reason Reason) statuspage.SkippedPods {
	s := statuspage.SkippedPods{}
	for p := range r.pods.skipped[reason] {
		skip(&s, p)
	}
	for _, short := range r.quota.short[reason] {
		for id := range short {
			have := r.c.objects(id)
			for p := range r.pods.sets[id] {
				if addrs, _ := r.pods.rules.admit(p); slices.ContainsFunc(addrs, func(addr netip.Addr) bool { return !holds(have, addr) }) {
					skip(&s, p)
				}
			}
		}
	}
	return s
}
