package policy

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
)

const (
	// passSpacing is the least time between the starts of two passes.
	passSpacing = 20 * time.Millisecond
	// restShare is how many times as long as its last pass a remote rests
	// before the next one: one with a hundred thousand pods can't take more
	// than a fifth of a processor.
	restShare = 4
	// slowPass is how long after a pass another one follows without an event.
	slowPass = 30 * time.Second
	// holdLimit is how long an address may stay in an object for the sake of
	// another one that can't be written.
	holdLimit = 5 * time.Second
	// holdCheck is how long after a pass that holds addresses another follows.
	holdCheck = 250 * time.Millisecond
)

// RemoteConfig describes one remote cluster.
type RemoteConfig struct {
	// Rules bound what the remote may do. Their Cluster is its name.
	Rules Rules
	// Client reaches it. As long as that returns an error it is called again.
	Client func() (kubernetes.Interface, error)
	// Bounds are those of what it can make us hold; the client has the same.
	Bounds kube.Bounds
	// ResyncPeriod is how often to compare without an event; 0: as rarely as
	// the controller does by itself.
	ResyncPeriod time.Duration
	// StaleAfter is how long without contact the remote's sets stay as they
	// are; after that they become empty. 0: for ever. See kube.ServerConfig.
	StaleAfter time.Duration
}

// remote keeps the sets of one remote cluster. Nothing in it waits for another
// remote.
type remote struct {
	RemoteConfig
	shared  *shared
	log     *slog.Logger
	server  *kube.Server
	pods    *source[Pod]
	trigger *reconcile.Trigger
	started time.Time
	held    map[Held]time.Time // since when; only passes read and write it

	mu    sync.Mutex
	state remoteState
	term  *term // nil: another replica leads
}

// term is what works while this replica leads.
type term struct {
	loop   *reconcile.Loop
	writer *writer
}

// remoteState is what the last pass found.
type remoteState struct {
	stale   bool
	pods    int
	objects []Object
	skipped Skipped
	held    int
	// collisions are among the objects.
	collisions []Collision
}

func newRemote(cfg RemoteConfig, s *shared) *remote {
	r := &remote{
		RemoteConfig: cfg, shared: s,
		log:     s.Logger.With("cluster", cfg.Rules.Cluster),
		trigger: reconcile.NewTrigger(),
		started: time.Now(),
		held:    map[Held]time.Time{},
	}
	r.server = kube.NewServer(kube.ServerConfig{
		Cluster: cfg.Rules.Cluster, StaleAfter: cfg.StaleAfter, Ask: kube.SignOfLife(cfg.Client), Logger: s.Logger,
	})
	keep := PodFor(s.Labels.Pod())
	r.pods = newSource("pods of "+cfg.Rules.Cluster, r.trigger.Fire, func(notify func()) *kube.Watch[Pod] {
		return kube.NewWatch(kube.WatchConfig[Pod]{
			Cluster: cfg.Rules.Cluster, Server: r.server, Kind: "pods", Object: &corev1.Pod{},
			ListWatch: kube.ListWatch(kube.Of(cfg.Client, podsOf), func(options *metav1.ListOptions) { options.LabelSelector = s.Labels.Pod() }),
			Keep: func(obj runtime.Object) (Pod, bool) {
				pod, ok := obj.(*corev1.Pod)
				if !ok {
					return Pod{}, false
				}
				return keep(pod)
			},
			Equal: Pod.Equal, Notify: notify, ResyncPeriod: cfg.ResyncPeriod, Bounds: cfg.Bounds,
			Logger: s.Logger, Metrics: s.Watches,
		})
	})
	return r
}

// lead writes the remote's sets until ctx ends.
func (r *remote) lead(ctx context.Context) error {
	t := &term{writer: newWriter(writerConfig{
		cluster: r.Rules.Cluster, labels: r.shared.Labels,
		clients: r.shared.Calico.Sets, gone: r.shared.Calico.Forget,
		ledger: r.shared.ledger, written: r.written, metrics: r.shared.Metrics, log: r.log,
	})}
	resync := slowPass
	if after := r.server.StaleAfter(); after > 0 {
		resync = min(slowPass, max(after/10, 100*time.Millisecond))
	}
	observe := r.shared.Metrics.passes.WithLabelValues(r.Rules.Cluster)
	t.loop = reconcile.NewLoop(reconcile.Config{
		Name: "sets " + r.Rules.Cluster, Trigger: r.trigger, MinInterval: passSpacing, Resync: resync, Logger: r.log,
		Reconcile: func(ctx context.Context) error {
			began := time.Now()
			err := r.pass(ctx, t.writer, began)
			took := time.Since(began)
			observe.Observe(took.Seconds())
			if rest := restShare * took; rest > passSpacing {
				pause(ctx, rest)
			}
			return err
		},
	})
	r.setTerm(t)
	defer r.setTerm(nil)
	var wg sync.WaitGroup
	wg.Go(func() { t.writer.run(ctx) })
	defer wg.Wait()
	return t.loop.Run(ctx)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (r *remote) setTerm(t *term) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.term = t
}

func (r *remote) current() (remoteState, *term) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state, r.term
}

// written asks for a pass where a write decides what comes next.
func (r *remote) written(outdated bool) {
	if state, _ := r.current(); outdated || state.held > 0 {
		r.trigger.Fire()
	}
}

// pass compares all pods of the remote with all of its sets, and has the writer
// make the difference.
func (r *remote) pass(ctx context.Context, w *writer, now time.Time) error {
	known := r.shared.ledger.view()
	if !known.synced {
		return nil
	}
	sets := known.sets
	stale := r.checkContact(now)
	pods, synced := r.pods.Snapshot()
	next := remoteState{stale: stale, pods: len(pods)}
	var err error
	switch {
	case stale:
		next.objects = emptied(r.Rules.Cluster, sets)
	case !synced:
		// What an earlier run knew stands.
		return nil
	default:
		exists := existing(r.Rules.Cluster, sets)
		members := Collect(pods, r.Rules, func(id Identity) bool { return exists[id] })
		next.skipped = members.Skipped
		next.objects, err = Plan(r.Rules.Cluster, members.Sets, sets, r.shared.ShardSize)
		next.collisions = Collisions(next.objects, sets)
	}
	eased, held := Ease(r.Rules.Cluster, sets, next.objects, r.expired(now))
	r.hold(held, now)
	next.held = len(held)
	r.mu.Lock()
	before := r.state
	r.state = next
	r.mu.Unlock()
	w.set(ctx, Diff(r.Rules.Cluster, sets, eased), known.writes)
	if len(held) > 0 {
		// In case the write that they wait for ended before this pass.
		time.AfterFunc(holdCheck, r.trigger.Fire)
	}
	r.report(ctx, before, next)
	return err
}

// checkContact returns whether the sets must be empty because the remote has
// been out of contact for too long. They come back when all of its pods have
// been read anew, which begins here.
func (r *remote) checkContact(now time.Time) (stale bool) {
	limit := r.server.StaleAfter()
	if limit <= 0 {
		return false
	}
	state, _ := r.current()
	if state.stale {
		return !r.pods.Synced()
	}
	last := r.pods.LastContact()
	if last.Before(r.started) {
		last = r.started
	}
	if now.Sub(last) <= limit {
		return false
	}
	r.pods.Reset()
	return true
}

// expired returns what Ease asks about addresses that it would hold.
func (r *remote) expired(now time.Time) func(Held) bool {
	return func(h Held) bool {
		since, held := r.held[h]
		return held && now.Sub(since) > holdLimit
	}
}

// hold remembers since when addresses have been held. Those that expired are
// forgotten only when they have left, or else they would be held anew.
func (r *remote) hold(held []Held, now time.Time) {
	before := r.held
	r.held = make(map[Held]time.Time, len(held))
	for _, h := range held {
		since, known := before[h]
		if !known {
			since = now
		}
		r.held[h] = since
	}
	for h, since := range before {
		if age := now.Sub(since); age > holdLimit && age < 2*holdLimit {
			r.held[h] = since
		}
	}
}

func emptied(name string, sets map[string]Observed) []Object {
	var objects []Object
	for _, o := range sets {
		if o.of(name) {
			objects = append(objects, Object{Name: o.Name, Identity: o.Identity})
		}
	}
	return objects
}

func existing(name string, sets map[string]Observed) map[Identity]bool {
	ids := map[Identity]bool{}
	for _, o := range sets {
		if o.of(name) {
			ids[o.Identity] = true
		}
	}
	return ids
}

// report logs what is new: the beginning and the end of being stale, and of
// pods being skipped for a reason.
func (r *remote) report(ctx context.Context, before, now remoteState) {
	switch {
	case now.stale && !before.stale:
		r.log.WarnContext(ctx, "no contact for too long, network sets become empty", "stale_after", r.server.StaleAfter(), "sets", len(now.objects))
	case before.stale && !now.stale:
		r.log.InfoContext(ctx, "contact again, network sets come back")
	}
	for _, reason := range slices.Sorted(maps.Keys(now.skipped)) {
		if before.skipped[reason] == nil && !reason.normal() {
			pods := now.skipped[reason]
			r.log.WarnContext(ctx, "pods or some of their addresses are in no set", "reason", reason, "pods", pods.Pods, "examples", pods.Examples)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(before.skipped)) {
		if now.skipped[reason] == nil && !reason.normal() && !now.stale {
			r.log.InfoContext(ctx, "no pods are skipped for this reason any more", "reason", reason)
		}
	}
}

// ready returns why the remote's sets can't be relied upon: its pods have never
// been read, and no earlier run left sets.
func (r *remote) ready(sets map[string]Observed) error {
	if r.pods.Synced() || len(existing(r.Rules.Cluster, sets)) > 0 {
		return nil
	}
	return fmt.Errorf("remote %s: pods not read since start, and no sets from before: %w", r.Rules.Cluster, orWaiting(r.pods.Err()))
}

// podsOf returns the pods of a cluster, up to date.
func podsOf(client kubernetes.Interface) kube.Resource[*corev1.PodList] {
	return current[*corev1.PodList]{client.CoreV1().Pods(metav1.NamespaceAll)}
}

// current is a resource whose lists, which may be answered from a cache, however
// old, are up to date. A replica that starts must not undo what another one did.
type current[L runtime.Object] struct{ kube.Resource[L] }

// List implements kube.Resource.
func (c current[L]) List(ctx context.Context, options metav1.ListOptions) (L, error) {
	if options.ResourceVersion == "0" {
		options.ResourceVersion, options.ResourceVersionMatch = "", ""
	}
	return c.Resource.List(ctx, options)
}
