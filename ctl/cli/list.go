package cli

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// Bounds of one cluster's responses.
const (
	// maxResponse bounds a response that isn't a list, in bytes: etcd accepts objects of
	// 1.5 MiB, and discovery of 2,000 custom resources is 1 MB.
	maxResponse = 16 << 20
	// maxList bounds a list, in bytes. The longest one is that of nodes: 10,000 have some
	// 150 MB.
	maxList = 256 << 20
	// maxObjects bounds the objects of a list.
	maxObjects = 20_000
	// pageSize is the number of objects per page.
	pageSize = 500
)

// ErrEnough is returned to List by a callback that needs no more objects.
var ErrEnough = errors.New("enough")

// Lister lists objects of a kind, as client-go's typed clients do.
type Lister[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
}

// List reads a list page by page, and calls each for every object. The callback should
// retain no more than it needs: a list may have 256 MiB. A list of more than that, or of
// more than 20,000 objects, is an error.
func List[T, L runtime.Object](ctx context.Context, from Lister[L], options metav1.ListOptions, each func(T) error) error {
	of, _ := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
	return list(ctx, of, from, options, func(object runtime.Object) error {
		typed, ok := object.(T)
		if !ok {
			return fmt.Errorf("%T in a list of %T", object, of)
		}
		return each(typed)
	})
}

// ListUntyped is List for a dynamic client. Objects of Kubernetes' built-in types come
// without a kind: API servers send only that of the list.
func ListUntyped(ctx context.Context, from dynamic.ResourceInterface, options metav1.ListOptions, each func(*unstructured.Unstructured) error) error {
	return list(ctx, &untyped{}, from, options, func(object runtime.Object) error {
		switch o := object.(type) {
		case *untyped:
			return each(&o.Unstructured)
		case *unstructured.Unstructured: // from a fake client
			return each(o)
		default:
			return fmt.Errorf("%T in an untyped list", object)
		}
	})
}

func list[L runtime.Object](ctx context.Context, of runtime.Object, from Lister[L], options metav1.ListOptions, each func(runtime.Object) error) error {
	l := &listing{object: reflect.TypeOf(of).Elem(), each: each, left: maxList}
	if options.Limit == 0 {
		options.Limit = pageSize
	}
	// Servers may return smaller pages, but not arbitrarily many of them.
	const most = 2*maxObjects/pageSize + 10
	for range most {
		l.begun = false
		asked := kube.WithAnswer(context.WithValue(ctx, pageKey{}, l), kube.Answer{Most: l.left})
		page, err := from.List(asked, options)
		if err == nil && !l.begun {
			// A fake client has no transport that decodes objects.
			err = meta.EachListItem(page, l.take)
		}
		switch {
		case errors.Is(l.refused, ErrEnough):
			return nil
		case l.refused != nil:
			return l.refused
		case err != nil:
			return err
		}
		head, err := meta.ListAccessor(page)
		if err != nil {
			return fmt.Errorf("read list: %w", err)
		}
		if options.Continue = head.GetContinue(); options.Continue == "" {
			return nil
		}
	}
	return fmt.Errorf("list doesn't end: %d pages with %d objects", most, l.found)
}

// untyped decodes objects without a kind, which Unstructured rejects.
type untyped struct{ unstructured.Unstructured }

// UnmarshalJSON implements json.Unmarshaler.
func (u *untyped) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &u.Object) }
