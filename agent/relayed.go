package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// relayed is what semaphore-relay has stored for agents in this cluster: the nodes of all
// remotes, and those of this cluster. One watch reads all of it.
type relayed struct {
	watch       *kube.Watch[*relayedObject]
	leaseReader leaseReader
	cluster     string                     // this one
	clusters    map[string]*relayedCluster // by name
	log         *slog.Logger

	leaseMu   sync.Mutex
	leaseRead time.Time // when lastLease was read
	lastLease map[string]statuspage.RelayContact
}

// leaseReader is the subset of kube.Client's Leases that is needed.
type leaseReader interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*coordinationv1.Lease, error)
}

// relayedCluster is one cluster of it. It implements nodeSource.
type relayedCluster struct {
	name    string
	from    *relayed
	changed func()
	most    int // of nodes, when earlier ones are retained
	seen    relayedVersion
	known   atomic.Pointer[relayedNodes]
}

// relayedObject is an object as it is held. It is immutable, and leads to nothing else: the watch
// measures what it holds.
type relayedObject struct {
	cluster string
	count   int              // of the cluster; negative: it is a node
	node    *peers.Node      // of a remote; nil: it is another object
	local   *peers.LocalNode // of this cluster; nil: it is another object
	version uint64           // resource version; 0: it isn't a number
}

// relayedVersion identifies a state of the objects of a cluster.
type relayedVersion struct {
	objects     int
	sum, newest uint64 // of resource versions
}

// relayedNodes is what is known of a cluster. It is immutable.
type relayedNodes struct {
	nodes  []*peers.Node
	locals []peers.LocalNode
	synced bool // the set was complete since start
	// incomplete is why more nodes may exist; empty: the set is complete.
	incomplete string
	// revision is the newest resource version of the objects; empty: there are none.
	revision string
}

// errNoCRD explains what an API server answers without the CustomResourceDefinition.
var errNoCRD = errors.New("this cluster has no WireguardPeers: apply deploy/relay, or set SEMAPHORE_REMOTES_FROM=api")

// after returns what is known after the objects of the cluster were read as now. Nothing is removed
// because of an incomplete set: nodes of the one before stay, at most most of them.
func (k relayedNodes) after(now relayedNodes, most int) relayedNodes {
	if now.incomplete == "" {
		now.synced = true
		return now
	}
	k.incomplete, k.revision = now.incomplete, now.revision
	if !k.synced {
		return k
	}
	k.nodes = union(now.nodes, k.nodes, most, func(n *peers.Node) string { return n.Name })
	k.locals = union(now.locals, k.locals, most, func(n peers.LocalNode) string { return n.Name })
	return k
}

// union returns all of now, and those of before with other names, most of all.
func union[T any](now, before []T, most int, name func(T) string) []T {
	has := make(map[string]struct{}, len(now))
	for _, n := range now {
		has[name(n)] = struct{}{}
	}
	all := slices.Clone(now)
	for _, n := range before {
		if _, is := has[name(n)]; !is && len(all) < most {
			all = append(all, n)
		}
	}
	return all
}

// newRelayed returns a relayed without objects, which calls changed when sort has something to do.
func newRelayed(cfg *config.Wireguard, client kube.Client, server *kube.Server, metrics *kube.Metrics, log *slog.Logger, changed func()) *relayed {
	r := &relayed{
		leaseReader: client.Leases(cfg.Namespace), clusters: map[string]*relayedCluster{},
		cluster: cfg.ClusterName, log: log,
	}
	most := map[string]int{cfg.ClusterName: 0} // prefixes of a node
	r.clusters[cfg.ClusterName] = newRelayedCluster(r, cfg.ClusterName, 0)
	for i := range cfg.Remotes {
		remote := &cfg.Remotes[i]
		r.clusters[remote.Name] = newRelayedCluster(r, remote.Name, remote.MaxObjects)
		most[remote.Name] = remote.MaxPrefixes
	}
	r.watch = kube.NewWatch(kube.WatchConfig[*relayedObject]{
		Cluster: cfg.ClusterName, Server: server, Kind: v1alpha1.Resource,
		ListWatch: kube.ListWatch(kube.Of(
			func() (kube.Client, error) { return client, nil },
			func(c kube.Client) kube.Resource[*v1alpha1.WireguardPeersList] {
				return c.WireguardPeers(cfg.Namespace)
			}), nil),
		Keep: func(obj runtime.Object) (*relayedObject, bool) {
			o, ok := obj.(*v1alpha1.WireguardPeers)
			if !ok {
				return nil, false
			}
			c, configured := r.clusters[o.Spec.Cluster]
			if !configured {
				return nil, false
			}
			object, err := c.keep(o, most[c.name])
			if err != nil {
				log.Warn("invalid object: its set counts as incomplete", "object", o.Name, "err", err)
			}
			return object, object != nil
		},
		Notify: changed,
		Spread: func() time.Duration { return spread(len(r.clusters[r.cluster].known.Load().locals)) },
		Logger: log, Metrics: metrics,
	})
	return r
}

// of returns the nodes of a remote, own those of this cluster. Changed must not block.
func (r *relayed) of(remote string, changed func()) nodeSource {
	c := r.clusters[remote]
	c.changed = changed
	return c
}

func (r *relayed) own(changed func()) localSource {
	c := r.clusters[r.cluster]
	c.changed = changed
	return relayedLocal{c}
}

// leaseSpacing is the minimum interval of reading Leases, whatever reports are requested, and
// lateSpacing that while one is late.
const leaseSpacing, lateSpacing = 5 * time.Second, time.Second

// leases returns what semaphore-relay says about its contact with the clusters, and what is read
// of its objects.
func (r *relayed) leases(ctx context.Context) map[string]statuspage.RelayContact {
	all := maps.Clone(r.contacts(ctx))
	for name, c := range r.clusters {
		contact := all[name]
		contact.Revision = c.known.Load().revision
		all[name] = contact
	}
	return all
}

// contacts returns what the Leases say.
func (r *relayed) contacts(ctx context.Context) map[string]statuspage.RelayContact {
	r.leaseMu.Lock()
	defer r.leaseMu.Unlock()
	spacing := leaseSpacing
	for _, c := range r.lastLease {
		if c.Late {
			spacing = lateSpacing
		}
	}
	if time.Since(r.leaseRead) < spacing {
		return r.lastLease
	}
	all := make(map[string]statuspage.RelayContact, len(r.clusters))
	for name := range r.clusters {
		var c statuspage.RelayContact
		lease, err := r.leaseReader.Get(ctx, v1alpha1.LeaseName(name), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			c.Late = true
		case err != nil:
			c.Error = err.Error()
		default:
			c = contact(lease, time.Now())
		}
		all[name] = c
	}
	r.leaseRead, r.lastLease = time.Now(), all
	return all
}

// contact returns what a Lease says.
func contact(lease *coordinationv1.Lease, now time.Time) statuspage.RelayContact {
	renewed, seconds := lease.Spec.RenewTime, lease.Spec.LeaseDurationSeconds
	if renewed == nil || seconds == nil {
		return statuspage.RelayContact{Late: true}
	}
	return statuspage.RelayContact{Renewed: &renewed.Time, Late: now.Sub(renewed.Time) > time.Duration(*seconds)*time.Second}
}

// maxRetained is the default of relayedCluster.most.
const maxRetained = 10_000

func newRelayedCluster(from *relayed, name string, most int) *relayedCluster {
	c := &relayedCluster{name: name, from: from, most: cmp.Or(most, maxRetained), changed: func() {}}
	c.known.Store(&relayedNodes{})
	return c
}

// keep returns an object as it is held; nil: it isn't, as one whose name the schema wouldn't admit:
// without a node it would be taken for the count. Nodes have at most maxPrefixes prefixes.
func (c *relayedCluster) keep(o *v1alpha1.WireguardPeers, maxPrefixes int) (*relayedObject, error) {
	if o.Name != o.Spec.ObjectName() {
		return nil, nil
	}
	kept := &relayedObject{cluster: c.name, count: -1}
	kept.version, _ = strconv.ParseUint(o.ResourceVersion, 10, 64)
	switch {
	case o.Spec.Name == "":
		kept.count = o.Spec.Count
	case c.name == c.from.cluster:
		local, err := peers.LocalFromStored(&o.Spec)
		if err != nil {
			return nil, err
		}
		kept.local = &local
	default:
		kept.node = peers.FromStored(&o.Spec, maxPrefixes)
	}
	return kept, nil
}

// sort updates what is known of the clusters whose objects have changed.
func (r *relayed) sort(context.Context) error {
	objects, synced := r.watch.Snapshot()
	if !synced {
		return nil
	}
	seen := make(map[string]relayedVersion, len(r.clusters))
	for _, o := range objects {
		v := seen[o.cluster]
		seen[o.cluster] = relayedVersion{v.objects + 1, v.sum + o.version, max(v.newest, o.version)}
	}
	for name, c := range r.clusters {
		before := c.known.Load()
		if seen[name] == c.seen && (before.synced || before.incomplete != "") {
			continue
		}
		c.seen = seen[name]
		after := before.after(c.collect(objects), c.most)
		if after.incomplete != before.incomplete {
			r.log.Info("set of nodes", "cluster", name, "incomplete", after.incomplete, "nodes", max(len(after.nodes), len(after.locals)))
		}
		c.known.Store(&after)
		c.changed()
	}
	return nil
}

// collect returns what the objects say about the cluster.
func (c *relayedCluster) collect(objects []*relayedObject) (now relayedNodes) {
	counted := -1
	for _, o := range objects {
		switch {
		case o.cluster != c.name:
		case o.node != nil:
			now.nodes = append(now.nodes, o.node)
		case o.local != nil:
			now.locals = append(now.locals, *o.local)
		default:
			counted = o.count
		}
	}
	if c.seen.newest > 0 {
		now.revision = strconv.FormatUint(c.seen.newest, 10)
	}
	now.incomplete = v1alpha1.Incomplete(counted, len(now.nodes)+len(now.locals))
	return now
}

// Snapshot implements nodeSource.
func (c *relayedCluster) Snapshot() ([]*peers.Node, bool) {
	known := c.known.Load()
	return known.nodes, known.synced
}

// Synced implements nodeSource.
func (c *relayedCluster) Synced() bool { return c.known.Load().synced }

// String names the source in status.
func (c *relayedCluster) String() string { return "objects of semaphore-relay for " + c.name }

// Decided implements peers.Source: semaphore-relay reads whole nodes.
func (c *relayedCluster) Decided(time.Time, bool) time.Time { return time.Time{} }

func (c *relayedCluster) tasks() []run.Task { return nil }

func (c *relayedCluster) status() statuspage.Connection {
	return kube.Connection(c.Synced(), c.from.watch.LastContact(), c.Err())
}

// relayedLocal is this cluster's own nodes. It implements localSource.
type relayedLocal struct{ *relayedCluster }

// Snapshot implements localSource.
func (l relayedLocal) Snapshot() ([]peers.LocalNode, bool) {
	known := l.known.Load()
	return known.locals, known.synced
}

// Len implements localSource.
func (l relayedLocal) Len() int { return len(l.known.Load().locals) }

// Err implements nodeSource.
func (c *relayedCluster) Err() error {
	if err := c.from.watch.Err(); err != nil {
		if apierrors.IsNotFound(err) {
			return fmt.Errorf("%w (%w)", errNoCRD, err)
		}
		return err
	}
	if why := c.known.Load().incomplete; why != "" {
		return fmt.Errorf("incomplete, the last known nodes stay: %s", why)
	}
	return nil
}
