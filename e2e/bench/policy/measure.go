package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// What the original did on the machine that this was first measured on.
func original(rate int) string {
	if rate == 20 {
		return "p50 27 s, 83 % missing"
	}
	return ""
}

// complete waits until the sets in the cluster have the addresses of all pods,
// and no others.
func (b *bench) complete(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	return testbed.Wait(ctx, "all pods to be in sets", func(ctx context.Context) error {
		list, err := b.sets.List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		addrs := map[netip.Addr]bool{}
		for i := range list.Items {
			for _, net := range list.Items[i].Spec.Nets {
				prefix, err := netip.ParsePrefix(net)
				if err != nil {
					return err
				}
				addrs[prefix.Addr()] = true
			}
		}
		if missing, foreign := b.pods.missing(addrs); missing > 0 || foreign > 0 {
			return fmt.Errorf("%d addresses are missing and %d too many", missing, foreign)
		}
		return nil
	})
}

// writes returns how many writes the process has made.
func (b *bench) writes(ctx context.Context) (int, error) {
	return b.Writes(ctx, "semaphore_policy_writes_total")
}

// firstSync fills the sets from nothing.
func (b *bench) firstSync(ctx context.Context) error {
	var err error
	if b.pods, err = newCrowd(ctx, b.Remote); err != nil {
		return err
	}
	measure.Say("creating %d pods", b.options.pods)
	if err := b.pods.grow(ctx, b.options.pods); err != nil {
		return err
	}
	// From the creation of the first set to that of the last one, and all of
	// the process's life.
	rec, err := b.record(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := b.Program.Start(); err != nil {
		return err
	}
	if err := b.complete(ctx); err != nil {
		return err
	}
	first, last, err := rec.stop()
	if err != nil {
		return err
	}
	total := last.Sub(began)
	writes, err := b.writes(ctx)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("first sync, %d pods in %d sets", b.pods.count(), apps)
	b.results = append(b.results, measure.Alone(what, "s", last.Sub(first).Seconds()))
	original := ""
	if b.pods.count() == 5000 {
		original = "38.7 s"
	}
	fmt.Fprintf(b.table, "%s\t%.2f s from start, %.2f s from first to last set; %d writes\t%s\n",
		what, total.Seconds(), last.Sub(first).Seconds(), writes, original)
	return nil
}

// changes gives pods new addresses at a rate, and measures how long each takes
// from the answer of the remote's API server to the set that has it. Who says whose
// they are; empty: the program's, which counts its writes.
func (b *bench) changes(ctx context.Context, rate int, who string) error {
	measure.Say("%s%d changes a second for %v", who, rate, b.period)
	counted := who == ""
	var before, after int
	var err error
	if counted {
		if before, err = b.writes(ctx); err != nil {
			return err
		}
	}
	rec, err := b.record(ctx)
	if err != nil {
		return err
	}
	used, err := b.Usage()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64)
	errs := make(chan error, 1)
	count := int(b.period.Seconds() * float64(rate))
	began := time.Now()
	for n := range count {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(began.Add(time.Duration(n) * time.Second / time.Duration(rate)))):
		}
		slots <- struct{}{}
		ip, pod := b.pods.next(), n*7919%b.pods.count()
		wg.Go(func() {
			defer func() { <-slots }()
			rec.expect(ip.String())
			if err := b.pods.move(ctx, pod, ip); err != nil {
				select {
				case errs <- err:
				default:
				}
				return
			}
			rec.changed(ip.String())
		})
	}
	wg.Wait()
	took := time.Since(began)
	usage, err := used.Since()
	if err != nil {
		return err
	}
	select {
	case err := <-errs:
		return err
	default:
	}
	if err := b.complete(ctx); err != nil {
		return err
	}
	if _, _, err := rec.stop(); err != nil {
		return err
	}
	seen := rec.latencies()
	b.results = append(b.results, seen.Results(fmt.Sprintf("%spod changes, %d/s", who, rate))...)
	fmt.Fprintf(b.table, "%s%d changes a second (made: %.0f)\t%v, %d of %d seen, ", who, rate, float64(count)/took.Seconds(), seen, len(seen), count)
	if !counted {
		fmt.Fprintf(b.table, "%s\t\n", usage)
		return nil
	}
	if after, err = b.writes(ctx); err != nil {
		return err
	}
	fmt.Fprintf(b.table, "%.2f writes a change, %s\t%s\n", float64(after-before)/float64(count), usage, original(rate))
	return nil
}

// resident measures the process with many pods.
func (b *bench) resident(ctx context.Context) error {
	measure.Say("creating pods, %d in all", b.memory)
	if err := b.pods.grow(ctx, b.memory); err != nil {
		return err
	}
	if err := b.complete(ctx); err != nil {
		return err
	}
	now, peak, err := measure.Resident(b.Program.Process().PID())
	if err != nil {
		return err
	}
	b.results = append(b.results, measure.Alone(fmt.Sprintf("memory, %d pods in %d sets", b.pods.count(), apps), "MB", now/1e6))
	fmt.Fprintf(b.table, "memory, %d pods in %d sets\t%.0f MB resident, %.0f MB at most\t\n", b.pods.count(), apps, now/1e6, peak/1e6)
	return nil
}

// recorder notes when addresses arrive in sets.
type recorder struct {
	end func() error

	mu          sync.Mutex
	first, last time.Time
	sent        map[string]time.Time // zero: under way
	arrived     map[string]time.Time
}

func (b *bench) record(ctx context.Context) (*recorder, error) {
	list, err := b.sets.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	w, err := b.sets.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, err
	}
	r := &recorder{sent: map[string]time.Time{}, arrived: map[string]time.Time{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			if set, ok := event.Object.(*calico.GlobalNetworkSet); ok {
				r.see(set, time.Now())
			}
		}
	}()
	r.end = func() error {
		select {
		case <-done:
			// It does so with slow watchers.
			return errors.New("the API server ended the watch of network sets before the measurement did")
		default:
		}
		w.Stop()
		<-done
		return nil
	}
	return r, nil
}

func (r *recorder) see(set *calico.GlobalNetworkSet, at time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.first.IsZero() {
		r.first = at
	}
	r.last = at
	for _, net := range set.Spec.Nets {
		ip := strings.TrimSuffix(net, "/32")
		if _, expected := r.sent[ip]; !expected {
			continue
		}
		if _, seen := r.arrived[ip]; !seen {
			r.arrived[ip] = at
		}
	}
}

func (r *recorder) expect(ip string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent[ip] = time.Time{}
}

func (r *recorder) changed(ip string) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sent[ip] = now
}

// stop ends the recording and returns when the first and the last version came;
// an error when it doesn't know.
func (r *recorder) stop() (first, last time.Time, err error) {
	err = r.end()
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.first, r.last, err
}

// latencies returns how long each of the addresses took that arrived. A pod that
// changes again before its address was written never shows it.
func (r *recorder) latencies() measure.Latencies {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all measure.Latencies
	for ip, at := range r.arrived {
		all = append(all, max(0, at.Sub(r.sent[ip])))
	}
	return all
}
