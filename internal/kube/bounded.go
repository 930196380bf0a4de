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

// bounded adds bounds to the requests of a remote's watch. A nil receiver adds none.
type bounded struct {
	objects int
	asked   request
	// begin and collect are those of the store.
	begin   func(further bool) (again func())
	collect func(obj runtime.Object) (item runtime.Object, wanted bool, err error)
}

// newBounded returns nil without bounds. Object is an object of the kind.
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

// list returns the context of a list request, and a function that adds the collected items
// to the response. Fake clients, which have no transport, return the items in the
// response.
func (b *bounded) list(ctx context.Context, options metav1.ListOptions) (context.Context, func(runtime.Object) (runtime.Object, error)) {
	if b == nil {
		return ctx, func(list runtime.Object) (runtime.Object, error) { return list, nil }
	}
	again := b.begin(options.Continue != "")
	handedOn := false
	taken := &trimmedList{}
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

// head returns the context of a list request of which only the metadata is used.
func (b *bounded) head(ctx context.Context) context.Context {
	if b == nil {
		return ctx
	}
	asked := b.asked
	asked.begin, asked.item = func() {}, func(runtime.Object) error { return nil }
	return withRequest(ctx, &asked)
}

// initial returns the counter of the events of a streamed list; nil for other watches.
func (b *bounded) initial(options metav1.ListOptions) *initialEvents {
	if !streams(options) {
		return nil
	}
	if b == nil {
		return &initialEvents{left: math.MaxInt}
	}
	const share = 2 // as in transit.admit
	return &initialEvents{left: share * b.objects, most: share * b.objects}
}

func streams(options metav1.ListOptions) bool {
	return options.SendInitialEvents != nil && *options.SendInitialEvents
}

// initialEvents bounds the number of events of a streamed list: the reflector collects
// them until the bookmark at the end of the list.
type initialEvents struct {
	left, most int
	over       bool // the bookmark was received
}

// going reports whether the list is still being streamed.
func (i *initialEvents) going() bool { return i != nil && !i.over }

// count returns the event to forward, and whether it is the last one.
func (i *initialEvents) count(event watch.Event) (to watch.Event, last bool) {
	if i == nil || i.over || event.Type == watch.Error {
		return event, false
	}
	if event.Type == watch.Bookmark {
		// A bookmark without metadata doesn't end the list.
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
		Message: fmt.Sprintf("streamed list of more than %d objects, twice the maximum", i.most),
	}}, true
}
