package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/testing/tools"
	"github.com/kube-semaphore/kube-semaphore/peers"
)

// movingNodes is how many nodes the remote cluster has in which pods move, and
// publishers how many of them have a machine and an agent.
const (
	movingNodes = 1000
	publishers  = 4
	blocks      = 4
)

// reachedWithin bounds the time until a moved pod is reached from the other cluster, at the
// 99th percentile.
const reachedWithin = 200 * time.Millisecond

// moves measures how soon moved prefixes work: blocks and single addresses from their
// publication by a remote's nodes to our device, and pods with an address of another node's
// block from the write of their status to the first answer.
func (b *bench) moves(ctx context.Context, a *arena) error {
	clusters, err := b.clusters(ctx, a, testbed.ClusterConfig{Name: "aws"}, testbed.ClusterConfig{
		Name: "gcp", PodSubnets: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")},
	})
	if err != nil {
		return err
	}
	local, remote := clusters[0], clusters[1]
	root, err := tools.Root(ctx)
	if err != nil {
		return err
	}
	if err := remote.Apply(ctx, filepath.Join(root, "deploy", "wireguard", "pods", "pods", "rbac.yaml")); err != nil {
		return err
	}
	s := &scale{bench: b}
	b.say("creating %d nodes", movingNodes)
	if s.crowd, err = newCrowd(ctx, remote, movingNodes, local.Name, blocks, 0); err != nil {
		return err
	}
	var there []*testbed.Node
	for range publishers {
		node, err := remote.AddNode(ctx, testbed.NodeConfig{})
		if err != nil {
			return err
		}
		publisher, err := programs.PrepareAgent(ctx, a.agent, node, local)
		if err != nil {
			return err
		}
		publisher.Env["SEMAPHORE_WG_POD_CIDRS"] = "pods"
		if err := publisher.Start(); err != nil {
			return err
		}
		there = append(there, node)
	}
	here, err := local.AddNode(ctx, testbed.NodeConfig{})
	if err != nil {
		return err
	}
	if s.agent, err = programs.PrepareAgent(ctx, a.agent, here, remote); err != nil {
		return err
	}
	s.agent.Env["SEMAPHORE_WG_BACKEND"] = "userspace"
	s.agent.Env["SEMAPHORE_LOG_FORMAT"] = "json"
	s.agent.Env[programs.Variable(remote.Name, "WG_MAX_PEERS")] = strconv.Itoa(2 * movingNodes)
	s.log = a.tb.LogPath(here.Name + "-agent")
	_, log, err := s.startAgent(ctx, "debug")
	if err != nil {
		return err
	}
	if err := s.scatter(ctx, log); err != nil {
		return err
	}
	if err := s.moveBlocks(ctx, log); err != nil {
		return err
	}
	// What wireguard-go says at level debug is a line for each handshake.
	if err := s.agent.Stop(ctx); err != nil {
		return err
	}
	s.agent.Env["SEMAPHORE_LOG_LEVEL"] = "info"
	if err := s.agent.Start(); err != nil {
		return err
	}
	return s.startPods(ctx, remote, here, there)
}

// moveBlocks lets nodes of the crowd publish blocks that others have just given up,
// and in turn single addresses out of others' blocks.
func (s *scale) moveBlocks(ctx context.Context, log *journal) error {
	watched, err := s.crowd.watch(ctx)
	if err != nil {
		return err
	}
	defer watched.stop()
	if _, err := log.read(); err != nil {
		return err
	}
	const long = 20 * time.Second
	s.say("%d blocks or addresses move per second", changesPerSecond)
	var (
		mu  sync.Mutex
		all [2][]changed // blocks, addresses
	)
	size := len(s.crowd.members)
	if _, err := pace(ctx, time.Second/changesPerSecond, long, func(i int) error {
		// Each node takes part once, spread over the crowd.
		from, to := 2*i*7%size, (2*i+1)*7%size
		giver, taker := &s.crowd.members[from], &s.crowd.members[to]
		last := len(giver.peer.allowedIPs) - 1
		moving := giver.peer.allowedIPs[last]
		if i%2 == 1 {
			moving = netip.PrefixFrom(moving.Addr().Next(), 32)
		} else {
			giver.peer.allowedIPs = giver.peer.allowedIPs[:last]
			if err := s.crowd.publish(ctx, from); err != nil {
				return err
			}
		}
		taker.peer.allowedIPs = append(slices.Clone(taker.peer.allowedIPs), moving)
		sent := time.Now()
		if err := s.crowd.publish(ctx, to); err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all[i%2] = append(all[i%2], changed{member: to, sent: sent, answered: time.Now()})
		return nil
	}); err != nil {
		return err
	}
	if err := measure.Pause(ctx, time.Second); err != nil {
		return err
	}
	entries, err := log.read()
	if err != nil {
		return err
	}
	given := additions(writes(entries))
	for kind, moved := range all {
		for i := range moved {
			c := &moved[i]
			m := &s.crowd.members[c.member]
			c.seen = watched.seen(m.name)
			for _, at := range given[shortKey(m.peer.key)] {
				if c.applied.IsZero() && at.After(c.sent) {
					c.applied = at
				}
			}
			if c.applied.IsZero() {
				return fmt.Errorf("what %s publishes never reached the device", m.name)
			}
			delete(given, shortKey(m.peer.key))
		}
		what := []string{"a block that moved, on the device", "a borrowed address, on the device"}[kind]
		var ours, beside []float64
		for _, c := range moved {
			ours, beside = append(ours, c.applied.Sub(c.sent).Seconds()), append(beside, c.seen.Sub(c.sent).Seconds())
		}
		s.soon(what, "bare watch of nodes", ours, beside)
	}
	s.table.note("%d moves; peers that got allowed IPs besides: %d", len(all[0])+len(all[1]), len(given))
	return nil
}

// additions returns when peers got more allowed IPs, without those that got all of theirs
// because they were replaced, as those are that don't answer; and without those that free
// unused ones.
func additions(written []write) map[string][]time.Time {
	given := map[string][]time.Time{}
	made := ""
	for i, w := range written {
		switch {
		case w.what == "Created":
			made = w.peer
		case i > 0 && written[i-1].peer != w.peer:
			made = ""
		}
		if w.what == "Adding allowedip" && made != w.peer {
			given[w.peer] = append(given[w.peer], w.at)
		}
	}
	return given
}

// soon adds what one of two and one of a hundred took, and says whether that is soon
// enough.
func (s *scale) soon(what, than string, ours, beside []float64) {
	slices.Sort(ours)
	slices.Sort(beside)
	for name, q := range map[string]float64{"p50": 0.5, "p99": 0.99} {
		s.table.add(row{what: what + ", " + name, beside: than, pairs: []pair{{measure.Quantile(ours, q), measure.Quantile(beside, q)}}, unit: duration})
	}
	verdict := "met"
	if measure.Quantile(ours, 0.99) > reachedWithin.Seconds() {
		verdict = "MISSED"
	}
	s.table.note("%s: p99 %s of %d, at most %s; within %v %s", what, seconds(measure.Quantile(ours, 0.99)), len(ours), seconds(ours[len(ours)-1]), reachedWithin, verdict)
}

// start is a pod that starts with an address out of another node's block.
type start struct {
	addr      netip.Addr
	pod       *corev1.Pod
	sent      time.Time // its status, to the API server
	seen      time.Time // of the pod, by a bare watch
	published time.Time // by its node's agent, as a bare watch says
	reached   time.Time // from the other cluster
}

// startPods starts pods on nodes with agents, and sends requests from the other cluster until
// they answer.
func (s *scale) startPods(ctx context.Context, remote *testbed.Cluster, here *testbed.Node, there []*testbed.Node) error {
	const starts = 20 * changesPerSecond
	s.say("preparing %d pods", starts+publishers)
	all := make([]*start, starts+publishers)
	for i := range all {
		// None beside another one: each is a prefix of its own.
		block := s.crowd.members[(i*7+3)%len(s.crowd.members)].peer.allowedIPs[1]
		p := &start{addr: block.Addr().Next()}
		node := there[i%publishers]
		var err error
		if p.pod, err = remote.Client().CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i)},
			Spec:       corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "main", Image: "example.org/testbed"}}},
		}, metav1.CreateOptions{}); err != nil {
			return err
		}
		// The kernel answers in its place.
		if _, err := node.Run(ctx, "ip", "address", "add", p.addr.String()+"/32", "dev", "lo"); err != nil {
			return err
		}
		all[i] = p
	}
	begin := func(ctx context.Context, p *start) error {
		p.pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: p.addr.String(), PodIPs: []corev1.PodIP{{IP: p.addr.String()}}}
		p.sent = time.Now()
		if _, err := remote.Client().CoreV1().Pods("default").UpdateStatus(ctx, p.pod, metav1.UpdateOptions{}); err != nil {
			return err
		}
		err := here.PingUntilReply(ctx, p.addr, askAgain)
		p.reached = time.Now()
		return err
	}
	// One on each node first, so that there are sessions.
	waiting, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New("not within two minutes"))
	defer cancel()
	if err := testbed.InParallel(waiting, publishers, func(ctx context.Context, i int) error { return begin(ctx, all[i]) }); err != nil {
		return err
	}
	if err := measure.Pause(ctx, settling); err != nil {
		return err
	}
	all = all[publishers:]
	watched, err := watchPods(ctx, remote, all)
	if err != nil {
		return err
	}
	defer watched.stop()
	s.say("%d pods start per second", changesPerSecond)
	if _, err := pace(waiting, time.Second/changesPerSecond, starts*time.Second/changesPerSecond, func(i int) error {
		if i >= len(all) {
			return nil
		}
		return begin(waiting, all[i])
	}); err != nil {
		return err
	}
	watched.mu.Lock()
	defer watched.mu.Unlock()
	var published, reached, seen []float64
	for _, p := range all {
		if p.sent.IsZero() {
			continue // A busy machine starts fewer.
		}
		if p.reached.IsZero() || p.published.IsZero() || p.seen.IsZero() {
			return fmt.Errorf("pod %s: seen %v, published %v, reached %v", p.pod.Name, p.seen, p.published, p.reached)
		}
		published = append(published, p.published.Sub(p.sent).Seconds())
		reached = append(reached, p.reached.Sub(p.sent).Seconds())
		seen = append(seen, p.seen.Sub(p.sent).Seconds())
	}
	s.soon("a pod with a borrowed address, published", "bare watch of pods", published, slices.Clone(seen))
	s.soon("a pod with a borrowed address, reached", "bare watch of pods", reached, seen)
	return nil
}

// askAgain is how soon a pod that hasn't answered is asked again.
const askAgain = 2 * time.Millisecond

// podWatch notes when others hear of pods, and of the prefixes of their nodes.
type podWatch struct {
	pods, nodes watch.Interface
	mu          sync.Mutex
}

func watchPods(ctx context.Context, c *testbed.Cluster, all []*start) (*podWatch, error) {
	byName, byPrefix := map[string]*start{}, map[string]*start{}
	for _, p := range all {
		byName[p.pod.Name], byPrefix[netip.PrefixFrom(p.addr, 32).String()] = p, p
	}
	list, err := c.Client().CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	options := metav1.ListOptions{ResourceVersion: list.ResourceVersion}
	w := &podWatch{}
	if w.pods, err = c.Client().CoreV1().Pods("default").Watch(ctx, options); err != nil {
		return nil, err
	}
	if w.nodes, err = c.Client().CoreV1().Nodes().Watch(ctx, options); err != nil {
		w.pods.Stop()
		return nil, err
	}
	note := func(at *time.Time) {
		if at.IsZero() {
			*at = time.Now()
		}
	}
	go func() {
		for event := range w.pods.ResultChan() {
			pod, is := event.Object.(*corev1.Pod)
			if is && byName[pod.Name] != nil && pod.Status.PodIP != "" {
				w.mu.Lock()
				note(&byName[pod.Name].seen)
				w.mu.Unlock()
			}
		}
	}()
	go func() {
		for event := range w.nodes.ResultChan() {
			node, is := event.Object.(*corev1.Node)
			if !is {
				continue
			}
			w.mu.Lock()
			for prefix := range strings.SplitSeq(node.Annotations[peers.PodCIDRsAnnotation], ",") {
				if p := byPrefix[prefix]; p != nil {
					note(&p.published)
				}
			}
			w.mu.Unlock()
		}
	}()
	return w, nil
}

func (w *podWatch) stop() {
	w.pods.Stop()
	w.nodes.Stop()
}
