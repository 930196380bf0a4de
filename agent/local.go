package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-semaphore/kube-semaphore/internal/config"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/run"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

const (
	// Service ranges rarely change, and every agent of the cluster polls them.
	servicesPeriod  = 10 * time.Minute
	servicesTimeout = 30 * time.Second
	// listsPerSecond is the rate to which the lists of all nodes of this cluster are spread
	// after a restart of the API server that they read.
	listsPerSecond = 50
)

// local tracks the addresses of this cluster, which no endpoint of a remote may have. It
// has its own watch beside that of this node, so that publishing doesn't wait for a list
// of all nodes.
type local struct {
	subnets  []netip.Prefix // as configured
	client   kube.Client
	nodes    localSource
	watch    run.Task // of nodes; nil: that of semaphore-relay's objects
	log      *slog.Logger
	happened func(change)

	services atomic.Pointer[[]netip.Prefix] // nil: not read yet
	known    atomic.Pointer[peers.Local]    // nil: not read yet
	unlogged bool                           // missing service ranges were not logged yet
}

// localSource is where the nodes of this cluster come from: its API server, or what
// semaphore-relay has stored there.
type localSource interface {
	Snapshot() ([]peers.LocalNode, bool)
	Synced() bool
	Len() int
	Err() error
	String() string
}

func newLocal(cfg *config.Wireguard, client kube.Client, server *kube.Server, relayed *relayed, metrics *kube.Metrics, log *slog.Logger, happened func(change)) *local {
	l := &local{subnets: cfg.LocalSubnets, client: client, log: log, happened: happened, unlogged: true}
	changed := func() { happened(localNodesChanged) }
	if relayed != nil {
		l.nodes = relayed.own(changed)
		return l
	}
	nodes := kube.NewWatch(kube.WatchConfig[peers.LocalNode]{
		Cluster: cfg.ClusterName, Server: server, Kind: "nodes",
		ListWatch: kube.ListWatch(kube.Of(func() (kube.Client, error) { return client, nil }, kube.Nodes), nil),
		Keep: func(obj runtime.Object) (peers.LocalNode, bool) {
			n, ok := obj.(*corev1.Node)
			if !ok {
				return peers.LocalNode{}, false
			}
			return peers.TrimLocalNode(n), true
		},
		Equal:  peers.LocalNode.Equal,
		Notify: changed,
		Spread: l.spread,
		Logger: log, Metrics: metrics,
	})
	l.nodes, l.watch = nodes, nodes
	return l
}

// spread returns the time over which this cluster's agents spread lists.
func (l *local) spread() time.Duration { return spread(l.nodes.Len()) }

// spread returns the time over which the agents of so many nodes spread lists.
func spread(nodes int) time.Duration { return time.Duration(nodes) * time.Second / listsPerSecond }

// build computes known, once nodes and service ranges have been read.
func (l *local) build(context.Context) error {
	nodes, synced := l.nodes.Snapshot()
	services := l.services.Load()
	if synced && services == nil {
		l.happened(localAPIAnswers)
	}
	if !synced || services == nil {
		return nil
	}
	if known := peers.NewLocal(nodes, *services, l.subnets); !reflect.DeepEqual(known, l.known.Load()) {
		l.known.Store(known)
		l.happened(clusterAddrsChanged)
	}
	return nil
}

// readServices reads the service ranges from ServiceCIDR objects. Kubernetes before 1.33
// has none, which is no error: the ranges stay unknown. An API server that has just
// started may forbid everything until it has loaded its roles, so "forbidden" counts only
// once the nodes have been read.
func (l *local) readServices(ctx context.Context) error {
	settled := l.nodes.Synced()
	asking, cancel := context.WithTimeout(ctx, servicesTimeout)
	defer cancel()
	list, err := l.client.ServiceCIDRs().List(asking, metav1.ListOptions{})
	if err != nil {
		if !settled || !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return fmt.Errorf("read the ranges of services: %w", err)
		}
		// Keep the ranges of an earlier response.
		if l.services.CompareAndSwap(nil, &[]netip.Prefix{}) {
			l.happened(localNodesChanged)
		}
		if l.unlogged {
			l.unlogged = false
			l.log.Info("service ranges of this cluster unknown: set SEMAPHORE_LOCAL_SUBNETS to check endpoints against them", "err", err)
		}
		return nil
	}
	ranges := []netip.Prefix{}
	for i := range list.Items {
		for _, cidr := range list.Items[i].Spec.CIDRs {
			if p, err := netip.ParsePrefix(cidr); err == nil {
				ranges = append(ranges, p.Masked())
			}
		}
	}
	slices.SortFunc(ranges, netip.Prefix.Compare)
	if before := l.services.Swap(&ranges); before == nil || !slices.Equal(*before, ranges) {
		l.happened(localNodesChanged)
	}
	return nil
}

// onLink returns the IPv4 broadcast addresses of a link (RFC 919, and that of 4.2BSD):
// packets to them reach nodes of this cluster, too.
func onLink(p netip.Prefix) []netip.Addr {
	if !p.Addr().Is4() || p.Bits() >= 31 {
		return nil
	}
	last := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		last[bit/8] |= 0x80 >> (bit % 8)
	}
	return []netip.Addr{p.Masked().Addr(), netip.AddrFrom4(last)}
}
