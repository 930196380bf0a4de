package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/watchlist"
)

// Bounds that hold even where a server accepts requests and never answers.
const (
	// The API server gives up on a list after a minute by itself.
	listTimeout = 2 * time.Minute
	// Some proxies pass on the header of an answer only with the first event,
	// which without changes is the bookmark that comes about once a minute.
	openTimeout = 90 * time.Second
	// How long after the time that it was asked to last a watch may go on.
	watchOvertime = 30 * time.Second
	// How often a list may be read for objects that there was no room for.
	relistPeriod = time.Minute
)

// Resource is what is read of a kind, as of client.Nodes().
type Resource[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// ListWatch makes what WatchConfig wants of a resource. Each request asks for the
// resource anew, because it may only be there later: an error is that of the
// request. Restrict, unless nil, adds a selector to the options of requests.
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

// Of returns, for ListWatch, a resource of a client such as LazyClient makes.
func Of[L runtime.Object](client func() (Client, error), resource func(Client) Resource[L]) func(context.Context) (Resource[L], error) {
	return func(context.Context) (Resource[L], error) {
		c, err := client()
		if err != nil {
			return nil, err
		}
		return resource(c), nil
	}
}

// Nodes are, for Of, the nodes of a cluster.
func Nodes(client Client) Resource[*corev1.NodeList] { return client.Nodes() }

// observed passes lists and watches on and notes how they go.
type observed struct {
	inner   cache.ListerWatcherWithContext
	contact *contact
	bounded *bounded // nil: the own cluster's
	// noWatchList is set for clients, such as the fakes of client-go, that
	// say that they can't stream the initial list.
	noWatchList bool
	// missing reports whether to read a list for objects that there was no room
	// for; it is asked every period.
	missing func() bool
	period  time.Duration
	// current has lists be up to date; see Watch.
	current bool
	silence time.Duration // after which to ask a server whether it still has what it said

	mu    sync.RWMutex // held for reading during a list
	over  bool
	doubt atomic.Int32 // whether the server goes on from what was read
}

// Doubts, in the order of their weight.
const (
	doubtNone   int32 = iota
	doubtFailed       // a request failed since the server showed its version
	doubtAway         // a connection was broken since everything was read
)

func observe(inner cache.ListerWatcher, c *contact) *observed {
	return &observed{
		inner:       cache.ToListerWatcherWithContext(inner),
		contact:     c,
		noWatchList: watchlist.DoesClientNotSupportWatchListSemantics(inner),
		missing:     func() bool { return false },
		period:      relistPeriod,
		silence:     bookmarkPeriod,
	}
}

// end waits for the list that is going on, after whose context has ended: client-go
// doesn't.
func (o *observed) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over = true
}

// IsWatchListSemanticsUnSupported tells client-go's reflector whether to list
// by streaming.
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
	if o.current && options.Continue == "" {
		options.ResourceVersion, options.ResourceVersionMatch = "", ""
	}
	bounded, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	bounded, taken := o.bounded.list(bounded, options)
	list, err := o.inner.ListWithContext(bounded, options)
	if err == nil {
		list, err = taken(list)
	}
	if err != nil {
		o.failed(ctx, verbList, err)
		return nil, err
	}
	if head, err := meta.ListAccessor(list); err != nil || head.GetContinue() != "" {
		o.contact.answered(ctx)
		return list, nil
	}
	o.complete(ctx)
	return list, nil
}

// complete notes that everything has been read.
func (o *observed) complete(ctx context.Context) {
	o.doubt.Store(doubtNone)
	o.contact.made(ctx)
}

// restored asks the server for the version that it is at, and returns an error when
// it can't say, or when that is one before version: the server was restored from a
// backup, and a watch would silently wait until it is past version again. The error is
// the one of an API server that has forgotten a version, and has everything listed.
func (o *observed) restored(ctx context.Context, version string) error {
	bounded, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	list, err := o.inner.ListWithContext(o.bounded.head(bounded), metav1.ListOptions{Limit: 1})
	if err != nil {
		return err
	}
	o.doubt.Store(doubtNone)
	head, err := meta.ListAccessor(list)
	if err != nil {
		return err
	}
	// Versions that aren't numbers can't be compared.
	if order, err := resourceversion.CompareResourceVersion(head.GetResourceVersion(), version); err == nil && order < 0 {
		return apierrors.NewResourceExpired("the server went back to an earlier version")
	}
	return nil
}

// resume returns why a watch can't go on from a version.
func (o *observed) resume(ctx context.Context, version string) error {
	if version == "" || version == "0" {
		return nil
	}
	// After so long a time even a server that went back may be past the version.
	if last, _ := o.contact.state(); o.current && !last.IsZero() && time.Since(last) > o.silence {
		return apierrors.NewResourceExpired("out of contact for too long")
	}
	// Nor may one that was started anew from a backup which is a few writes old: the
	// server itself writes when it starts.
	doubt := o.doubt.Load()
	if o.current && doubt == doubtAway {
		return apierrors.NewResourceExpired("the server was away")
	}
	if doubt == doubtNone {
		return nil
	}
	return o.restored(ctx, version)
}

// WatchWithContext implements cache.WatcherWithContext.
func (o *observed) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	streamed := streams(options)
	if streamed && o.current {
		options.ResourceVersion = ""
	}
	if !streamed {
		if err := o.resume(ctx, options.ResourceVersion); err != nil {
			o.failed(ctx, verbWatch, err)
			return nil, err
		}
	}
	bounded, cancel := context.WithCancel(ctx)
	began := time.Now()
	opening := time.AfterFunc(openTimeout, cancel)
	inner, err := o.inner.WatchWithContext(o.bounded.watch(bounded, options), options)
	if !opening.Stop() && err == nil {
		end(inner)
		err = errors.New("opened too late")
	}
	if err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			err = fmt.Errorf("no answer within %v: %w", openTimeout, err)
		}
		cancel()
		if !refusesToStream(options, err) {
			o.failed(ctx, verbWatch, err)
		}
		return nil, err
	}
	w := &observedWatch{inner: inner, events: make(chan watch.Event), stopped: make(chan struct{}), initial: o.bounded.initial(options), version: options.ResourceVersion}
	// client-go makes a watch that ended at once of one that met a broken
	// connection; only others are an answer of the server.
	select {
	case first, ok := <-inner.ResultChan():
		if !ok {
			cancel()
			o.failed(ctx, verbWatch, errors.New("watch ended as it began"))
			close(w.events)
			return w, nil
		}
		w.first = &first
	default:
		w.alive(ctx, o)
	}
	var overtime *time.Timer
	if options.TimeoutSeconds != nil {
		overtime = time.AfterFunc(time.Duration(*options.TimeoutSeconds)*time.Second+watchOvertime, cancel)
	}
	go func() {
		defer end(inner)
		defer close(w.events)
		defer cancel()
		if overtime != nil {
			defer overtime.Stop()
		}
		if w.forward(ctx, o) && (options.TimeoutSeconds == nil || time.Since(began) < time.Duration(*options.TimeoutSeconds)*time.Second) {
			// Not by what it was asked for. client-go tries again by itself, and so
			// no request needs to fail while a server is away.
			o.doubt.Store(doubtAway)
		}
		if w.open {
			o.contact.ended()
		}
	}()
	return w, nil
}

// refusesToStream reports whether err is the answer to options of a server that
// doesn't stream lists, as most before Kubernetes 1.34 don't. The reflector lists
// in the plain way at once, and only how that goes says something about the server.
func refusesToStream(options metav1.ListOptions, err error) bool {
	return streams(options) && apierrors.IsInvalid(err)
}

// failed notes an error unless it belongs to the normal course: the server
// has forgotten the version to go on from, or isn't at it yet or any more, and the
// reflector lists anew.
func (o *observed) failed(ctx context.Context, verb string, err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) || apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		o.contact.answered(ctx)
		return
	}
	if status := apierrors.APIStatus(nil); !errors.As(err, &status) {
		o.doubt.Store(doubtAway)
	} else {
		o.doubt.CompareAndSwap(doubtNone, doubtFailed)
	}
	o.contact.failed(ctx, verb, err)
}

// observedWatch hands on the events of another watch.
type observedWatch struct {
	inner    watch.Interface
	initial  *initialEvents // nil: no list is streamed
	version  string         // of the last event
	first    *watch.Event
	events   chan watch.Event
	stopped  chan struct{}
	stopOnce sync.Once
	open     bool // the server has shown that it serves the stream
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

// forward hands on events until the watch is over. It returns whether the server, or
// the connection to it, ended it without a word.
func (w *observedWatch) forward(ctx context.Context, o *observed) bool {
	if w.first != nil && !w.pass(ctx, o, *w.first) {
		return false
	}
	look := time.NewTicker(o.period)
	defer look.Stop()
	silent := time.NewTimer(o.silence)
	defer silent.Stop()
	for {
		select {
		case event, open := <-w.inner.ResultChan():
			if !open {
				return ctx.Err() == nil
			}
			if !w.pass(ctx, o, event) {
				return false
			}
			silent.Reset(o.silence)
		case <-silent.C:
			if !w.initial.going() {
				if err := o.restored(ctx, w.version); err != nil {
					w.pass(ctx, o, errorEvent(err))
					return false
				}
			}
			silent.Reset(o.silence)
		case <-look.C:
			if !w.initial.going() && o.missing() {
				w.pass(ctx, o, errorEvent(apierrors.NewResourceExpired("there is room for objects that were rejected")))
				return false
			}
		case <-w.stopped:
			return false
		}
	}
}

// end stops a watch and takes what it still hands out, as one that filters another
// ([watch.Filter]) would otherwise wait for ever for somebody to do.
func end(w watch.Interface) {
	w.Stop()
	for range w.ResultChan() { //nolint:revive // Nobody wants these.
	}
}

// errorEvent is an event that ends a watch for a reason. What an API server says that
// has forgotten the version to go on from has the reflector list anew.
func errorEvent(err error) watch.Event {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	return watch.Event{Type: watch.Error, Object: &s}
}

// alive notes that the server serves the stream.
func (w *observedWatch) alive(ctx context.Context, o *observed) {
	if w.initial.going() {
		o.contact.answered(ctx)
		return
	}
	if !w.open {
		w.open = true
		o.contact.opened()
		if w.initial != nil {
			o.doubt.Store(doubtNone)
		}
	}
	o.contact.made(ctx)
}

func (w *observedWatch) pass(ctx context.Context, o *observed, event watch.Event) bool {
	event, last := w.initial.count(event)
	if event.Type == watch.Error {
		o.failed(ctx, verbWatch, apierrors.FromObject(event.Object))
	} else {
		w.alive(ctx, o)
		if object, err := meta.Accessor(event.Object); err == nil {
			w.version = object.GetResourceVersion()
		}
	}
	select {
	case w.events <- event:
		return !last
	case <-w.stopped:
		return false
	}
}
