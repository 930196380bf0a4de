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
)

const (
	// passSpacing is the least time between the starts of two passes over pods. What
	// comes after a quiet time doesn't wait for it. What comes faster shares passes,
	// and writes that go out together, which wakes fewer goroutines for each.
	passSpacing = 25 * time.Millisecond
	// passBurst is how many passes needn't wait after a quiet time: a change and what
	// comes of it take two.
	passBurst = 4
	// followSpacing is the same for what remotes are told of network sets. An address
	// that was held for another set's sake leaves after a pass of each kind.
	followSpacing = 10 * time.Millisecond
	// restShare is how many times as long as its last pass a remote rests
	// before the next one: one that changes everything all the time can't take
	// more than a fifth of a processor.
	restShare = 4
)

// RemoteConfig describes one remote cluster.
type RemoteConfig struct {
	// Rules bound what the remote may do. Their Cluster is its name.
	Rules Rules
	// Client reaches it. As long as that returns an error it is called again.
	Client func() (kube.Client, error)
	// Bounds are those of what it can make us hold; the client has the same.
	Bounds kube.Bounds
	// ResyncPeriod is how often to compare everything without an event; 0: never.
	ResyncPeriod time.Duration
	// StaleAfter is how long without contact the remote's sets stay as they
	// are; after that they become empty. 0: for ever. See kube.ServerConfig.
	StaleAfter time.Duration
}

// remote knows the pods of one remote cluster, and which objects of the local one
// hold them. Nothing in it waits for another remote.
type remote struct {
	RemoteConfig
	c       *Controller
	log     *slog.Logger
	server  *kube.Server
	pods    *kube.Feed[Pod]
	trigger *reconcile.Trigger
	loop    *reconcile.Loop
	pace    pace
	inbox   inbox

	mu       sync.Mutex
	members  *Members
	synced   bool // members are complete
	stale    bool
	compared time.Time // when everything was added last
	reported map[Reason]bool
	objects  map[Identity]map[string]struct{} // names of what is there, by set
	names    map[Identity]map[int]string      // of what isn't there yet, by set and shard
	claims   map[string]Identity              // the same by name
	renamed  map[string]Identity              // objects with another name than the natural one
	right    map[string]*Observed             // what patches of ours made as it must be, by name, until a pass sees it
}

// inbox is what a remote's next pass takes in of network sets. Whoever fills it never
// waits for a pass.
type inbox struct {
	mu      sync.Mutex
	changes []kube.Change[Observed]
	all     bool
}

// tell has the next pass take in what became of objects in the local cluster that are,
// or were, of this remote, or compare all sets.
func (r *remote) tell(changes []kube.Change[Observed], all bool) {
	r.inbox.mu.Lock()
	r.inbox.changes = append(r.inbox.changes, changes...)
	r.inbox.all = r.inbox.all || all
	r.inbox.mu.Unlock()
	r.trigger.Fire()
}

func (r *remote) told() (changes []kube.Change[Observed], all bool) {
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
	passes := c.Metrics.passes.WithLabelValues(cfg.Rules.Cluster)
	r.loop = reconcile.NewLoop(reconcile.Config{
		Name: "pods " + cfg.Rules.Cluster, Trigger: r.trigger, Reconcile: r.pass,
		MinInterval: passSpacing, Burst: passBurst, RestShare: restShare, Resync: cfg.ResyncPeriod, Logger: r.log,
		Observe: func(took time.Duration, _ error) { passes.Observe(took.Seconds()) },
	})
	return r
}

// pass finds out which sets the pods and objects that changed belong to, and has those
// written. It makes no request and never fails.
func (r *remote) pass(ctx context.Context) error {
	if !r.c.known.Load() {
		return nil
	}
	// In this order: what isn't stale has been read before it is handed out.
	stale := r.pods.Stale()
	changes, synced := r.pods.Changes()
	sets, all := r.told()
	now := time.Now()
	r.mu.Lock()
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

// order sorts changes: pods that are gone make room first. When a process starts,
// what is in the local cluster already stays there, if there isn't room for all; then
// the oldest pods come first.
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

// all returns all sets that are or must be, in order; mu is held. Those that there is
// no room for are neither.
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

// setsChanged takes in what became of objects in the local cluster that are, or were,
// of this remote; mu is held.
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
				// Somebody changed its labels: it is still this set's.
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

// patched notes that a patch made an object what it must be: when a pass sees that, its
// set needn't be compared again.
func (r *remote) patched(o *Observed) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.right[o.Name] = o
}

// reclaim keeps a name for a set that has lost the object; mu is held.
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

// look returns what there is of a set, and what must be. Nothing is known until the
// pods have been read: then what an earlier run knew stands.
func (r *remote) look(id Identity) (have map[string]*Observed, want []Object, err error) {
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
			names[shard] = name // created, and the next pass will know
		}
	}
	delete(r.names, id)
	if len(names) > 0 {
		r.names[id] = names
	}
	for _, name := range names {
		r.claims[name] = id
		if o := r.c.ledger.Get(name); o != nil {
			have[name] = o // taken over
		}
	}
	return have, want, err
}

// holds reports whether objects of a set have an address; mu is held.
func (r *remote) holds(id Identity, addr netip.Addr) bool {
	for name := range r.objects[id] {
		if o := r.c.ledger.Get(name); o != nil && o.Owned && o.Identity == id && contains(o.Addrs, addr) {
			return true
		}
	}
	return false
}

// taken reports whether a name is somebody else's than that of a set: another set
// claims it, or an object has it that isn't ours, or is that of another set. One of
// ours that belongs to no set may be taken over: somebody has changed its labels. mu
// is held.
func (r *remote) taken(id Identity, name string) bool {
	if by, claimed := r.claims[name]; claimed && by != id {
		return true
	}
	o := r.c.ledger.Get(name)
	return o != nil && (!o.of(r.Rules.Cluster) || o.Identity != id && r.members.sets[o.Identity] != nil)
}

// report logs what is new: the beginning and the end of being stale, and of
// pods being skipped for a reason. mu is held.
func (r *remote) report(ctx context.Context, stale bool) {
	switch {
	case r.stale && !stale:
		r.log.WarnContext(ctx, "no contact for too long, network sets become empty", "stale_after", r.server.StaleAfter(), "sets", len(r.objects))
	case stale && !r.stale:
		r.log.InfoContext(ctx, "contact again, network sets come back")
	}
	for reason := range r.members.skipped {
		if !r.reported[reason] && !reason.normal() {
			r.reported[reason] = true
			pods := r.members.Skipped()[reason]
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
