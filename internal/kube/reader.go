package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// reader lists and watches objects of a cluster that isn't trusted. client-go's clients read
// a whole list before they decode it, and events of any size; a reader decodes lists object by
// object, and bounds each part of a response. It drops objects that can't be decoded.
type reader[T any, P decodable[T]] struct {
	client   func() (Client, error)
	restrict func(*metav1.ListOptions)
	path     string
	// absent, unless nil, is called with the outcome of each request, and reports whether it
	// means that there are no objects.
	absent func(error) bool
	// partial: metadata only.
	partial bool
	// suffices, unless nil, ends a list or watch before the first object for which it returns
	// false.
	suffices func(runtime.Object) bool
}

// errInsufficient ends a list because of reader.suffices.
var errInsufficient = errors.New("metadata isn't sufficient")

// absentFor is the interval of asking for a kind that is absent.
const absentFor = 30 * time.Second

type decodable[T any] interface {
	*T
	object() runtime.Object
}

func newReader[T any, P decodable[T]](client func() (Client, error), restrict func(*metav1.ListOptions), path string) cache.ListerWatcher {
	return &reader[T, P]{client: client, restrict: restrict, path: path}
}

// objectReader is a reader of any kind. Its methods call dropped for each object that is
// dropped.
type objectReader interface {
	// read lists objects, and calls take for each; an error of it ends the list.
	read(ctx context.Context, options metav1.ListOptions, take func(runtime.Object) error, dropped func()) (metav1.ListMeta, error)
	// follow watches objects. A streamed list of more than twice as many objects as most, if
	// that isn't 0, ends with an error: the reflector collects it first.
	follow(ctx context.Context, options metav1.ListOptions, most int, dropped func()) (watch.Interface, error)
}

// List implements cache.Lister.
func (r *reader[T, P]) List(options metav1.ListOptions) (runtime.Object, error) {
	return r.ListWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWithContext. It omits the objects.
func (r *reader[T, P]) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	head, err := r.list(ctx, options, func(runtime.Object) error { return nil }, func() {})
	return &trimmedList{ListMeta: head}, err
}

// Watch implements cache.Watcher.
func (r *reader[T, P]) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return r.WatchWithContext(context.Background(), options)
}

// WatchWithContext implements cache.WatcherWithContext.
func (r *reader[T, P]) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return r.follow(ctx, options, 0, func() {})
}

func (r *reader[T, P]) open(ctx context.Context, options metav1.ListOptions) (io.ReadCloser, error) {
	client, err := r.client()
	if err != nil {
		return nil, err
	}
	if r.restrict != nil {
		r.restrict(&options)
	}
	return client.REST().Get().AbsPath(r.path).VersionedParams(&options, metav1.ParameterCodec).SetHeader("Accept", r.accept(options.Watch)).Stream(ctx)
}

// accept returns the requested format. A server that doesn't know metadata only sends whole
// objects, of which no more is decoded.
func (r *reader[T, P]) accept(watch bool) string {
	switch {
	case !r.partial:
		return typeJSON
	case watch:
		return typeJSON + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + typeJSON
	}
	return typeJSON + ";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1," + typeJSON
}

func (r *reader[T, P]) read(ctx context.Context, options metav1.ListOptions, take func(runtime.Object) error, dropped func()) (metav1.ListMeta, error) {
	return r.list(ctx, options, func(object runtime.Object) error {
		if r.suffices != nil && !r.suffices(object) {
			return errInsufficient
		}
		return take(object)
	}, dropped)
}

func (r *reader[T, P]) list(ctx context.Context, options metav1.ListOptions, take func(runtime.Object) error, dropped func()) (metav1.ListMeta, error) {
	body, err := r.open(ctx, options)
	switch {
	case r.absent != nil && r.absent(err):
		return metav1.ListMeta{}, nil
	case err != nil:
		return metav1.ListMeta{}, err
	}
	defer body.Close()
	head, err := ReadList(body, func(decode func(any) error) error {
		read := new(T)
		switch err := decode(read); {
		case errors.Is(err, errWrongType):
			dropped()
			return nil
		case err != nil:
			return err
		}
		return take(P(read).object())
	})
	if err != nil {
		return metav1.ListMeta{}, fmt.Errorf("read list: %w", err)
	}
	return head.ListMeta, nil
}

func (r *reader[T, P]) follow(ctx context.Context, options metav1.ListOptions, most int, dropped func()) (watch.Interface, error) {
	options.Watch = true
	body, err := r.open(ctx, options)
	switch {
	case r.absent != nil && r.absent(err):
		return r.quiet(streams(options)), nil
	case err != nil:
		return nil, err
	}
	decoder := newEvents[T, P](body, dropped)
	decoder.suffices = r.suffices
	if streams(options) {
		decoder.most = transitShare * most
	}
	return watch.NewStreamWatcher(decoder, apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")), nil
}

// quiet returns a watch without objects, which ends after absentFor. A streamed one begins with
// the bookmark that ends the initial list.
func (r *reader[T, P]) quiet(streamed bool) watch.Interface {
	w := watch.NewFakeWithChanSize(1, false)
	if object := P(new(T)).object(); streamed {
		if of, ok := object.(metav1.Object); ok {
			of.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		}
		w.Action(watch.Bookmark, object)
	}
	time.AfterFunc(absentFor, w.Stop)
	return w
}
