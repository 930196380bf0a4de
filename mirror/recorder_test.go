package mirror

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// recorder notes what must not happen to objects of the mirror namespace while
// their origins stay.
type recorder struct {
	b       *bed
	mu      sync.Mutex
	bad     []string
	have    map[string][]string  // addresses of slices
	seen    map[types.UID]string // versions
	keeping func(address string) bool
	stop    func()
}

// record begins now. Services must stay the objects that they are, and
// addresses that keeping says must stay.
func (b *bed) record(t *testing.T, keeping func(address string) bool) *recorder {
	t.Helper()
	r := &recorder{b: b, have: map[string][]string{}, seen: map[types.UID]string{}, keeping: keeping}
	api := b.gcp.Client()
	services, list := r.list(t)
	for i := range services.Items {
		r.version(watch.Added, &services.Items[i])
	}
	for i := range list.Items {
		r.version(watch.Added, &list.Items[i])
		r.slice(watch.Added, &list.Items[i])
	}
	// They go on where they were when the API server ends them.
	ctx := context.WithoutCancel(t.Context())
	ws, err := watchtools.NewRetryWatcherWithContext(ctx, services.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: api.CoreV1().Services(home).Watch})
	must(t, err)
	we, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: api.DiscoveryV1().EndpointSlices(home).Watch})
	must(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for e := range ws.ResultChan() {
			s, ok := e.Object.(*corev1.Service)
			switch {
			case !ok:
				r.note(fmt.Sprintf("watch of services: %v", apierrors.FromObject(e.Object)))
				continue
			case e.Type != watch.Modified:
				r.note(fmt.Sprintf("service %s %s", s.Name, e.Type))
			}
			r.version(e.Type, s)
		}
	})
	wg.Go(func() {
		for e := range we.ResultChan() {
			s, ok := e.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				r.note(fmt.Sprintf("watch of endpoint slices: %v", apierrors.FromObject(e.Object)))
				continue
			}
			r.slice(e.Type, s)
			r.version(e.Type, s)
		}
	})
	r.stop = sync.OnceFunc(func() {
		ws.Stop()
		we.Stop()
		wg.Wait()
	})
	t.Cleanup(r.stop)
	return r
}

func (r *recorder) note(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bad = append(r.bad, what)
}

func (r *recorder) slice(event watch.EventType, s *discoveryv1.EndpointSlice) {
	var now []string
	if event != watch.Deleted {
		for i := range s.Endpoints {
			now = append(now, s.Endpoints[i].Addresses...)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.have[s.Name] {
		if !slices.Contains(now, a) && r.keeping(a) {
			r.bad = append(r.bad, fmt.Sprintf("%s left %s", a, s.Name))
		}
	}
	r.have[s.Name] = now
}

func (r *recorder) list(t *testing.T) (*corev1.ServiceList, *discoveryv1.EndpointSliceList) {
	t.Helper()
	services, err := r.b.gcp.Client().CoreV1().Services(home).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	all, err := r.b.gcp.Client().DiscoveryV1().EndpointSlices(home).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	return services, all
}

// version notes that an object was seen, when all else about it is noted.
func (r *recorder) version(event watch.EventType, o metav1.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seen[o.GetUID()] = o.GetResourceVersion(); event == watch.Deleted {
		delete(r.seen, o.GetUID())
	}
}

// end waits until it has seen all that there is, which may be a moment after others
// have, and ends it.
func (r *recorder) end(t *testing.T) {
	t.Helper()
	wait(t, "the recorder to see the latest versions", func() error {
		want := map[types.UID]string{}
		services, all := r.list(t)
		for i := range services.Items {
			want[services.Items[i].UID] = services.Items[i].ResourceVersion
		}
		for i := range all.Items {
			want[all.Items[i].UID] = all.Items[i].ResourceVersion
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if !maps.Equal(r.seen, want) {
			return fmt.Errorf("versions %v, want %v", r.seen, want)
		}
		return nil
	})
	r.stop()
}

// check ends it, and fails the test for each thing that must not have happened, but for
// those that the test itself brought about.
func (r *recorder) check(t *testing.T, caused ...string) {
	t.Helper()
	r.end(t)
	bad := slices.DeleteFunc(r.bad, func(what string) bool { return slices.Contains(caused, what) })
	for _, what := range bad[:min(len(bad), 20)] {
		t.Error(what)
	}
}
