package kube

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// bounded prepares the requests of a watch of a remote, so that what comes of
// them is bounded. On a nil receiver nothing is.
type bounded struct {
	objects int
	asked   request
	// begin and collect are those of the store.
	begin   func(further bool) (again func())
	collect func(obj runtime.Object) (item runtime.Object, wanted bool, err error)
}

// newBounded returns nil where there are no bounds. Objects are of the kind of
// the given one.
func newBounded(object runtime.Object, objects int, begin func(bool) func(), dropped func(), collect func(runtime.Object) (runtime.Object, bool, error)) *bounded {
	if objects <= 0 {
		return nil
	}
	of := reflect.TypeOf(object).Elem()
	return &bounded{
		objects: objects, begin: begin, collect: collect,
		asked: request{object: of, shape: shapeOf(of), dropped: dropped},
	}
}

// list returns the context for a list, and what makes of its answer the one with
// the items that were taken of it. Of clients that don't hand them on, such as
// fakes, the answer has them.
func (b *bounded) list(ctx context.Context, options metav1.ListOptions) (context.Context, func(runtime.Object) (runtime.Object, error)) {
	if b == nil {
		return ctx, func(list runtime.Object) (runtime.Object, error) { return list, nil }
	}
	again := b.begin(options.Continue != "")
	handedOn := false
	taken := &takenList{}
	asked := b.asked
	asked.begin = func() {
		again()
		handedOn, taken.Items = true, nil
	}
	asked.item = func(object runtime.Object) error {
		item, wanted, err := b.collect(object)
		if wanted {
			taken.Items = append(taken.Items, item)
		}
		return err
	}
	return withRequest(ctx, &asked), func(list runtime.Object) (runtime.Object, error) {
		if !handedOn {
			return list, nil
		}
		head, err := meta.ListAccessor(list)
		if err != nil {
			return nil, fmt.Errorf("read list: %w", err)
		}
		taken.ResourceVersion, taken.Continue = head.GetResourceVersion(), head.GetContinue()
		return taken, nil
	}
}

func (b *bounded) watch(ctx context.Context, options metav1.ListOptions) context.Context {
	if b == nil {
		return ctx
	}
	if streams(options) {
		b.begin(false)
	}
	return withRequest(ctx, &b.asked)
}

// head returns the context for a list whose only use is its head.
func (b *bounded) head(ctx context.Context) context.Context {
	if b == nil {
		return ctx
	}
	asked := b.asked
	asked.begin, asked.item = func() {}, func(runtime.Object) error { return nil }
	return withRequest(ctx, &asked)
}

// initial returns what counts the events of a streamed list; nil for other
// watches.
func (b *bounded) initial(options metav1.ListOptions) *initialEvents {
	if !streams(options) {
		return nil
	}
	if b == nil {
		return &initialEvents{left: math.MaxInt}
	}
	const share = 2 // see transit
	return &initialEvents{left: share * b.objects, most: share * b.objects}
}

func streams(options metav1.ListOptions) bool {
	return options.SendInitialEvents != nil && *options.SendInitialEvents
}

// initialEvents ends a watch that streams a list without an end. The reflector
// collects what comes until the bookmark that ends it.
type initialEvents struct {
	left, most int
	over       bool // the bookmark came
}

// going reports whether the bookmark that ends the list is still to come.
func (i *initialEvents) going() bool { return i != nil && !i.over }

// count returns the event to hand on, and whether it is the last one.
func (i *initialEvents) count(event watch.Event) (to watch.Event, last bool) {
	if i == nil || i.over || event.Type == watch.Error {
		return event, false
	}
	if event.Type == watch.Bookmark {
		// One without metadata isn't the one that is waited for.
		if object, err := meta.Accessor(event.Object); err == nil && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true" {
			i.over = true
			return event, false
		}
	}
	if i.left--; i.left >= 0 {
		return event, false
	}
	return watch.Event{Type: watch.Error, Object: &metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusInsufficientStorage,
		Message: fmt.Sprintf("streamed list of more than %d objects, which is twice as many as are kept", i.most),
	}}, true
}
