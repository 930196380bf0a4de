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

// request is what the transport must know about a list or a watch to bound its
// answer. It goes along in the request's context.
type request struct {
	object  reflect.Type // the struct of an object, as in corev1.Node
	shape   *shape       // the same in protobuf
	dropped func()       // called for each object that is too large to be decoded
	whole   bool         // such an object ends a list
	// begin and item, of lists only, are called at the start of an answer and
	// for each of its objects. An error ends the list.
	begin func()
	item  func(runtime.Object) error
	// left is how many bytes the answers to all requests of a list may have in all, less
	// those that were read; nil: each may have as many as any answer.
	left *int64
}

type requestKey struct{}

func withRequest(ctx context.Context, r *request) context.Context {
	return context.WithValue(ctx, requestKey{}, r)
}

// requestOf returns nil for a request that isn't one of a watch.
func requestOf(ctx context.Context) *request {
	r, _ := ctx.Value(requestKey{}).(*request)
	return r
}

// take decodes one item of a list and hands it on. One that can't be decoded is
// left out alone, unless the list is wanted whole.
func (r *request) take(raw []byte, protobuf bool) error {
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
		return nil, fmt.Errorf("%v is no API object", r.object)
	}
	if !protobuf {
		if err := checkJSON(raw); err != nil {
			return nil, err
		}
		return object, json.Unmarshal(raw, object)
	}
	message, ok := made.(interface{ Unmarshal(data []byte) error })
	if !ok {
		return nil, fmt.Errorf("%v has no form in protobuf", r.object)
	}
	if err := checkProtobuf(raw, r.shape); err != nil {
		return nil, err
	}
	return object, message.Unmarshal(raw)
}

// takenList is a list whose items the transport has handed on, as the watch
// made them.
type takenList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject implements runtime.Object. Items aren't changed once made.
func (l *takenList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]runtime.Object(nil), l.Items...)
	return &c
}

// GetObjectKind makes trimmed an API object, of no kind, that a list can hold.
func (t *trimmed[T]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. What is kept isn't changed once made.
func (t *trimmed[T]) DeepCopyObject() runtime.Object {
	c := *t
	return &c
}
