package policy_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/kube-semaphore/kube-semaphore/policy"
)

// version is one state of a network set.
type version struct {
	at      time.Time
	name    string
	deleted bool
	set     *calico.GlobalNetworkSet
}

// recorder sees every version of every network set of a cluster.
type recorder struct {
	client  policy.SetClient
	initial map[string]*calico.GlobalNetworkSet

	mu       sync.Mutex
	versions []version
	stop     func()
}

// record begins now and ends with the test.
func record(t *testing.T, client policy.SetClient) *recorder {
	t.Helper()
	list, err := client.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	r := &recorder{client: client, initial: map[string]*calico.GlobalNetworkSet{}}
	for i := range list.Items {
		r.initial[list.Items[i].Name] = &list.Items[i]
	}
	// Beyond the context of t, which ends before its cleanups begin. It goes on where it was
	// when the API server ends it.
	w, err := watchtools.NewRetryWatcherWithContext(context.WithoutCancel(t.Context()), list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
	})
	must(t, err)
	done := make(chan struct{})
	stopping := make(chan struct{})
	go func() {
		defer close(done)
		for event := range w.ResultChan() {
			s, ok := event.Object.(*calico.GlobalNetworkSet)
			if !ok {
				select {
				case <-stopping:
				default:
					t.Errorf("recorder got %s %v", event.Type, event.Object)
				}
				continue
			}
			r.mu.Lock()
			r.versions = append(r.versions, version{at: time.Now(), name: s.Name, deleted: event.Type == watch.Deleted, set: s})
			r.mu.Unlock()
		}
		select {
		case <-stopping:
		default:
			t.Error("the recorder's watch ended")
		}
	}()
	r.stop = sync.OnceFunc(func() {
		close(stopping)
		w.Stop()
		<-done
	})
	t.Cleanup(r.stop)
	return r
}

// end waits until the recorder has seen everything that there is, which may be a
// moment after others have, and ends it.
func (r *recorder) end(t *testing.T) {
	t.Helper()
	wait(t, "the recorder to see the latest versions", func() error {
		list, err := r.client.List(t.Context(), listAll)
		if err != nil {
			return err
		}
		want := map[string]string{}
		for i := range list.Items {
			want[list.Items[i].Name] = list.Items[i].ResourceVersion
		}
		got := map[string]string{}
		for name, s := range r.replay(func(version, map[string]*calico.GlobalNetworkSet) {}) {
			got[name] = s.ResourceVersion
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("versions %v, want %v", got, want)
		}
		return nil
	})
	r.stop()
}

func (r *recorder) all() []version {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.versions)
}

// replay calls visit after each version with the state of all sets then, and
// returns the last one.
func (r *recorder) replay(visit func(v version, state map[string]*calico.GlobalNetworkSet)) map[string]*calico.GlobalNetworkSet {
	state := maps.Clone(r.initial)
	for _, v := range r.all() {
		if v.deleted {
			delete(state, v.name)
		} else {
			state[v.name] = v.set
		}
		visit(v, state)
	}
	return state
}

// holds reports whether any object of the set holds the address.
func holds(state map[string]*calico.GlobalNetworkSet, id policy.Identity, ip string) bool {
	net := ip + "/32"
	if strings.Contains(ip, ":") {
		net = ip + "/128"
	}
	for _, s := range state {
		if s.Labels[domain+"/cluster"] == id.Cluster && s.Labels[domain+"/namespace"] == id.Namespace &&
			s.Labels[domain+"/name"] == id.Name && slices.Contains(s.Spec.Nets, net) {
			return true
		}
	}
	return false
}
