package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// Reader lists and watches objects of a cluster that isn't trusted. client-go's clients read
// a whole list before they decode it, and events of any size; a Reader decodes lists object by
// object, and bounds each part of a response. It drops objects that can't be decoded. Objects have
// the fields of Kubernetes' types that are read, and no others.
type Reader struct {
	client   func() (Client, error)
	restrict func(*metav1.ListOptions)
	path     string
	// decode and decodeBare read an object, whole or as metadata only.
	decode, decodeBare decodeFunc
	// optional: a cluster that doesn't serve the kind has no objects.
	optional bool

	bare     atomic.Bool // objects are read as metadata only
	suffices func(*metav1.PartialObjectMetadata) bool
}

// decodeFunc reads an object.
type decodeFunc = func(decode func(into any) error) (runtime.Object, error)

type decodable[T any] interface {
	*T
	object() runtime.Object
}

func decodeAs[T any, P decodable[T]](decode func(into any) error) (runtime.Object, error) {
	read := new(T)
	if err := decode(read); err != nil {
		return nil, err
	}
	return P(read).object(), nil
}

// errInsufficient ends a list because of Reader.suffices.
var errInsufficient = errors.New("metadata isn't sufficient")

// absentFor is the interval of asking for a kind that is absent.
const absentFor = 30 * time.Second

// NewNodeReader returns a reader of nodes as metadata only (*metav1.PartialObjectMetadata), a fifth
// of the bytes, until that doesn't suffice for one of them: from then on it reads them whole
// (*corev1.Node). A watch then continues with whole nodes from where it was, without another list,
// so that a watch may have objects of both forms. The client is that of the cluster; see ListWatch.
func NewNodeReader(client func() (Client, error), suffices func(*metav1.PartialObjectMetadata) bool) *Reader {
	r := ReadNodes(client)
	r.decodeBare, r.suffices = decodeAs[nodeMetadata], suffices
	r.bare.Store(true)
	return r
}

// Whole reports whether objects are read whole.
func (r *Reader) Whole() bool { return !r.bare.Load() }

// SetWhole sets the form of the requests that follow; see Watch.Renew.
func (r *Reader) SetWhole(whole bool) { r.bare.Store(!whole) }

// form is the form of the objects of one request.
type form struct {
	decode decodeFunc
	// enough reports whether to go on after an object.
	enough func(runtime.Object) bool
}

// open makes a request. Its body is nil if the kind is absent.
func (r *Reader) open(ctx context.Context, options metav1.ListOptions) (io.ReadCloser, form, error) {
	f, accept := form{r.decode, func(runtime.Object) bool { return true }}, typeJSON
	if r.bare.Load() {
		f, accept = form{r.decodeBare, r.enough}, typeJSON+";as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,"+typeJSON
		if options.Watch {
			accept = typeJSON + ";as=PartialObjectMetadata;g=meta.k8s.io;v=v1," + typeJSON
		}
	}
	client, err := r.client()
	if err != nil {
		return nil, f, err
	}
	if r.restrict != nil {
		r.restrict(&options)
	}
	body, err := client.REST().Get().AbsPath(r.path).VersionedParams(&options, metav1.ParameterCodec).SetHeader("Accept", accept).Stream(ctx)
	if r.optional && apierrors.IsNotFound(err) {
		return nil, f, nil
	}
	return body, f, err
}

// enough ends the use of metadata with the first object for which that doesn't suffice.
func (r *Reader) enough(object runtime.Object) bool {
	m, is := object.(*metav1.PartialObjectMetadata)
	if !is || r.suffices(m) {
		return true
	}
	r.bare.Store(false)
	return false
}

// list lists objects, and calls take for each, whose error ends it, and dropped for each one that is
// dropped.
func (r *Reader) list(ctx context.Context, options metav1.ListOptions, take func(runtime.Object) error, dropped func()) (metav1.ListMeta, error) {
	body, form, err := r.open(ctx, options)
	if body == nil || err != nil {
		return metav1.ListMeta{}, err
	}
	defer body.Close()
	head, err := ReadList(body, func(decode func(any) error) error {
		switch object, err := form.decode(decode); {
		case errors.Is(err, errWrongType):
			dropped()
			return nil
		case err != nil:
			return err
		case !form.enough(object):
			return errInsufficient
		default:
			return take(object)
		}
	})
	if err != nil {
		return metav1.ListMeta{}, fmt.Errorf("read list: %w", err)
	}
	return head.ListMeta, nil
}

// watch watches objects.
func (r *Reader) watch(ctx context.Context, options metav1.ListOptions, dropped func()) (watch.Interface, error) {
	options.Watch = true
	body, form, err := r.open(ctx, options)
	switch {
	case err != nil:
		return nil, err
	case body == nil:
		return quiet(streams(options)), nil
	}
	return watch.NewStreamWatcher(
		&events{stream: newStream(body), body: body, form: form, dropped: dropped},
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding"),
	), nil
}

// quiet returns a watch without objects, which ends after absentFor. A streamed one begins with
// the bookmark that ends the initial list.
func quiet(streamed bool) watch.Interface {
	w := watch.NewFakeWithChanSize(1, false)
	if streamed {
		w.Action(watch.Bookmark, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
			Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	time.AfterFunc(absentFor, w.Stop)
	return w
}
