package controllers_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// pace measures how long this machine and the API servers take for the path of every change:
// a write to a remote, its watch, a write to the local cluster, its watch. No controller can
// be faster.
type pace struct {
	mu     sync.Mutex
	rounds []*round
}

type round struct{ from, to time.Time } // to: zero while it goes on

// keepPace measures until the function that it returns is called.
func keepPace(t *testing.T, local *testbed.Cluster, remotes ...*testbed.Cluster) (p *pace, stop func()) {
	t.Helper()
	p = &pace{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	for _, remote := range remotes {
		there, here := newBeacon(ctx, t, remote, "pace"), newBeacon(ctx, t, local, "pace-"+remote.Name)
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				r := p.begin()
				if err := errors.Join(there.flash(ctx, n), here.flash(ctx, n)); err != nil && ctx.Err() == nil {
					t.Errorf("keep pace with %s: %v", remote.Name, err)
					return
				}
				p.end(r)
				select {
				case <-ctx.Done():
				case <-time.After(50 * time.Millisecond):
				}
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return p, stop
}

func (p *pace) begin() *round {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := &round{from: time.Now()}
	p.rounds = append(p.rounds, r)
	return r
}

func (p *pace) end(r *round) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.to = time.Now()
}

// slowest returns the duration of the longest round that overlaps with a period.
func (p *pace) slowest(from, to time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var longest time.Duration
	for _, r := range p.rounds {
		end := r.to
		if end.IsZero() {
			end = to
		}
		if !r.from.After(to) && !end.Before(from) {
			longest = max(longest, end.Sub(r.from))
		}
	}
	return longest
}

// beacon is an object that is written and watched.
type beacon struct {
	cluster *testbed.Cluster
	name    string
	watch   watch.Interface
}

func newBeacon(ctx context.Context, t *testing.T, c *testbed.Cluster, name string) *beacon {
	t.Helper()
	api := c.Client().CoreV1().ConfigMaps(metav1.NamespaceDefault)
	object, err := api.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	must(t, err)
	// It resumes where it was when the API server ends it.
	w, err := watchtools.NewRetryWatcherWithContext(ctx, object.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
			return api.Watch(ctx, options)
		},
	})
	must(t, err)
	t.Cleanup(func() {
		w.Stop()
		if err := api.Delete(context.WithoutCancel(t.Context()), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return &beacon{c, name, w}
}

// flash writes a number and returns when the watch shows it.
func (b *beacon) flash(ctx context.Context, n int) error {
	want := fmt.Sprint(n)
	_, err := b.cluster.Client().CoreV1().ConfigMaps(metav1.NamespaceDefault).Patch(ctx, b.name, types.MergePatchType,
		fmt.Appendf(nil, `{"data":{"n":%q}}`, want), metav1.PatchOptions{})
	if err != nil {
		return err
	}
	limit := time.After(2 * time.Minute)
	for {
		select {
		case event, open := <-b.watch.ResultChan():
			if !open {
				return errors.New("the watch ended")
			}
			if c, ok := event.Object.(*corev1.ConfigMap); ok && c.Data["n"] == want {
				return nil
			}
		case <-limit:
			return errors.New("the watch doesn't show the write")
		}
	}
}
