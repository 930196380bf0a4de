package scenarios_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/e2e/programs"
	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/internal/pathreport"
)

// events are the writes of agents and the mirror to a cluster, to explain failed requests.
type events struct {
	mu  sync.Mutex
	all []noted
}

type noted struct {
	at   time.Time
	what string
}

// watchFailover records the changes of the cluster's reports of paths and of the slices of
// one service, until the test ends.
func watchFailover(t *testing.T, c *testbed.Cluster, service string) *events {
	t.Helper()
	e := &events{}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	follow := func(start func(context.Context) (watch.Interface, error), say func(watch.Event) string) {
		wg.Go(func() {
			for ctx.Err() == nil {
				w, err := start(ctx)
				if err != nil {
					e.note("not watched: " + err.Error())
					return
				}
				for change := range w.ResultChan() {
					if what := say(change); what != "" {
						e.note(what)
					}
				}
			}
		})
	}
	leases := c.Client().CoordinationV1().Leases(systemNamespace)
	follow(func(ctx context.Context) (watch.Interface, error) {
		return leases.Watch(ctx, metav1.ListOptions{LabelSelector: pathreport.Label + "=" + pathreport.LabelValue})
	}, func(change watch.Event) string {
		l, ok := change.Object.(*coordinationv1.Lease)
		if !ok || strings.Contains(l.Name, "crowd") {
			return ""
		}
		if change.Type == watch.Deleted {
			return l.Name + " gone"
		}
		r, err := pathreport.Read(l)
		if err != nil {
			return l.Name + ": " + err.Error()
		}
		return fmt.Sprintf("%s %v", l.Name, r.Remotes)
	})
	slices := c.Client().DiscoveryV1().EndpointSlices(programs.Namespace)
	follow(func(ctx context.Context) (watch.Interface, error) {
		return slices.Watch(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service})
	}, func(change watch.Event) string {
		s, ok := change.Object.(*discoveryv1.EndpointSlice)
		if !ok || s.AddressType != discoveryv1.AddressTypeIPv4 {
			return ""
		}
		if change.Type == watch.Deleted {
			return "slice " + s.Name + " gone"
		}
		ready := 0
		for i := range s.Endpoints {
			if r := s.Endpoints[i].Conditions.Ready; r == nil || *r {
				ready++
			}
		}
		return fmt.Sprintf("slice of %s: %d of %d ready", s.Annotations["mirror.semaphore.uw.io/cluster"], ready, len(s.Endpoints))
	})
	return e
}

func (e *events) note(what string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all = append(e.all, noted{time.Now(), what})
}

// since returns the records since a time, each with the time elapsed.
func (e *events) since(at time.Time) string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var some []string
	for _, n := range e.all {
		if !n.at.Before(at) {
			some = append(some, seconds(at, n.at)+" "+n.what)
		}
	}
	return strings.Join(some, "; ")
}

// failures returns the requests that failed, each with when it began and when it ended.
func failures(since time.Time, all []programs.Request) string {
	all = slices.DeleteFunc(all, func(r programs.Request) bool { return r.Err == nil })
	some := make([]string, 0, len(all))
	for _, r := range all {
		why := r.Err.Error()
		if errors.Is(r.Err, context.DeadlineExceeded) {
			why = "no answer"
		}
		some = append(some, fmt.Sprintf("%.1f-%.1f %s", r.At.Sub(since).Seconds(), r.End.Sub(since).Seconds(), why))
	}
	return strings.Join(some, ", ")
}
