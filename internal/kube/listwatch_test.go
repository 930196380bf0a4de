package kube

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// nodeRequests is a resource that records its requests.
type nodeRequests struct{ options []metav1.ListOptions }

// List implements Resource.
func (r *nodeRequests) List(_ context.Context, options metav1.ListOptions) (*corev1.NodeList, error) {
	r.options = append(r.options, options)
	return &corev1.NodeList{}, nil
}

// Watch implements Resource.
func (r *nodeRequests) Watch(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
	r.options = append(r.options, options)
	return watch.NewFake(), nil
}

func TestListWatchAsksForItsResourceEachTime(t *testing.T) {
	t.Parallel()
	absent := errors.New("not mounted yet")
	var client error
	requests := &nodeRequests{}
	resource := Of(func() (Client, error) { return nil, client },
		func(Client) Resource[*corev1.NodeList] { return requests })
	for name, restrict := range map[string]func(*metav1.ListOptions){
		"a=b": func(options *metav1.ListOptions) { options.LabelSelector = "a=b" },
		"":    nil,
	} {
		lw := cache.ToListerWatcherWithContext(ListWatch(resource, restrict))
		ask := func() (list, watch error) {
			_, list = lw.ListWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
			_, watch = lw.WatchWithContext(t.Context(), metav1.ListOptions{ResourceVersion: "1"})
			return list, watch
		}
		client, requests.options = absent, nil
		if list, watch := ask(); !errors.Is(list, absent) || !errors.Is(watch, absent) || len(requests.options) > 0 {
			t.Errorf("without a client: list %v, watch %v, %d requests", list, watch, len(requests.options))
		}
		client = nil
		if list, watch := ask(); list != nil || watch != nil {
			t.Errorf("with a client: list %v, watch %v", list, watch)
		}
		want := []metav1.ListOptions{{ResourceVersion: "0", LabelSelector: name}, {ResourceVersion: "1", LabelSelector: name}}
		if diff := cmp.Diff(want, requests.options); diff != "" {
			t.Errorf("selector %q (-want +got):\n%s", name, diff)
		}
	}
}

// TestStoppedWatchLeaksNoGoroutine stops a filtered watch with unread events.
func TestStoppedWatchLeaksNoGoroutine(t *testing.T) {
	running := goleak.IgnoreCurrent()
	inner := watch.NewFakeWithChanSize(10, false)
	filtered := watch.Filter(inner, func(e watch.Event) (watch.Event, bool) { return e, true })
	requests := newRequests(NewWatch(WatchConfig[string]{
		ListWatch: &cache.ListWatch{
			WatchFuncWithContext: func(context.Context, metav1.ListOptions) (watch.Interface, error) { return filtered, nil },
		},
		Keep: func(runtime.Object) (string, bool) { return "", true }, Logger: slog.New(slog.DiscardHandler),
	}))
	w, err := requests.WatchWithContext(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		inner.Modify(&corev1.Node{})
	}
	<-w.ResultChan()
	w.Stop()
	goleak.VerifyNone(t, running)
}

// Of two objects of a remote none has the key of the other: a slash separates namespace and name.
func TestNamesWithSlashesAreImpossible(t *testing.T) {
	for _, names := range [][2]string{{"a/b", "c"}, {"a", "b/c"}, {"", "a/b/c"}, {"a", ""}} {
		if i := (&item[int]{ObjectMeta: metav1.ObjectMeta{Namespace: names[0], Name: names[1]}}); i.possible() {
			t.Errorf("%q is possible", names)
		}
	}
	if i := (&item[int]{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b.c-d"}}); !i.possible() {
		t.Error("a.b-c isn't possible")
	}
}
