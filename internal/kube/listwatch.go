package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
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

// observed forwards lists and watches, records their outcome in health, and lists again when
// there may be quota for rejected objects. client-go's reflector has no record of contact, and
// waits for servers that never respond.
type observed struct {
	inner  cache.ListerWatcherWithContext
	health *health
	store  collector
	// dropped is called for each object that can't be decoded.
	dropped func()
	// count is called with the type of each event.
	count func(watch.EventType)
	// noWatchList is set for clients that don't support streamed lists, such as client-go's
	// fakes.
	noWatchList bool
	// period is how often store.missing is called.
	period time.Duration
	// quorum makes lists quorum reads, as opposed to reads of the watch cache; see Feed.
	quorum bool

	mu   sync.RWMutex // held for reading during a list
	over bool
}

// collector is a store of any type.
type collector interface {
	// begin is called before each page of a list.
	begin(further bool)
	// collectItem trims an object of a list; it is wanted unless it has no meaning.
	collectItem(object runtime.Object) (item runtime.Object, wanted bool, err error)
	// missing reports whether to list again because of rejected objects.
	missing() bool
	// most returns the maximum number of objects; 0: unlimited.
	most() int
}

func observe(inner cache.ListerWatcher, c *health, store collector) *observed {
	return &observed{
		inner:       cache.ToListerWatcherWithContext(inner),
		health:      c,
		store:       store,
		dropped:     func() {},
		count:       func(watch.EventType) {},
		noWatchList: watchlist.DoesClientNotSupportWatchListSemantics(inner),
		period:      relistPeriod,
	}
}

// end waits for a list whose context has ended: client-go doesn't.
func (o *observed) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
}

// IsWatchListSemanticsUnSupported returns whether client-go's reflector must not use
// streamed lists.
func (o *observed) IsWatchListSemanticsUnSupported() bool { return o.noWatchList }

// List implements cache.Lister, which the reflector doesn't use.
func (o *observed) List(options metav1.ListOptions) (runtime.Object, error) {
	return o.ListWithContext(context.Background(), options)
}

// Watch implements cache.Watcher, which the reflector doesn't use.
func (o *observed) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return o.WatchWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWithContext.
func (o *observed) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	o.mu.RLock()
	defer o.mu.RUnlock()
	if o.over {
		return nil, context.Canceled
	}
	if o.quorum && options.Continue == "" {
		options.ResourceVersion, options.ResourceVersionMatch = "", ""
	}
	bounded, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	list, err := o.list(bounded, options)
	if err != nil {
		o.failed(ctx, verbList, err)
		return nil, err
	}
	if head, err := meta.ListAccessor(list); err != nil || head.GetContinue() != "" {
		o.health.recordResponse(ctx)
		return list, nil
	}
	o.health.recordSync(ctx)
	return list, nil
}

// list makes a request. Objects of a reader are collected one by one.
func (o *observed) list(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	reader, ok := o.inner.(objectReader)
	if !ok {
		return o.inner.ListWithContext(ctx, options)
	}
	o.store.begin(options.Continue != "")
	list := &trimmedList{}
	head, err := o.read(ctx, reader, options, list)
	if errors.Is(err, errInsufficient) {
		o.store.begin(options.Continue != "")
		list = &trimmedList{}
		head, err = o.read(ctx, reader, options, list)
	}
	list.ListMeta = head
	return list, err
}

// read makes a request, and appends the objects to the list.
func (o *observed) read(ctx context.Context, reader objectReader, options metav1.ListOptions, list *trimmedList) (metav1.ListMeta, error) {
	return reader.read(ctx, options, func(object runtime.Object) error {
		item, wanted, err := o.store.collectItem(object)
		if wanted {
			list.Items = append(list.Items, item)
		}
		return err
	}, o.dropped)
}

// watch makes a request.
func (o *observed) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if streams(options) {
		o.store.begin(false)
	}
	if reader, ok := o.inner.(objectReader); ok {
		return reader.follow(ctx, options, o.store.most(), o.dropped)
	}
	return o.inner.WatchWithContext(ctx, options)
}

// WatchWithContext implements cache.WatcherWithContext.
func (o *observed) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	streamed := streams(options)
	if streamed && o.quorum {
		options.ResourceVersion = ""
	}
	requested := 24 * time.Hour // which the reflector doesn't leave open
	if options.TimeoutSeconds != nil {
		requested = time.Duration(*options.TimeoutSeconds) * time.Second
	}
	bounded, cancel := context.WithTimeout(ctx, requested+watchOvertime)
	opening := time.AfterFunc(openTimeout, cancel)
	inner, err := o.watch(bounded, options)
	if !opening.Stop() && err == nil {
		end(inner)
		err = errors.New("watch opened after its timeout")
	}
	if err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = fmt.Errorf("no response within %v: %w", openTimeout, err)
		}
		cancel()
		if !streamingUnsupported(options, err) {
			o.failed(ctx, verbWatch, err)
		}
		return nil, err
	}
	w := &observedWatch{inner: inner, events: make(chan watch.Event), stopped: make(chan struct{}), listing: streamed}
	// client-go reports a broken connection as a watch that is closed already; only other
	// watches are a response of the server.
	select {
	case first, ok := <-inner.ResultChan():
		if !ok {
			cancel()
			o.failed(ctx, verbWatch, errors.New("watch ended immediately"))
			close(w.events)
			return w, nil
		}
		w.first = &first
	default:
		w.alive(ctx, o)
	}
	go func() {
		defer end(inner)
		defer close(w.events)
		defer cancel()
		w.forward(ctx, o)
		if w.open {
			o.health.streamClosed()
		}
	}()
	return w, nil
}

// streamingUnsupported reports whether err means that the server doesn't support streamed
// lists, which are on by default since Kubernetes 1.34. The reflector then falls back to a
// plain list at once, so that it is no failure.
func streamingUnsupported(options metav1.ListOptions, err error) bool {
	return streams(options) && apierrors.IsInvalid(err)
}

// failed records an error, unless the resource version has expired or is in the future:
// then the reflector lists again.
func (o *observed) failed(ctx context.Context, verb string, err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		o.health.recordResponse(ctx)
		return
	}
	o.health.recordFailure(ctx, verb, err)
}

// observedWatch forwards the events of another watch.
type observedWatch struct {
	inner    watch.Interface
	listing  bool // a list is still being streamed
	first    *watch.Event
	events   chan watch.Event
	stopped  chan struct{}
	stopOnce sync.Once
	open     bool // streamOpened was called
}

// ResultChan implements watch.Interface.
func (w *observedWatch) ResultChan() <-chan watch.Event { return w.events }

// Stop implements watch.Interface.
func (w *observedWatch) Stop() {
	w.stopOnce.Do(func() {
		close(w.stopped)
		w.inner.Stop()
	})
}

// forward forwards events until the watch ends.
func (w *observedWatch) forward(ctx context.Context, o *observed) {
	if w.first != nil && !w.pass(ctx, o, *w.first) {
		return
	}
	relist := time.NewTicker(o.period)
	defer relist.Stop()
	for {
		select {
		case event, open := <-w.inner.ResultChan():
			if !open || !w.pass(ctx, o, event) {
				return
			}
		case <-relist.C:
			if !w.listing && o.store.missing() {
				w.pass(ctx, o, errorEvent(apierrors.NewResourceExpired("there may be quota for rejected objects")))
				return
			}
		case <-w.stopped:
			return
		}
	}
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

// alive records that the server serves the watch.
func (w *observedWatch) alive(ctx context.Context, o *observed) {
	if w.listing {
		o.health.recordResponse(ctx)
		return
	}
	if !w.open {
		w.open = true
		o.health.streamOpened()
	}
	o.health.recordSync(ctx)
}

func (w *observedWatch) pass(ctx context.Context, o *observed, event watch.Event) bool {
	o.count(event.Type)
	w.listing = w.listing && !endsList(event)
	if event.Type == watch.Error {
		o.failed(ctx, verbWatch, apierrors.FromObject(event.Object))
	} else {
		w.alive(ctx, o)
	}
	select {
	case w.events <- event:
		return true
	case <-w.stopped:
		return false
	}
}

func streams(options metav1.ListOptions) bool {
	return options.SendInitialEvents != nil && *options.SendInitialEvents
}

// endsList reports whether an event is the bookmark at the end of a streamed list.
func endsList(event watch.Event) bool {
	object, err := meta.Accessor(event.Object)
	return event.Type == watch.Bookmark && err == nil && object.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true"
}
