package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
)

// changed is one change of a node.
type changed struct {
	member         int
	sent, answered time.Time // the request to the API server
	seen           time.Time // by a bare watch
	applied        time.Time // by the agent's device
}

// change lets nodes of the crowd change their endpoint, each once per round, at
// changesPerSecond for a while.
func (s *scale) change(ctx context.Context, round int, d time.Duration, note func(changed)) (int, error) {
	perRound := int(d.Seconds()*changesPerSecond) + 1
	return pace(ctx, time.Second/changesPerSecond, d, func(i int) error {
		// Spread over the crowd.
		member := (round*perRound + i) * 7 % len(s.crowd.members)
		sent := time.Now()
		if err := s.crowd.move(ctx, member); err != nil {
			return err
		}
		if note != nil {
			note(changed{member: member, sent: sent, answered: time.Now()})
		}
		return nil
	})
}

// latency measures from the API to the device, and the writes to the device. The
// agent logs at level debug for that, so this isn't the run in which processor
// time counts.
func (s *scale) latency(ctx context.Context) (err error) {
	_, log, err := s.startAgent(ctx, "debug")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.stopAgent(ctx)) }()
	if err := s.scatter(ctx, log); err != nil {
		return err
	}
	watched, err := s.crowd.watch(ctx)
	if err != nil {
		return err
	}
	defer watched.stop()
	if _, err := log.read(); err != nil {
		return err
	}

	s.say("%d nodes change per second", changesPerSecond)
	var (
		mu  sync.Mutex
		all []changed
	)
	const long = 20 * time.Second
	if _, err := s.change(ctx, 0, long, func(c changed) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, c)
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
	written := writes(entries)
	if err := s.judge(all, written, watched); err != nil {
		return err
	}

	s.say("nodes report and nothing changes")
	beats, err := s.crowd.live(ctx, long/2)
	if err != nil {
		return err
	}
	if entries, err = log.read(); err != nil {
		return err
	}
	s.table.note("%d reports of nodes that didn't change: %d peers touched", beats, len(writes(entries)))
	return nil
}

// judge matches changes with the writes to the device.
func (s *scale) judge(all []changed, written []write, watched *bareWatch) error {
	applied, err := s.crowd.applied(written)
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b changed) int { return a.sent.Compare(b.sent) })
	var missing int
	for i := range all {
		c := &all[i]
		at := applied[c.member]
		if len(at) == 0 {
			missing++
			continue
		}
		c.applied, c.seen = at[0], watched.seen(s.crowd.members[c.member].name)
	}
	if missing > 0 {
		return fmt.Errorf("%d of %d changes never reached the device", missing, len(all))
	}
	touched := len(applied)
	for _, c := range all {
		delete(applied, c.member)
	}
	s.table.note("%d changed nodes: %d peers touched (%.2f for each) by %d lines of configuration; peers touched that hadn't changed: %d",
		len(all), touched, float64(touched)/float64(len(all)), len(written), len(applied))
	s.reportLatency(all)
	return nil
}

// applied returns when each member was written to a device.
func (c *crowd) applied(written []write) (map[int][]time.Time, error) {
	byKey := make(map[string]int, len(c.members))
	for i, m := range c.members {
		byKey[shortKey(m.peer.key)] = i
	}
	applied := map[int][]time.Time{}
	for _, w := range written {
		member, known := byKey[w.peer]
		if !known {
			return nil, fmt.Errorf("%q was written about an unknown peer %s", w.what, w.peer)
		}
		applied[member] = append(applied[member], w.at)
	}
	return applied, nil
}

// reportLatency compares the way to the device with the way to a bare watch,
// over as many stretches of time as there are pairs elsewhere.
func (s *scale) reportLatency(all []changed) {
	var middle, worst []pair
	for stretch := range slices.Chunk(all, max(1, (len(all)+s.pairs-1)/s.pairs)) {
		device := latencies(stretch, func(c changed) time.Duration { return c.applied.Sub(c.sent) })
		watch := latencies(stretch, func(c changed) time.Duration { return c.seen.Sub(c.sent) })
		middle = append(middle, pair{measure.Quantile(device, 0.5), measure.Quantile(watch, 0.5)})
		worst = append(worst, pair{measure.Quantile(device, 0.99), measure.Quantile(watch, 0.99)})
	}
	s.table.add(row{what: "API write sent to device, p50", beside: "bare watch", pairs: middle, unit: duration})
	s.table.add(row{what: "API write sent to device, p99", beside: "bare watch", pairs: worst, unit: duration})
	answered := latencies(all, func(c changed) time.Duration { return c.applied.Sub(c.answered) })
	s.table.note("from the API server's answer to the device: p50 %s, p99 %s, at most %s",
		seconds(measure.Quantile(answered, 0.5)), seconds(measure.Quantile(answered, 0.99)), seconds(answered[len(answered)-1]))
}

// latencies returns one time of each change, in seconds, sorted.
func latencies(all []changed, of func(changed) time.Duration) []float64 {
	values := make([]float64, 0, len(all))
	for _, c := range all {
		values = append(values, of(c).Seconds())
	}
	slices.Sort(values)
	return values
}

// bareWatch notes when a client that does nothing else hears of a node.
type bareWatch struct {
	watch watch.Interface
	mu    sync.Mutex
	first map[string]time.Time
}

// watch starts a bare watch of the crowd's nodes.
func (c *crowd) watch(ctx context.Context) (*bareWatch, error) {
	nodes := c.nodes.CoreV1().Nodes()
	list, err := nodes.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	events, err := nodes.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, err
	}
	w := &bareWatch{watch: events, first: map[string]time.Time{}}
	go func() {
		for event := range events.ResultChan() {
			if node, ok := event.Object.(*corev1.Node); ok {
				w.note(node.Name, time.Now())
			}
		}
	}()
	return w, nil
}

func (w *bareWatch) note(node string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, known := w.first[node]; !known {
		w.first[node] = at
	}
}

// seen returns when a node was first heard of.
func (w *bareWatch) seen(node string) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.first[node]
}

func (w *bareWatch) stop() { w.watch.Stop() }
