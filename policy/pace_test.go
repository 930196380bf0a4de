package policy_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
)

// pace knows how long this machine and the API servers took, at any time, for
// what every change has to go through: a write to a remote, its watch, a write
// to the local cluster, its watch. No controller can be faster than that.
type pace struct {
	mu     sync.Mutex
	rounds []round
}

type round struct{ from, to time.Time }

// keepPace measures all the time until the function that it returns is called.
func keepPace(t *testing.T, local *testbed.Cluster, remotes ...*testbed.Cluster) (p *pace, stop func()) {
	t.Helper()
	p = &pace{}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	for _, remote := range remotes {
		there, here := newBeacon(ctx, t, remote, "pace"), newBeacon(ctx, t, local, "pace-"+remote.Name)
		wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				from := time.Now()
				if err := errors.Join(there.flash(ctx, n), here.flash(ctx, n)); err != nil && ctx.Err() == nil {
					t.Errorf("keep pace with %s: %v", remote.Name, err)
					return
				}
				p.note(round{from, time.Now()})
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

func (p *pace) note(r round) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rounds = append(p.rounds, r)
}

// slowest returns how long the longest round took that has a part between two
// times.
func (p *pace) slowest(from, to time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var longest time.Duration
	for _, r := range p.rounds {
		if !r.from.After(to) && !r.to.Before(from) {
			longest = max(longest, r.to.Sub(r.from))
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
	w, err := api.Watch(ctx, metav1.SingleObject(object.ObjectMeta))
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
	for event := range b.watch.ResultChan() {
		if c, ok := event.Object.(*corev1.ConfigMap); ok && c.Data["n"] == want {
			return nil
		}
	}
	return errors.New("the watch ended")
}
