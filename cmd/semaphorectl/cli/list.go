package cli

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// Bounds of what one cluster's answers may make this program hold.
const (
	// mostAnswered is the most bytes of one answer that isn't a list: etcd takes objects
	// of 1.5 MiB, and discovery of 2,000 custom resources has 1 MB.
	mostAnswered = 16 << 20
	// mostListed is the most bytes of one list. Of 10,000 nodes, which is the longest list
	// that is read, there are some 150 MB.
	mostListed = 256 << 20
	// mostObjects is the most objects of one list.
	mostObjects = 20_000
)

// ErrEnough is what take returns to List when it needs no more objects.
var ErrEnough = errors.New("enough")

// Lister lists objects of a kind, as client-go's typed clients do.
type Lister[L runtime.Object] interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
}

// List reads a list page by page, and calls take for each object of it. Take should keep
// no more than it needs: all of a list may be 256 MiB. A list of more than that, or of more
// than 20,000 objects, is an error.
func List[T, L runtime.Object](ctx context.Context, from Lister[L], options metav1.ListOptions, take func(T) error) error {
	of, _ := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
	return list(ctx, of, from, options, func(object runtime.Object) error {
		typed, ok := object.(T)
		if !ok {
			return fmt.Errorf("%T in a list of %T", object, of)
		}
		return take(typed)
	})
}

// ListUntyped is List for a dynamic client. Objects of Kubernetes' own kinds have no kind:
// API servers say it of the list alone.
func ListUntyped(ctx context.Context, from dynamic.ResourceInterface, options metav1.ListOptions, take func(*unstructured.Unstructured) error) error {
	return list(ctx, &untyped{}, from, options, func(object runtime.Object) error {
		switch o := object.(type) {
		case *untyped:
			return take(&o.Unstructured)
		case *unstructured.Unstructured: // of a fake
			return take(o)
		default:
			return fmt.Errorf("%T in an untyped list", object)
		}
	})
}

func list[L runtime.Object](ctx context.Context, of runtime.Object, from Lister[L], options metav1.ListOptions, take func(runtime.Object) error) error {
	listing := kube.Listing{Of: of, Options: options, Objects: mostObjects, Bytes: mostListed}
	err := listing.Each(ctx, func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return from.List(ctx, options)
	}, take)
	if errors.Is(err, ErrEnough) {
		return nil
	}
	return err
}

// untyped is an object that may have no kind, which Unstructured refuses.
type untyped struct{ unstructured.Unstructured }

// UnmarshalJSON implements json.Unmarshaler.
func (u *untyped) UnmarshalJSON(text []byte) error { return json.Unmarshal(text, &u.Object) }
