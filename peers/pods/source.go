package pods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
	"github.com/kube-semaphore/kube-semaphore/internal/reconcile"
)

// MaxPrefixes is how many prefixes a node publishes. They take half of the room that an
// API server has for annotations at most.
const MaxPrefixes = 3000

// Self is what the API server has told of this node.
type Self struct {
	PodCIDRs []netip.Prefix // of its specification
	Noted
	Carries bool // it has our annotation
}

// Config is what a Source needs.
type Config struct {
	Setting string // one of the names above, or prefixes, comma-separated
	Cluster string // this one
	Node    string // this one
	Client  kube.Client
	Dynamic dynamic.Interface
	// Discovery is asked what is served.
	Discovery rest.Interface
	Server    *kube.Server
	Metrics   *kube.Metrics
	// Self returns this node, and whether it is known.
	Self func() (Self, bool)
	// Changed is called when Look may return something else. It must not block.
	Changed func()
	Logger  *slog.Logger
}

// Source knows the prefixes of this node's pods. Until all that they are made of has
// been read they aren't known, which isn't the same as none.
type Source struct {
	cfg    Config
	list   []netip.Prefix // of the setting
	choice atomic.Pointer[Choice]
	err    atomic.Pointer[error] // of the last attempt to choose
	woken  chan struct{}
	again  reconcile.Backoff // of choose

	pods   *kube.Watch[Pod]
	blocks *kube.Watch[netip.Prefix]
	cilium *kube.Watch[[]netip.Prefix]
	calico *affinities
}

// Known is what is known: prefixes, and whether the node has to publish them, which
// it hasn't where they are its podCIDRs.
type Known struct {
	Prefixes []netip.Prefix // sorted
	Publish  bool
}

// errUnread is an error that isn't one: nothing is wrong yet.
var errUnread = errors.New("not read yet")

// New returns a source that has read nothing.
func New(cfg Config) *Source {
	s := &Source{cfg: cfg, woken: make(chan struct{}, 1), again: reconcile.Backoff{Min: chooseAgain, Max: lookAgain}}
	switch cfg.Setting {
	case Auto:
	case Node, Calico, Cilium, OVN, Pods:
		s.choice.Store(&Choice{cfg.Setting, "SEMAPHORE_WG_POD_CIDRS says so"})
	default:
		for text := range strings.SplitSeq(cfg.Setting, ",") {
			if p, ok := parse(strings.TrimSpace(text)); ok {
				s.list = append(s.list, p)
			}
		}
		s.list = sorted(s.list)
		s.choice.Store(&Choice{"prefixes", "SEMAPHORE_WG_POD_CIDRS lists them"})
	}
	s.calico = &affinities{client: cfg.Dynamic, discovery: cfg.Discovery, node: cfg.Node}
	s.pods = watch(s, "pods", &corev1.Pod{}, podsOf(cfg.Client, cfg.Node), Pod.Equal, func(o runtime.Object) (Pod, bool) {
		p, is := o.(*corev1.Pod)
		if !is {
			return Pod{}, false
		}
		return Trim(p)
	})
	s.blocks = watch(s, "blockaffinities", &unstructured.Unstructured{}, s.calico.listWatch(), func(a, b netip.Prefix) bool { return a == b },
		func(o runtime.Object) (netip.Prefix, bool) {
			u, is := o.(*unstructured.Unstructured)
			if !is {
				return netip.Prefix{}, false
			}
			return block(u, cfg.Node)
		})
	s.cilium = watch(s, "ciliumnodes", &unstructured.Unstructured{}, ciliumNodeOf(cfg.Dynamic, cfg.Node), samePrefixes,
		func(o runtime.Object) ([]netip.Prefix, bool) {
			u, is := o.(*unstructured.Unstructured)
			if !is || u.GetName() != cfg.Node {
				return nil, false
			}
			return ciliumPrefixes(u), true
		})
	return s
}

// String names the source as a task.
func (s *Source) String() string { return "prefixes of pods" }

// Choice returns where the prefixes come from, and whether that is decided.
func (s *Source) Choice() (Choice, bool) {
	if c := s.choice.Load(); c != nil {
		return *c, true
	}
	return Choice{}, false
}

// Err returns why the prefixes aren't known, or not all of them; nil: they are, or
// nothing has gone wrong yet.
func (s *Source) Err() error {
	if _, decided := s.Choice(); !decided {
		if err := s.err.Load(); err != nil && !errors.Is(*err, errUnread) {
			return *err
		}
		return nil
	}
	if _, err := s.Look(); err != nil && !errors.Is(err, errUnread) {
		return err
	}
	return nil
}

// Look returns the prefixes of this node's pods, nil as long as they aren't known. An
// error says why they aren't, or aren't complete. It reads only what is in memory.
func (s *Source) Look() (*Known, error) {
	choice, decided := s.Choice()
	if !decided {
		return nil, errUnread
	}
	if s.list != nil {
		return bounded(s.list)
	}
	if choice.Source == Node {
		return &Known{}, nil
	}
	self, known := s.cfg.Self()
	if !known {
		return nil, errUnread
	}
	switch choice.Source {
	case OVN:
		if self.OVN == "" {
			return nil, fmt.Errorf("the node has no annotation %s", ovnSubnets)
		}
		prefixes, err := ovnPrefixes(self.OVN)
		if err != nil {
			return nil, err
		}
		return bounded(prefixes)
	case Cilium:
		nodes, synced := s.cilium.Snapshot()
		switch {
		case !synced:
			return nil, unread(s.cilium.Err())
		case len(nodes) == 0:
			return nil, fmt.Errorf("there is no CiliumNode %s", s.cfg.Node)
		}
		return bounded(nodes[0])
	}
	pods, synced := s.pods.Snapshot()
	if !synced {
		return nil, unread(s.pods.Err())
	}
	if choice.Source == Pods {
		return bounded(Aggregate(addresses(pods)))
	}
	blocks, synced := s.blocks.Snapshot()
	if !synced {
		return nil, unread(s.blocks.Err())
	}
	return bounded(Beside(sorted(blocks), append(addresses(pods), self.Tunnels...)))
}

// unread is the error of what hasn't been read yet.
func unread(err error) error {
	if err == nil {
		return errUnread
	}
	return err
}

// bounded returns as many prefixes as a node may publish.
func bounded(prefixes []netip.Prefix) (*Known, error) {
	if len(prefixes) > MaxPrefixes {
		return &Known{prefixes[:MaxPrefixes], true}, fmt.Errorf("the node has %d prefixes: the first %d are published", len(prefixes), MaxPrefixes)
	}
	return &Known{prefixes, true}, nil
}

// How soon Auto looks again what there is: while something of it can't be read, or the
// node has no prefixes, less and less often; then as seldom, while nothing but the node's
// podCIDRs is there. All nodes of a cluster ask.
const (
	chooseAgain = 2 * time.Second
	lookAgain   = 5 * time.Minute
	lookTimeout = 30 * time.Second
)

// Run reads until ctx ends.
func (s *Source) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		choice, decided := s.Choice()
		if decided && (choice.Source != Node || s.cfg.Setting != Auto) {
			return s.follow(ctx, choice.Source)
		}
		again := time.After(s.choose(ctx))
		if choice, decided := s.Choice(); decided && choice.Source == Node {
			// Nobody waits for another choice.
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

// Wake has Auto look again, because the node is another than before.
func (s *Source) Wake() {
	select {
	case s.woken <- struct{}{}:
	default:
	}
}

// choose decides, as far as it can, and returns when to look again.
func (s *Source) choose(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	seen, err := s.see(ctx)
	if err != nil {
		// What is there once doesn't go because a request fails.
		s.err.Store(&err)
		return s.again.Next()
	}
	s.err.Store(nil)
	choice := Choose(seen)
	if before, decided := s.Choice(); !decided || before != choice {
		s.choice.Store(&choice)
		s.cfg.Logger.Info("prefixes of this node's pods", "source", choice.Source, "why", choice.Why)
		s.cfg.Changed()
	}
	switch {
	case choice.Source != Node:
		return 0
	case len(seen.Forbidden) > 0 || len(seen.PodCIDRs) == 0:
		return s.again.Next() // It may be that rights come, or prefixes.
	}
	s.again.Reset()
	return lookAgain
}

// follow reads what a source is made of until ctx ends.
func (s *Source) follow(ctx context.Context, source string) error {
	var watches []func(context.Context) error
	switch source {
	case Calico:
		watches = append(watches, s.blocks.Run, s.pods.Run)
	case Cilium:
		watches = append(watches, s.cilium.Run)
	case Pods:
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
