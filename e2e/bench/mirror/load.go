package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-semaphore/kube-semaphore/e2e/bench/measure"
)

// errWatchEnded says that there is no result. An API server ends watches whose clients read too
// slowly, as they do on a machine that is full. The program's watches resume; one that measures
// must not, because all that it sees then is late.
var errWatchEnded = errors.New("the API server ended the benchmark's watch of endpoint slices")

// changes measures changes at a rate, or at half of it, and so on, where the machine is too slow.
func (b *bench) changes(ctx context.Context, of copies, rate int) error {
	for {
		err := b.changesAt(ctx, of, rate)
		if !errors.Is(err, errWatchEnded) || rate == 1 {
			return err
		}
		b.row(fmt.Sprintf("%d changes/s%s for %v", rate, of.name, b.load), "not measured: %v", err)
		rate /= 2
	}
}

// changesAt changes endpoints at a rate and measures how long it takes from the
// event of the remote API server to that of the local one, both as a client of
// our own sees them, and from the request that made the change.
func (b *bench) changesAt(ctx context.Context, of copies, rate int) error {
	remote, err := watchSlices(ctx, b.remote, of.from)
	if err != nil {
		return err
	}
	local, err := watchSlices(ctx, b.local, of.to)
	if err != nil {
		return err
	}
	before, err := b.writes(ctx)
	if err != nil {
		return err
	}
	used, err := b.Usage()
	if err != nil {
		return err
	}
	total := int(b.load.Seconds()) * rate
	sent := make([]time.Time, total)
	key := func(n int) string { return fmt.Sprintf("h%d-%d", rate, n) }
	ticker := time.NewTicker(time.Second / time.Duration(rate))
	defer ticker.Stop()
	errs := make(chan error, total)
	var writing sync.WaitGroup
	for n := range total {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		sent[n] = time.Now()
		writing.Go(func() {
			body := fmt.Sprintf(`[{"op":"add","path":"/endpoints/0/hostname","value":%q}]`, key(n))
			_, err := b.remote.DiscoveryV1().EndpointSlices(of.from).Patch(ctx, serviceName(n%of.services), types.JSONPatchType, []byte(body), metav1.PatchOptions{})
			errs <- err
		})
	}
	writing.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	cost, err := used.Since()
	if err != nil {
		return err
	}
	if err := measure.Pause(ctx, 3*time.Second); err != nil {
		return err
	}
	there, err := remote.end()
	here, localErr := local.end()
	if err = errors.Join(err, localErr); err != nil {
		return fmt.Errorf("%w; %s", err, cost)
	}
	var ours, whole measure.Latencies
	for n := range total {
		if at, ok := here[key(n)]; ok {
			ours = append(ours, at.Sub(there[key(n)]))
			whole = append(whole, at.Sub(sent[n]))
		}
	}
	after, err := b.writes(ctx)
	if err != nil {
		return err
	}
	if len(ours) == 0 {
		return errors.New("no change arrived")
	}
	b.results = append(b.results, ours.Results(fmt.Sprintf("endpoint changes%s, %d/s", of.name, rate))...)
	b.row(fmt.Sprintf("%d changes/s%s for %v", rate, of.name, b.load), "%v from event to event; %v from the request; missing %d of %d; %.2f writes a change; %s",
		ours, whole, total-len(ours), total, float64(after-before)/float64(total), cost)
	return nil
}

// arrivals are the times at which slices were first seen with a host name.
type arrivals struct {
	watch watch.Interface
	done  chan struct{}
	first map[string]time.Time
}

func watchSlices(ctx context.Context, c kubernetes.Interface, namespace string) (*arrivals, error) {
	api := c.DiscoveryV1().EndpointSlices(namespace)
	list, err := api.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	w, err := api.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, err
	}
	a := &arrivals{watch: w, done: make(chan struct{}), first: map[string]time.Time{}}
	go func() {
		defer close(a.done)
		for event := range w.ResultChan() {
			slice, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok || len(slice.Endpoints) == 0 || slice.Endpoints[0].Hostname == nil {
				continue
			}
			if key := *slice.Endpoints[0].Hostname; a.first[key].IsZero() {
				a.first[key] = time.Now()
			}
		}
	}()
	return a, nil
}

// end ends the watch and returns what arrived; an error when it doesn't know.
func (a *arrivals) end() (map[string]time.Time, error) {
	select {
	case <-a.done:
		return nil, errWatchEnded
	default:
	}
	a.watch.Stop()
	<-a.done
	return a.first, nil
}
