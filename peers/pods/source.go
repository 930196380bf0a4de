package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/ipam"
	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
)

// MaxPrefixes bounds the prefixes that a node publishes, to at most half of the size that
// an API server allows for annotations.
const MaxPrefixes = 3000

// Self is this node's object, trimmed.
type Self struct {
	PodCIDRs []netip.Prefix // of its spec
	ipam.Noted
	// Plain is set if PodCIDRs can be published: there are some, and the admission policy
	// accepts them.
	Plain   bool
	Carries bool // it has our annotation, with other prefixes than PodCIDRs
}

// Config describes a Source.
type Config struct {
	Setting   string // one of the names above, or prefixes, comma-separated
	Cluster   string // this one
	Node      string // this one
	Client    kube.Client
	Dynamic   dynamic.Interface
	Discovery rest.Interface
	Server    *kube.Server
	Metrics   *kube.Metrics
	// Self returns this node, and whether it is known.
	Self func() (Self, bool)
	// Changed is called when the result of Current may have changed. It must not block.
	Changed func()
	Logger  *slog.Logger
}

// Source provides the pod prefixes of this node. They are unknown, which is not the same
// as none, until all inputs have been read.
type Source struct {
	cfg    Config
	list   []netip.Prefix // of the setting
	choice atomic.Pointer[ipam.Choice]
	err    atomic.Pointer[error] // of the last choose
	woken  chan struct{}
	again  wait.Backoff // of choose

	pods   *kube.Watch[Pod]
	blocks *kube.Watch[netip.Prefix]
	cilium *kube.Watch[[]netip.Prefix]
	calico *affinities
}

// Known are the known prefixes.
type Known struct {
	Prefixes []netip.Prefix // sorted
	Publish  bool           // false: the node's podCIDRs hold, and can't be published
}

// errUnread means that inputs have not been read yet. It is not reported as a fault.
var errUnread = errors.New("not read yet")

// New returns a source.
func New(cfg Config) *Source {
	s := &Source{cfg: cfg, woken: make(chan struct{}, 1), again: reconcile.Backoff(chooseAgain, rechooseInterval)}
	switch cfg.Setting {
	case ipam.Auto:
	case ipam.Node, ipam.Calico, ipam.Cilium, ipam.OVN, ipam.Pods:
		s.choice.Store(&ipam.Choice{Source: cfg.Setting, Why: "configured by SEMAPHORE_WG_POD_CIDRS"})
	default:
		for text := range strings.SplitSeq(cfg.Setting, ",") {
			if p, ok := ipam.Parse(strings.TrimSpace(text)); ok {
				s.list = append(s.list, p)
			}
		}
		s.list = ipam.Sorted(s.list)
		s.choice.Store(&ipam.Choice{Source: "prefixes", Why: "listed in SEMAPHORE_WG_POD_CIDRS"})
	}
	s.calico = &affinities{client: cfg.Dynamic, discovery: cfg.Discovery, node: cfg.Node}
	s.pods = watch(s, "pods", podsOf(cfg.Client, cfg.Node), Pod.Equal, func(o runtime.Object) (Pod, bool) {
		p, is := o.(*corev1.Pod)
		if !is {
			return Pod{}, false
		}
		return Trim(p)
	})
	s.blocks = watch(s, "blockaffinities", s.calico.listWatch(), func(a, b netip.Prefix) bool { return a == b },
		func(o runtime.Object) (netip.Prefix, bool) {
			u, is := o.(*unstructured.Unstructured)
			if !is {
				return netip.Prefix{}, false
			}
			return ipam.Block(u, cfg.Node)
		})
	s.cilium = watch(s, "ciliumnodes", ciliumNodeOf(cfg.Dynamic, cfg.Node), samePrefixes,
		func(o runtime.Object) ([]netip.Prefix, bool) {
			u, is := o.(*unstructured.Unstructured)
			if !is || u.GetName() != cfg.Node {
				return nil, false
			}
			return ipam.CiliumPrefixes(u), true
		})
	return s
}

// String names the source as a task.
func (s *Source) String() string { return "prefixes of pods" }

// Choice returns the source of the prefixes, and whether it is decided.
func (s *Source) Choice() (ipam.Choice, bool) {
	if c := s.choice.Load(); c != nil {
		return *c, true
	}
	return ipam.Choice{}, false
}

// Err returns why the prefixes are unknown or incomplete; nil also if they just have not
// been read yet.
func (s *Source) Err() error {
	if _, decided := s.Choice(); !decided {
		if err := s.err.Load(); err != nil && !errors.Is(*err, errUnread) {
			return *err
		}
		return nil
	}
	if _, err := s.Current(); err != nil && !errors.Is(err, errUnread) {
		return err
	}
	return nil
}

// Current returns the pod prefixes of this node from memory; nil: unknown. The error is
// why they are unknown or incomplete.
func (s *Source) Current() (*Known, error) {
	choice, decided := s.Choice()
	if !decided {
		return nil, errUnread
	}
	if s.list != nil {
		return bounded(s.list)
	}
	self, known := s.cfg.Self()
	if !known {
		return nil, errUnread
	}
	switch choice.Source {
	case ipam.Node:
		if !self.Plain {
			return &Known{}, nil
		}
		return bounded(ipam.Sorted(slices.Clone(self.PodCIDRs)))
	case ipam.OVN:
		if self.OVN == "" {
			return nil, fmt.Errorf("the node has no annotation %s", ipam.OVNSubnets)
		}
		prefixes, err := ipam.OVNPrefixes(self.OVN)
		if err != nil {
			return nil, err
		}
		return bounded(prefixes)
	case ipam.Cilium:
		nodes, synced := s.cilium.Snapshot()
		switch {
		case !synced:
			return nil, unread(s.cilium.Err())
		case len(nodes) == 0:
			return nil, fmt.Errorf("no CiliumNode %s exists", s.cfg.Node)
		}
		return bounded(nodes[0])
	}
	pods, synced := s.pods.Snapshot()
	if !synced {
		return nil, unread(s.pods.Err())
	}
	if choice.Source == ipam.Pods {
		return bounded(Aggregate(addresses(pods)))
	}
	blocks, synced := s.blocks.Snapshot()
	if !synced {
		return nil, unread(s.blocks.Err())
	}
	return bounded(Beside(ipam.Sorted(blocks), append(addresses(pods), self.Tunnels...)))
}

// unread returns err, or errUnread if that is nil.
func unread(err error) error {
	if err == nil {
		return errUnread
	}
	return err
}

// bounded truncates the prefixes to MaxPrefixes, with an error.
func bounded(prefixes []netip.Prefix) (*Known, error) {
	if len(prefixes) > MaxPrefixes {
		return &Known{prefixes[:MaxPrefixes], true}, fmt.Errorf("the node has %d prefixes: the first %d are published", len(prefixes), MaxPrefixes)
	}
	return &Known{prefixes, true}, nil
}

// Intervals of choosing again: with exponential back-off while inputs can't be read or the
// node has no prefixes, then every rechooseInterval while the choice is the node's podCIDRs. All
// nodes of a cluster do so.
const (
	chooseAgain      = 2 * time.Second
	rechooseInterval = 5 * time.Minute
	chooseTimeout    = 30 * time.Second
)

// Run chooses the source and runs its watches until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		choice, decided := s.Choice()
		if decided && (choice.Source != ipam.Node || s.cfg.Setting != ipam.Auto) {
			return s.follow(ctx, choice.Source)
		}
		again := time.After(s.choose(ctx))
		if choice, decided := s.Choice(); decided && choice.Source == ipam.Node {
			// The prefixes are known: limit how often Wake leads to a new choice.
			select {
			case <-ctx.Done():
			case <-time.After(chooseAgain):
			}
		}
		select {
		case <-ctx.Done():
		case <-again:
		case <-s.woken:
		}
	}
	return nil
}

// Wake makes Auto choose again, because this node's object has changed.
func (s *Source) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// choose updates the choice, and returns when to choose again.
func (s *Source) choose(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, chooseTimeout)
	defer cancel()
	seen, err := s.inspect(ctx)
	if err != nil {
		// A failed request doesn't change the choice.
		s.err.Store(&err)
		if errors.Is(err, errUnread) {
			return rechooseInterval // This node's object wakes it.
		}
		return s.again.Step()
	}
	s.err.Store(nil)
	choice := ipam.Choose(seen)
	if before, decided := s.Choice(); !decided || before != choice {
		s.choice.Store(&choice)
		s.cfg.Logger.Info("prefixes of this node's pods", "source", choice.Source, "why", choice.Why)
		s.cfg.Changed()
	}
	switch {
	case choice.Source != ipam.Node:
		return 0
	case len(seen.Forbidden) > 0 || len(seen.PodCIDRs) == 0:
		return s.again.Step() // Permissions or prefixes may be added.
	}
	s.again = reconcile.Backoff(chooseAgain, rechooseInterval)
	return rechooseInterval
}

// follow runs the watches of a source until ctx ends.
func (s *Source) follow(ctx context.Context, source string) error {
	var watches []func(context.Context) error
	switch source {
	case ipam.Calico:
		watches = append(watches, s.blocks.Run, s.pods.Run)
	case ipam.Cilium:
		watches = append(watches, s.cilium.Run)
	case ipam.Pods:
		watches = append(watches, s.pods.Run)
	}
	var running sync.WaitGroup
	for _, run := range watches {
		running.Go(func() { _ = run(ctx) }) // It returns nil when ctx ends, and never before.
	}
	<-ctx.Done()
	running.Wait()
	return nil
}
