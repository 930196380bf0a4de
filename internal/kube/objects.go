package kube

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// Objects has the methods of a kind, in the whole cluster or one namespace. It is
// implemented by client-go's typed clients and their fakes.
type Objects[T, L runtime.Object] interface {
	Create(ctx context.Context, object T, options metav1.CreateOptions) (T, error)
	Update(ctx context.Context, object T, options metav1.UpdateOptions) (T, error)
	Patch(ctx context.Context, name string, of types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string) (T, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
	Get(ctx context.Context, name string, options metav1.GetOptions) (T, error)
	Resource[L]
}

// Reviews is a kind of objects that are created for a response and not stored.
type Reviews[T runtime.Object] interface {
	Create(ctx context.Context, review T, options metav1.CreateOptions) (T, error)
}

// NewObjects returns a client of a kind; an empty namespace means all namespaces, or a
// cluster-scoped kind. It sends protobuf unless the configuration of the group has a
// content type.
func NewObjects[O, L any, T object[O], S list[L]](group rest.Interface, resource, namespace string) Objects[T, S] {
	return gentype.NewClientWithList(resource, group, metav1.ParameterCodec, namespace,
		func() T { return new(O) }, func() S { return new(L) }, gentype.PrefersProtobuf[T]())
}

func newReviews[O any, T object[O]](group rest.Interface, resource string) Reviews[T] {
	return gentype.NewClient(resource, group, metav1.ParameterCodec, "", func() T { return new(O) }, gentype.PrefersProtobuf[T]())
}

type object[O any] interface {
	*O
	runtime.Object
	metav1.Object
}

type list[L any] interface {
	*L
	runtime.Object
}

// GroupConfig returns a copy of cfg for a client of a group, as in client-go's clients.
func GroupConfig(cfg *rest.Config, gv schema.GroupVersion, codecs runtime.NegotiatedSerializer) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.NegotiatedSerializer = &gv, codecs
	cfg.APIPath = "/apis"
	if gv.Group == corev1.GroupName {
		cfg.APIPath = "/api"
	}
	return cfg
}
