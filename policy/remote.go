package policy

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/virtual"
)

const (
	// passSpacing is the minimum interval between the starts of two passes over pods:
	// frequent events share passes and writes. It doesn't delay events after a quiet time.
	passSpacing = 25 * time.Millisecond
	// passBurst is the number of passes without passSpacing after a quiet time: a change and
	// its consequences need two.
	passBurst = 4
	// followSpacing is the same for changes of network sets. A held address is removed after
	// a pass of each kind.
	followSpacing = 10 * time.Millisecond
	// restShare is reconcile.Config.RestShare: a remote that changes constantly uses at most
	// a fifth of a processor.
	restShare = 4
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

// remote has the pods of one remote cluster, and the local objects with their addresses.
// Remotes never wait for each other.
type remote struct {
	RemoteConfig
	c       *Controller
	log     *slog.Logger
	server  *kube.Server
	pods    *kube.Feed[Pod]
	nodes   *virtual.Feed
	trigger *reconcile.Trigger
	loop    *reconcile.Loop
	pace    pace
	inbox   inbox

	mu       sync.Mutex
	members  *Members
	located  *located
	synced   bool // members are complete
	stale    bool
	compared time.Time // of the last full comparison
	reported map[Reason]bool
	objects  map[Identity]map[string]struct{} // names of existing objects, by set
	names    map[Identity]map[int]string      // names of future objects, by set and shard
	claims   map[string]Identity              // the same by name
	renamed  map[string]Identity              // objects without their natural name
	right    map[string]*Observed             // results of our patches that match the desired state, by name, until the next pass
}

// inbox has the changes of network sets for a remote's next pass. Adding to it doesn't wait
// for a pass.
type inbox struct {
	mu      sync.Mutex
	changes []kube.Change[Observed]
	all     bool
}

// enqueue adds changes of this remote's local objects for the next pass, or a comparison of
// all sets, and triggers the pass.
func (r *remote) enqueue(changes []kube.Change[Observed], all bool) {
	r.inbox.mu.Lock()
	r.inbox.changes = append(r.inbox.changes, changes...)
	r.inbox.all = r.inbox.all || all
	r.inbox.mu.Unlock()
	r.trigger.Fire()
}

func (r *remote) drain() (changes []kube.Change[Observed], all bool) {
	r.inbox.mu.Lock()
	defer r.inbox.mu.Unlock()
	changes, all = r.inbox.changes, r.inbox.all
	r.inbox.changes, r.inbox.all = nil, false
	return changes, all
}

func newRemote(cfg RemoteConfig, c *Controller) *remote {
	r := &remote{
		RemoteConfig: cfg, c: c, log: c.Logger.With("cluster", cfg.Rules.Cluster),
		trigger: reconcile.NewTrigger(), members: NewMembers(cfg.Rules), reported: map[Reason]bool{},
		objects: map[Identity]map[string]struct{}{}, names: map[Identity]map[int]string{},
		claims: map[string]Identity{}, renamed: map[string]Identity{}, right: map[string]*Observed{},
	}
	r.server = kube.NewServer(kube.ServerConfig{
		Cluster: cfg.Rules.Cluster, StaleAfter: cfg.StaleAfter, Ping: kube.Ping(cfg.Client), Logger: c.Logger,
	})
	r.pods = newPods(&c.Config, &r.RemoteConfig, r.server, r.trigger.Fire)
	r.nodes = virtual.NewFeed(virtual.Config{
		Cluster: cfg.Rules.Cluster, Server: r.server, Client: cfg.Client, Bounds: cfg.Bounds,
		Notify: r.trigger.Fire, Logger: c.Logger, Metrics: c.Watches,
	})
	r.located = newLocated(&r.nodes.Table)
	passes := c.Metrics.passes.WithLabelValues(cfg.Rules.Cluster)
	r.loop = reconcile.NewLoop(reconcile.Config{
		Name: "pods " + cfg.Rules.Cluster, Trigger: r.trigger, Reconcile: r.pass,
		MinInterval: passSpacing, Burst: passBurst, RestShare: restShare, Resync: cfg.ResyncPeriod, Logger: r.log,
		Observe: func(took time.Duration, _ error) { passes.Observe(took.Seconds()) },
	})
	return r
}

// pass adds the sets of changed pods and objects to the writer. It makes no request and never
// fails.
func (r *remote) pass(ctx context.Context) error {
	if !r.c.known.Load() {
		return nil
	}
	// In this order: if it isn't stale, the list is complete before Changes is called.
	stale := r.pods.Stale()
	sets, all := r.drain()
	now := time.Now()
	r.mu.Lock()
	changes, synced := r.podsChanged(ctx)
	r.setsChanged(sets)
	before := r.stale
	all = all || stale != r.stale || synced != r.synced || r.ResyncPeriod > 0 && now.Sub(r.compared) >= r.ResyncPeriod
	r.order(changes, synced && !r.synced)
	r.synced, r.stale = synced, stale
	for i := range changes {
		r.members.Update(changes[i].Before, changes[i].After, now)
	}
	touched := r.members.Touched()
	if all {
		touched, r.compared = r.all(), now
	}
	r.report(ctx, before)
	r.mu.Unlock()
	r.c.write(touched...)
	return nil
}

// podsChanged returns the changes of pods, with the addresses by which they are known here, and
// whether all pods, and the maps of their nodes, have been read since start. Callers hold mu.
func (r *remote) podsChanged(ctx context.Context) (changes []kube.Change[Pod], synced bool) {
	var remapped []string
	r.nodes.Read(ctx, func(node string) { remapped = append(remapped, node) })
	if !r.nodes.Known(r.pods.Synced()) {
		return nil, false
	}
	changes, synced = r.pods.Changes()
	for i := range changes {
		changes[i] = r.located.change(changes[i])
	}
	for _, node := range remapped {
		changes = append(changes, r.located.remap(node)...)
	}
	return changes, synced
}

// order sorts changes: deleted pods first, as they release quota. At start, if the quota
// isn't sufficient, pods with an existing address or set come next, then the oldest ones.
func (r *remote) order(changes []kube.Change[Pod], first bool) {
	type rank struct{ address, set bool }
	there := map[*Pod]rank{}
	if first && (len(changes) > r.members.rules.MaxSets || len(changes) > r.members.rules.MaxAddresses/2) {
		for i := range changes {
			if p := changes[i].After; p != nil {
				id := r.members.identity(p)
				k := rank{set: len(r.objects[id]) > 0}
				for name := range r.objects[id] {
					o := r.c.ledger.Get(name)
					k.address = k.address || o != nil && (contains(o.Addrs, p.V4) || contains(o.Addrs, p.V6))
				}
				there[p] = k
			}
		}
	}
	yes := func(a, b bool) int { return cmp.Compare(b2i(b), b2i(a)) }
	slices.SortFunc(changes, func(a, b kube.Change[Pod]) int {
		if a.After == nil || b.After == nil {
			return yes(a.After == nil, b.After == nil)
		}
		x, y := there[a.After], there[b.After]
		return cmp.Or(yes(x.address, y.address), yes(x.set, y.set), cmp.Compare(a.After.Created, b.After.Created), cmp.Compare(a.Key, b.Key))
	})
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func contains(addrs []netip.Addr, addr netip.Addr) bool {
	_, found := slices.BinarySearchFunc(addrs, addr, netip.Addr.Compare)
	return found
}

// all returns all existing and desired sets, in order, without those beyond the quota.
// Callers hold mu.
func (r *remote) all() []Identity {
	ids := map[Identity]struct{}{}
	for id, s := range r.members.sets {
		if s.waits == nil {
			ids[id] = struct{}{}
		}
	}
	for id := range r.objects {
		ids[id] = struct{}{}
	}
	return slices.SortedFunc(maps.Keys(ids), Identity.compare)
}

// setsChanged processes changes of this remote's local objects. Callers hold mu.
func (r *remote) setsChanged(changes []kube.Change[Observed]) {
	name := r.Rules.Cluster
	for _, c := range changes {
		made, before, after := r.right[c.Key], c.Before, c.After
		right := made != nil && before != nil && before.Identity == made.Identity && after != nil && made.equal(after) && made.matches(&after.Object)
		delete(r.right, c.Key)
		if before := c.Before; before != nil && before.of(name) {
			id := before.Identity
			delete(r.objects[id], c.Key)
			if len(r.objects[id]) == 0 {
				delete(r.objects, id)
			}
			delete(r.renamed, c.Key)
			if after := c.After; after != nil && after.of(name) && after.Identity != id {
				// Another client changed its labels: reclaim the name for this set.
				r.reclaim(id, c.Key)
			}
			if !right {
				r.members.touch(id)
			}
		}
		if after := c.After; after != nil && after.of(name) {
			id := after.Identity
			if r.objects[id] == nil {
				r.objects[id] = map[string]struct{}{}
			}
			r.objects[id][c.Key] = struct{}{}
			if !id.isNatural(c.Key) {
				r.renamed[c.Key] = id
			}
			r.members.Arrived(id, func(addr netip.Addr) bool { return contains(after.Addrs, addr) })
			if !right {
				r.members.touch(id)
			}
		}
	}
}

// patched records that a patch made an object match the desired state: its change needs no
// further comparison.
func (r *remote) patched(o *Observed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.right[o.Name] = o
}

// reclaim reserves a name for a set that has lost its object. Callers hold mu.
func (r *remote) reclaim(id Identity, name string) {
	shard := id.shardOf(name, len(r.objects[id])+1)
	if _, claimed := r.claims[name]; shard == 0 || claimed || r.members.sets[id] == nil {
		return
	}
	if r.names[id] == nil {
		r.names[id] = map[int]string{}
	}
	if r.names[id][shard] == "" {
		r.names[id][shard] = name
		r.claims[name] = id
	}
}

// state returns the observed and the desired objects of a set. Both are empty until the pods
// are synced, so that existing objects stay.
func (r *remote) state(id Identity) (have map[string]*Observed, want []Object, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.synced && !r.stale {
		return nil, nil, nil
	}
	now := time.Now()
	held, until := r.members.Held(id, now, r.holds)
	if len(held) > 0 {
		r.c.writeAfter(until.Sub(now), id)
	}
	have = map[string]*Observed{}
	names := maps.Clone(r.names[id])
	if names == nil {
		names = map[int]string{}
	}
	there := func(name string) {
		if by, claimed := r.claims[name]; claimed && by != id {
			return
		}
		if o := r.c.ledger.Get(name); o != nil && o.Owned && o.Identity == id {
			have[name] = o
		}
	}
	for name := range r.objects[id] {
		there(name)
	}
	for _, name := range names {
		there(name)
	}
	v := &View{
		ID: id, Addrs: r.members.Addrs(id), Held: held, Stale: r.stale,
		Have: have, Names: names, Taken: func(name string) bool { return r.taken(id, name) }, Size: r.c.ShardSize,
	}
	want, err = Desired(v)
	for shard, name := range r.names[id] {
		delete(r.claims, name)
		if _, known := r.objects[id][name]; !known && have[name] != nil && names[shard] == "" {
			names[shard] = name // created, but not in objects before the next pass
		}
	}
	delete(r.names, id)
	if len(names) > 0 {
		r.names[id] = names
	}
	for _, name := range names {
		r.claims[name] = id
		if o := r.c.ledger.Get(name); o != nil {
			have[name] = o // adopted
		}
	}
	return have, want, err
}

// holds reports whether objects of a set have an address. Callers hold mu.
func (r *remote) holds(id Identity, addr netip.Addr) bool {
	for name := range r.objects[id] {
		if o := r.c.ledger.Get(name); o != nil && o.Owned && o.Identity == id && contains(o.Addrs, addr) {
			return true
		}
	}
	return false
}

// taken reports whether a name is unavailable for a set: another set claims it, or the object
// with that name is foreign or of another set. An object of ours without a set may be
// adopted: another client has changed its labels. Callers hold mu.
func (r *remote) taken(id Identity, name string) bool {
	if by, claimed := r.claims[name]; claimed && by != id {
		return true
	}
	o := r.c.ledger.Get(name)
	return o != nil && (!o.of(r.Rules.Cluster) || o.Identity != id && r.members.sets[o.Identity] != nil)
}

// report logs changes: when the remote becomes stale or recovers, and when the first and the
// last pod is skipped for a reason. Callers hold mu.
func (r *remote) report(ctx context.Context, stale bool) {
	switch {
	case r.stale && !stale:
		r.log.WarnContext(ctx, "remote is stale, network sets become empty", "stale_after", r.server.StaleAfter(), "sets", len(r.objects))
	case stale && !r.stale:
		r.log.InfoContext(ctx, "remote is no longer stale, network sets are restored")
	}
	for reason := range r.members.skipped {
		if !r.reported[reason] && !reason.normal() {
			r.reported[reason] = true
			pods := r.members.Skipped()[string(reason)]
			r.log.WarnContext(ctx, "pods or some of their addresses are in no set", "reason", reason, "pods", pods.Pods, "examples", pods.Examples)
		}
	}
	for reason := range r.reported {
		if r.members.skipped[reason] == nil {
			delete(r.reported, reason)
			r.log.InfoContext(ctx, "no pods are skipped for this reason any more", "reason", reason)
		}
	}
}
