package controllers_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// version is one state of an object.
type version struct {
	at     time.Time
	event  watch.EventType
	key    string        // kind and name
	object metav1.Object // as it is, or was when it was deleted
	before metav1.Object // nil: none
}

// state is the objects at one moment, by kind and name.
type state map[string]metav1.Object

// recorder sees every version of every object of some kinds of a cluster.
type recorder struct {
	list    func() (objects state, versions map[string]string, err error) // versions: of the lists, by kind
	initial state

	mu       sync.Mutex
	versions []version
	stop     func()
}

// recorded describes how a kind is read.
type recorded struct {
	kind  string
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// record starts a recorder, which ends with the test.
func record(t *testing.T, kinds ...recorded) *recorder {
	t.Helper()
	// The context of t ends before its cleanups begin.
	ctx := context.WithoutCancel(t.Context())
	r := &recorder{}
	r.list = func() (state, map[string]string, error) {
		all, versions := state{}, map[string]string{}
		for _, k := range kinds {
			list, err := k.list(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, nil, err
			}
			head, err := meta.ListAccessor(list)
			if err != nil {
				return nil, nil, err
			}
			versions[k.kind] = head.GetResourceVersion()
			err = meta.EachListItem(list, func(o runtime.Object) error {
				object, err := meta.Accessor(o)
				if err == nil {
					all[k.kind+" "+object.GetName()] = object
				}
				return err
			})
			if err != nil {
				return nil, nil, err
			}
		}
		return all, versions, nil
	}
	initial, versions, err := r.list()
	must(t, err)
	r.initial = initial
	var wg sync.WaitGroup
	stopping := make(chan struct{})
	var watches []*watchtools.RetryWatcher
	for _, k := range kinds {
		// It resumes where it was when the API server ends it.
		w, err := watchtools.NewRetryWatcherWithContext(ctx, versions[k.kind], &cache.ListWatch{WatchFuncWithContext: k.watch})
		must(t, err)
		watches = append(watches, w)
		wg.Go(func() {
			r.follow(t, k.kind, w, stopping)
		})
	}
	r.stop = sync.OnceFunc(func() {
		close(stopping)
		for _, w := range watches {
			w.Stop()
		}
		wg.Wait()
	})
	t.Cleanup(r.stop)
	return r
}

// follow notes the events of a watch. One that ends before stopping is closed, or sends an
// error, fails the test.
func (r *recorder) follow(t *testing.T, kind string, w watch.Interface, stopping chan struct{}) {
	failed := func(what string) {
		select {
		case <-stopping:
		default:
			t.Errorf("watch of %s: %s", kind, what)
		}
	}
	for event := range w.ResultChan() {
		object, err := meta.Accessor(event.Object)
		if err != nil || event.Type == watch.Error {
			failed(fmt.Sprintf("%s %v", event.Type, event.Object))
			continue
		}
		r.mu.Lock()
		r.versions = append(r.versions, version{at: time.Now(), event: event.Type, key: kind + " " + object.GetName(), object: object})
		r.mu.Unlock()
	}
	failed("it ended")
}

// end waits until the recorder has seen the latest versions, which may be a moment after
// others have, and ends it.
func (r *recorder) end(t *testing.T) {
	t.Helper()
	of := func(s state) map[string]string {
		versions := map[string]string{}
		for key, o := range s {
			versions[key] = o.GetResourceVersion()
		}
		return versions
	}
	wait(t, "the recorder to see the latest versions", func() error {
		objects, _, err := r.list()
		if err != nil {
			return err
		}
		if got, want := of(r.replay(func(version, state) {})), of(objects); !maps.Equal(got, want) {
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

// replay calls visit for each version, with the state after it, and returns the last state.
func (r *recorder) replay(visit func(v version, s state)) state {
	s := maps.Clone(r.initial)
	for _, v := range r.all() {
		v.before = s[v.key]
		if v.event == watch.Deleted {
			delete(s, v.key)
		} else {
			s[v.key] = v.object
		}
		visit(v, s)
	}
	return s
}
