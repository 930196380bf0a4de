package kube

import (
	"context"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
)

// request describes a list or watch to the transport, in the request's context.
type request struct {
	object  reflect.Type // such as corev1.Node
	shape   *shape       // of object
	dropped func()       // called for each object that can't be decoded within bounds
	whole   bool         // such an object is an error of the list
	// begin and item, of lists only, are called at the start of a response and for each
	// object. An error ends the list.
	begin func()
	item  func(runtime.Object) error
	// left is the number of bytes that all pages of a list may still have together; nil:
	// each has the bound of the transport.
	left *int64
}

type requestKey struct{}

func withRequest(ctx context.Context, r *request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// requestOf returns nil for requests that aren't made for a watch or Listing.
func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// decodeItem decodes one item of a list and passes it to item. It drops one that can't be
// decoded, unless the list must be whole.
func (r *request) decodeItem(raw []byte, protobuf bool) error {
	object, err := r.decode(raw, protobuf)
	if err != nil {
		r.dropped()
		if r.whole {
			return err
		}
		return nil
	}
	return r.item(object)
}

func (r *request) decode(raw []byte, protobuf bool) (runtime.Object, error) {
	made := reflect.New(r.object).Interface()
	object, ok := made.(runtime.Object)
	if !ok {
		return nil, fmt.Errorf("%v is not an API object", r.object)
	}
	if !protobuf {
		if err := checkJSON(raw); err != nil {
			return nil, err
		}
		return object, json.Unmarshal(raw, object)
	}
	message, ok := made.(interface{ Unmarshal(data []byte) error })
	if !ok {
		return nil, fmt.Errorf("%v doesn't support protobuf", r.object)
	}
	if err := checkProtobuf(raw, r.shape); err != nil {
		return nil, err
	}
	return object, message.Unmarshal(raw)
}

// trimmedList is a list with items as collected by the store.
type trimmedList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject implements runtime.Object. Items are immutable.
func (l *trimmedList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]runtime.Object(nil), l.Items...)
	return &c
}

// GetObjectKind implements runtime.Object.
func (t *trimmed[T]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Values are immutable.
func (t *trimmed[T]) DeepCopyObject() runtime.Object {
	c := *t
	return &c
}
