package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
)

// Timeouts and intervals, also for servers that accept requests and never respond.
const (
	// API servers time out lists after a minute.
	listTimeout = 2 * time.Minute
	// Some proxies forward the response header only with the first event, which without
	// changes is the bookmark, about once a minute.
	openTimeout = 90 * time.Second
	// A watch may exceed its requested duration by this.
	watchOvertime = 30 * time.Second
	// Minimum interval between lists because of rejected objects.
	relistPeriod = time.Minute
)

// Resource has the read methods of a kind, such as client.Nodes().
type Resource[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// ListWatch returns a WatchConfig.ListWatch. It calls resource for each request, because
// the client may not be available yet: its error fails the request. Restrict, if set, adds
// a selector to the options.
func ListWatch[L runtime.Object](resource func(context.Context) (Resource[L], error), restrict func(*metav1.ListOptions)) cache.ListerWatcher {
	if restrict == nil {
		restrict = func(*metav1.ListOptions) {}
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			r, err := resource(ctx)
			if err != nil {
				return nil, err
			}
			restrict(&options)
			return r.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			r, err := resource(ctx)
			if err != nil {
				return nil, err
			}
			restrict(&options)
			return r.Watch(ctx, options)
		},
	}
}

// Of returns a function for ListWatch, with a client such as that of LazyClient.
func Of[L runtime.Object](client func() (Client, error), resource func(Client) Resource[L]) func(context.Context) (Resource[L], error) {
	return func(context.Context) (Resource[L], error) {
		c, err := client()
		if err != nil {
			return nil, err
		}
		return resource(c), nil
	}
}

// Nodes is a resource for Of.
func Nodes(client Client) Resource[*corev1.NodeList] { return client.Nodes() }

// requests makes the lists and watches of a Watch for client-go's reflector, whose store gets
// items. It records their outcome, and lists again when there may be quota for rejected objects.
// client-go's reflector has no record of contact, and waits for servers that never respond.
type requests[T any] struct {
	w    *Watch[T]
	from cache.ListerWatcherWithContext // nil: cfg.Reader
	// noStreams is set for clients that don't support streamed lists, such as client-go's fakes.
	noStreams bool
	listing   transit // the list that is being read
}

func newRequests[T any](w *Watch[T]) *requests[T] {
	r := &requests[T]{w: w, noStreams: w.unstreamed}
	if w.cfg.Reader == nil {
		r.from = cache.ToListerWatcherWithContext(w.cfg.ListWatch)
		r.noStreams = r.noStreams || watchlist.DoesClientNotSupportWatchListSemantics(w.cfg.ListWatch)
	}
	return r
}

// IsWatchListSemanticsUnSupported returns whether client-go's reflector must not use
// streamed lists.
func (r *requests[T]) IsWatchListSemanticsUnSupported() bool { return r.noStreams }

// List implements cache.Lister, which the reflector doesn't use.
func (r *requests[T]) List(options metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher, which the reflector doesn't use.
func (r *requests[T]) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWithContext.
func (r *requests[T]) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	further := options.Continue != ""
	if r.w.quorum && !further {
		options.ResourceVersion, options.ResourceVersionMatch = "", ""
	}
	bounded, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	before := r.listing
	if !further {
		before = transit{}
	}
	var list *itemList
	var err error
	for again := true; again; again = errors.Is(err, errInsufficient) {
		r.listing, list = before.clone(), &itemList{}
		list.ListMeta, err = r.read(bounded, options, list)
	}
	if err != nil {
		r.failed(ctx, verbList, err)
		return nil, err
	}
	r.w.health.record(ctx, list.Continue == "")
	return list, nil
}

// read requests a page of a list, and adds its items.
func (r *requests[T]) read(ctx context.Context, options metav1.ListOptions, list *itemList) (metav1.ListMeta, error) {
	each := func(object runtime.Object) error {
		i, err := r.collect(object)
		if i != nil {
			list.Items = append(list.Items, i)
		}
		return err
	}
	if r.from == nil {
		return r.w.cfg.Reader.list(ctx, options, each, r.w.dropped)
	}
	page, err := r.from.ListWithContext(ctx, options)
	if err != nil {
		return metav1.ListMeta{}, err
	}
	head, err := meta.ListAccessor(page)
	if err != nil {
		return metav1.ListMeta{}, err
	}
	return metav1.ListMeta{ResourceVersion: head.GetResourceVersion(), Continue: head.GetContinue()}, meta.EachListItem(page, each)
}

// collect returns the item of an object of a list; nil: it isn't kept. The error ends the list.
func (r *requests[T]) collect(object runtime.Object) (*item[T], error) {
	i, err := r.w.trim(object)
	if err != nil {
		return nil, err
	}
	if i == nil {
		i = &item[T]{}
	}
	admitted, err := r.listing.admit(&r.w.store.quota, i.key(), r.w.store.has(i.key()), i.size)
	switch {
	case err != nil || !i.kept:
		return nil, err
	case !admitted:
		var none T
		i.value, i.rejected = none, true
	}
	return i, nil
}

// trim returns the item of an object; nil: its name is invalid.
func (w *Watch[T]) trim(object runtime.Object) (*item[T], error) {
	i, err := newItem[T](object)
	if err != nil {
		return nil, err
	}
	bounded := w.store.quota.objects > 0
	if bounded && !i.possible() {
		w.dropped()
		return nil, nil
	}
	if i.value, i.kept = w.cfg.Keep(object); i.kept && bounded {
		i.size = sizeOf(i.key(), i.value)
	}
	return i, nil
}

// open requests a watch.
func (r *requests[T]) open(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if r.from == nil {
		return r.w.cfg.Reader.watch(ctx, options, r.w.dropped)
	}
	return r.from.WatchWithContext(ctx, options)
}

// WatchWithContext implements cache.WatcherWithContext.
func (r *requests[T]) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	f := &forwarder[T]{requests: r, listing: streams(options), events: make(chan watch.Event)}
	if f.listing {
		r.listing = transit{}
		if r.w.quorum {
			options.ResourceVersion = ""
		}
	}
	requested := 24 * time.Hour // which the reflector doesn't leave open
	if options.TimeoutSeconds != nil {
		requested = time.Duration(*options.TimeoutSeconds) * time.Second
	}
	bounded, cancel := context.WithTimeout(ctx, requested+watchOvertime)
	opening := time.AfterFunc(openTimeout, cancel)
	inner, err := r.open(bounded, options)
	if !opening.Stop() && err == nil {
		end(inner)
		err = errors.New("watch opened after its timeout")
	}
	if err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = fmt.Errorf("no response within %v: %w", openTimeout, err)
		}
		cancel()
		// Without support for streamed lists, the reflector falls back to a plain list at once.
		if !f.listing || !apierrors.IsInvalid(err) {
			r.failed(ctx, verbWatch, err)
		}
		return nil, err
	}
	w := watch.NewProxyWatcher(f.events)
	f.inner, f.stopped = inner, w.StopChan()
	// client-go reports a broken connection as a watch that is closed already; only other
	// watches are a response of the server.
	select {
	case first, ok := <-inner.ResultChan():
		if !ok {
			cancel()
			r.failed(ctx, verbWatch, errors.New("watch ended immediately"))
			close(f.events)
			return w, nil
		}
		f.first = &first
	default:
		f.alive(ctx)
	}
	go func() {
		defer cancel()
		f.forward(ctx)
	}()
	return w, nil
}

// failed records an error, unless the resource version has expired or is in the future:
// then the reflector lists again.
func (r *requests[T]) failed(ctx context.Context, verb string, err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		r.w.health.record(ctx, false)
		return
	}
	r.w.health.recordFailure(ctx, verb, err)
}

// forwarder forwards the events of a watch.
type forwarder[T any] struct {
	*requests[T]
	inner   watch.Interface
	first   *watch.Event // it has been read already
	events  chan watch.Event
	stopped <-chan struct{}
	listing bool // a list is still being streamed
	open    bool // streamOpened was called
}

// forward forwards events until the watch ends.
func (f *forwarder[T]) forward(ctx context.Context) {
	defer func() {
		end(f.inner)
		close(f.events)
		if f.open {
			f.w.health.streamClosed()
		}
	}()
	if f.first != nil && !f.pass(ctx, *f.first) {
		return
	}
	relist := time.NewTicker(f.w.relist)
	defer relist.Stop()
	for {
		select {
		case event, open := <-f.inner.ResultChan():
			if !open || !f.pass(ctx, event) {
				return
			}
		case <-relist.C:
			if !f.listing && f.w.store.missing() {
				f.pass(ctx, errorEvent(apierrors.NewResourceExpired("there may be quota for rejected objects")))
				return
			}
		case <-f.stopped:
			return
		}
	}
}

// pass forwards an event, and reports whether the watch goes on.
func (f *forwarder[T]) pass(ctx context.Context, event watch.Event) bool {
	f.w.cfg.Count(event.Type)
	event = f.convert(event)
	if event.Type == watch.Error {
		f.failed(ctx, verbWatch, apierrors.FromObject(event.Object))
	} else {
		f.listing = f.listing && !endsList(event)
		f.alive(ctx)
	}
	if event.Object == nil {
		return true
	}
	select {
	case f.events <- event:
		return event.Type != watch.Error
	case <-f.stopped:
		return false
	}
}

// convert returns an event with an item, without an object if it doesn't matter, or with the error
// that ends the watch.
func (f *forwarder[T]) convert(event watch.Event) watch.Event {
	var i *item[T]
	var err error
	switch {
	case event.Type == watch.Error:
		return event
	case event.Type == watch.Bookmark, event.Type == watch.Deleted:
		i, err = newItem[T](event.Object)
		switch {
		case err != nil:
		case len(i.ResourceVersion) > maxName: // The next request would have it.
			err = fmt.Errorf("a resource version of %d bytes", len(i.ResourceVersion))
		case endsList(event):
			i.Annotations = map[string]string{metav1.InitialEventsAnnotationKey: "true"}
		}
	case f.listing:
		i, err = f.collect(event.Object)
	default:
		i, err = f.w.trim(event.Object)
	}
	switch {
	case err != nil:
		return errorEvent(err)
	case i == nil:
		event.Object = nil
	default:
		event.Object = i
	}
	return event
}

// alive records that the server serves the watch.
func (f *forwarder[T]) alive(ctx context.Context) {
	if !f.listing && !f.open {
		f.open = true
		f.w.health.streamOpened()
	}
	f.w.health.record(ctx, !f.listing)
}

// end stops a watch and drains it: a filtered watch ([watch.Filter]) would otherwise block
// on an unread event for ever.
func end(w watch.Interface) {
	w.Stop()
	for range w.ResultChan() { //nolint:revive // Drain.
	}
}

// errorEvent returns an event that ends a watch. An expired version makes the reflector
// list again.
func errorEvent(err error) watch.Event {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	return watch.Event{Type: watch.Error, Object: &s}
}

func streams(options metav1.ListOptions) bool {
	return options.SendInitialEvents != nil && *options.SendInitialEvents
}

// endsList reports whether an event is the bookmark at the end of a streamed list.
func endsList(event watch.Event) bool {
	object, err := meta.Accessor(event.Object)
	return event.Type == watch.Bookmark && err == nil && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
