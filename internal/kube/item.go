package kube

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// item is an object on its way from a request to the store, trimmed as soon as it is read: a
// list is never held in whole. client-go's reflector sees its name and version.
type item[T any] struct {
	// The name, the namespace and the version only; of bookmarks the annotations, too.
	metav1.ObjectMeta
	value T
	// kept: it is to be stored. rejected: it would be, but for the quota.
	kept, rejected bool
	size           int64 // of value, in bytes; 0 without a quota, or if it isn't kept
}

// GetObjectKind implements runtime.Object.
func (*item[T]) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object. Values are immutable.
func (i *item[T]) DeepCopyObject() runtime.Object {
	c := *i
	return &c
}

func (i *item[T]) key() string {
	if i.Namespace == "" {
		return i.Name
	}
	return i.Namespace + "/" + i.Name
}

// namespaceOf returns the namespace of a key; empty: it has none.
func namespaceOf(key string) string {
	slash := strings.IndexByte(key, '/')
	return key[:max(slash, 0)]
}

// itemList is a list of items.
type itemList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject implements runtime.Object. Items are immutable.
func (l *itemList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]runtime.Object(nil), l.Items...)
	return &c
}

// newItem returns an item without its value.
func newItem[T any](object runtime.Object) (*item[T], error) {
	from, err := meta.Accessor(object)
	if err != nil {
		return nil, fmt.Errorf("read %T: %w", object, err)
	}
	return &item[T]{ObjectMeta: metav1.ObjectMeta{Namespace: from.GetNamespace(), Name: from.GetName(), ResourceVersion: from.GetResourceVersion()}}, nil
}

// maxName is the maximum length of an object's name (a DNS subdomain, RFC 1123).
const maxName = 253

// possible reports whether what an item keeps of the object's metadata may be valid. Neither a name
// nor a namespace has a slash, so that namespace/name is the key of one object.
func (i *item[T]) possible() bool {
	return !strings.Contains(i.Namespace+i.Name, "/") && i.Name != "" && len(i.Name) <= maxName && utf8.ValidString(i.Name) && len(i.Namespace) <= maxName && utf8.ValidString(i.Namespace) &&
		len(i.ResourceVersion) <= maxName
}
