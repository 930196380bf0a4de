// Package relay is the controller of semaphore-relay, which reads the nodes of all clusters
// once, and stores what agents need of them in objects of its own cluster, one for each node:
//
//	nodes of a cluster ─► source.pass ─► set ─┐
//	                                      ▲   ├─► Writer ─► apply
//	objects ─► Ledger ─► follow ──────────┴───┘
//
// Agents trust it for the form of what it stores, and for nothing else: their checks are the
// same as for nodes that they read themselves.
package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/keep"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/pace"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// RemoteConfig describes one remote cluster.
type RemoteConfig struct {
	Name string
	// Client returns its client. After an error it is called again.
	Client func() (kube.Client, error)
	// Bounds are those of cached objects, which the client has as well.
	Bounds kube.Bounds
	// MaxPrefixes is the maximum number of prefixes of one node.
	MaxPrefixes int
	// PodSubnetsMap is the map by which this cluster knows the remote's pods.
	PodSubnetsMap config.SubnetMap
}

// Config describes a Controller. All fields are required.
type Config struct {
	// Cluster is the local cluster's name.
	Cluster string
	// Client is that of the local cluster; the objects and Leases are in Namespace.
	Client    kube.Client
	Namespace string
	Remotes   []RemoteConfig
	Logger    *slog.Logger
	// Metrics and Watches are registered by the caller.
	Metrics *Metrics
	Watches *kube.Metrics
}

// Key is the name of an object, and its cluster.
type Key struct{ Cluster, Object string }

func countOf(cluster string) Key { return Key{cluster, v1alpha1.CountName(cluster)} }

// Controller keeps the objects of all clusters. Every replica has the observed state; only
// Lead writes.
type Controller struct {
	Config
	ledger  *keep.Ledger[v1alpha1.WireguardPeers]
	objects *kube.Feed[v1alpha1.WireguardPeers]
	changed *reconcile.Trigger // of objects, or the ledger
	loop    *reconcile.Loop
	order   []*source   // the local cluster first
	known   atomic.Bool // the objects have been listed
	pace    *pace.Pacer[Key]

	mu     sync.Mutex
	sets   map[string]*set      // by cluster
	writer *keep.Writer[Key]    // nil: not leading
	past   *keep.Overrides[Key] // of the term of writer
}

// New returns a controller. It makes no request.
func New(cfg Config) *Controller {
	c := &Controller{
		Config: cfg, changed: reconcile.NewTrigger(), sets: map[string]*set{}, past: keep.NewOverrides[Key](cfg.Logger),
	}
	c.pace = newPacer(func(key Key) { c.write(0, key) })
	c.ledger = keep.NewLedger(keep.LedgerConfig[v1alpha1.WireguardPeers]{Meta: metaOf, Notify: c.changed.Fire})
	local := func() (kube.Client, error) { return cfg.Client, nil }
	c.objects = kube.NewFeed(kube.WatchConfig[*v1alpha1.WireguardPeers]{
		Cluster: cfg.Cluster, Kind: v1alpha1.Resource,
		ListWatch: kube.ListWatch(kube.Of(local, func(client kube.Client) kube.Resource[*v1alpha1.WireguardPeersList] {
			return client.WireguardPeers(cfg.Namespace)
		}), nil),
		Keep: keepObject, Notify: c.changed.Fire, Logger: cfg.Logger, Metrics: cfg.Watches,
	})
	c.loop = reconcile.NewLoop(reconcile.Config{
		Name: v1alpha1.Resource, Trigger: c.changed, Reconcile: c.follow, MinInterval: followSpacing, Due: c.ledger.Due, Logger: cfg.Logger,
	})
	c.add(newSource(c, cfg.Cluster, local, kube.WatchConfig[*v1alpha1.Spec]{
		ListWatch: kube.ListWatch(kube.Of(local, kube.Nodes), nil),
		Keep: func(obj runtime.Object) (*v1alpha1.Spec, bool) {
			n, ok := obj.(*corev1.Node)
			if !ok {
				return nil, false
			}
			return peers.TrimLocalNode(n).Stored(cfg.Cluster), true
		},
	}))
	for i := range cfg.Remotes {
		r := &cfg.Remotes[i]
		trim := peers.NodeFor(cfg.Cluster, r.MaxPrefixes, r.PodSubnetsMap)
		c.add(newSource(c, r.Name, r.Client, kube.WatchConfig[*v1alpha1.Spec]{
			Reader: kube.ReadNodes(r.Client), Bounds: r.Bounds,
			Keep: func(obj runtime.Object) (*v1alpha1.Spec, bool) {
				n, ok := obj.(*corev1.Node)
				if !ok {
					return nil, false
				}
				node, published := trim(n)
				if !published {
					return nil, false
				}
				return node.Stored(r.Name)
			},
		}))
	}
	return c
}

func (c *Controller) add(s *source) {
	c.sets[s.cluster] = s.set
	c.order = append(c.order, s)
}

// set returns the set of a cluster.
func (c *Controller) set(cluster string) *set {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sets[cluster]
	if s == nil {
		s = newSet(true)
		c.sets[cluster] = s
	}
	return s
}

// keepObject drops the managed fields, which may be larger than the object, and annotations.
func keepObject(obj runtime.Object) (*v1alpha1.WireguardPeers, bool) {
	o, ok := obj.(*v1alpha1.WireguardPeers)
	if !ok {
		return nil, false
	}
	o = o.DeepCopy()
	o.ManagedFields, o.Annotations = nil, nil
	return o, true
}

// metaOf names an object as the feed does.
func metaOf(o *v1alpha1.WireguardPeers) keep.Meta {
	return keep.Meta{Name: o.Namespace + "/" + o.Name, UID: string(o.UID), ResourceVersion: o.ResourceVersion}
}

// get returns an object as it is observed; nil: it doesn't exist.
func (c *Controller) get(key Key) *v1alpha1.WireguardPeers {
	return c.ledger.Get(c.Namespace + "/" + key.Object)
}

// counted returns the observed count of a cluster; negative: there is none.
func (c *Controller) counted(cluster string) int {
	if o := c.get(countOf(cluster)); o != nil {
		return o.Spec.Count
	}
	return -1
}

// follow adds changed objects to the writer. It makes no request and never fails.
func (c *Controller) follow(context.Context) error {
	changes, synced := c.objects.Changes()
	c.ledger.Observe(changes, synced)
	if !synced {
		return nil
	}
	var keys []Key
	for _, change := range c.ledger.Changes() {
		o := change.After
		if o == nil {
			o = change.Before
		}
		key := Key{o.Spec.Cluster, o.Name}
		if count := countOf(key.Cluster); key != count {
			c.set(key.Cluster).observe(o.Name, change.After != nil)
			keys = append(keys, count)
		}
		keys = append(keys, key)
	}
	if !c.known.Swap(true) {
		for _, s := range c.order {
			s.trigger.Fire()
		}
	}
	c.write(0, keys...)
	return nil
}

// write schedules objects after a wait, if this replica leads.
func (c *Controller) write(wait time.Duration, keys ...Key) {
	c.mu.Lock()
	w := c.writer
	c.mu.Unlock()
	if w != nil && len(keys) > 0 {
		w.AddAfter(wait, keys...)
	}
}

// everything schedules all objects that exist or are desired.
func (c *Controller) everything() {
	c.mu.Lock()
	sets := maps.Clone(c.sets)
	c.mu.Unlock()
	for cluster, s := range sets {
		c.write(0, append(keysOf(cluster, s.all()), countOf(cluster))...)
	}
}

// Tasks returns the tasks of every replica, which observe the state.
func (c *Controller) Tasks() []run.Task {
	tasks := []run.Task{c.objects, c.loop}
	for _, s := range c.order {
		tasks = append(tasks, s.nodes, s.server, s.loop)
	}
	return tasks
}

// Lead writes objects and Leases until ctx ends. Only one replica may run it.
func (c *Controller) Lead(ctx context.Context) error {
	writer := keep.NewWriter(keep.WriterConfig[Key]{
		Name: v1alpha1.Resource, Apply: c.apply, Tenant: func(k Key) string { return k.Cluster },
		// One worker makes more writes than a cluster's limit allows.
		Workers: 1, Observe: c.Metrics.observe, Logger: c.Logger,
	})
	c.lead(writer)
	defer c.lead(nil)
	c.everything()
	var wg sync.WaitGroup
	defer wg.Wait()
	for _, s := range c.order {
		// Run never fails, only passes do.
		wg.Go(func() { _ = c.newLease(s).Run(ctx) })
	}
	return writer.Run(ctx)
}

func (c *Controller) lead(w *keep.Writer[Key]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writer, c.past = w, keep.NewOverrides[Key](c.Logger)
}

func (c *Controller) term() (*keep.Writer[Key], *keep.Overrides[Key]) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writer, c.past
}

// Ready returns an error until the objects have been listed. It doesn't wait for remotes,
// whose state is in Status.
func (c *Controller) Ready() error {
	if c.known.Load() {
		return nil
	}
	err := c.objects.Err()
	if err == nil {
		err = errors.New("waiting for a response")
	}
	return fmt.Errorf("%s not synced since start: %w", v1alpha1.Resource, err)
}

// Health returns an error while a loop or a write is stuck.
func (c *Controller) Health() error {
	errs := []error{c.loop.Stuck()}
	for _, s := range c.order {
		errs = append(errs, s.loop.Stuck())
	}
	if w, _ := c.term(); w != nil {
		errs = append(errs, w.Stuck(time.Now()))
	}
	return errors.Join(errs...)
}
