package kube

import (
	"context"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
)

// NodeReader is a WatchConfig.ListWatch of the nodes of a cluster that isn't trusted. It reads
// them as metadata only (*metav1.PartialObjectMetadata), a fifth of the bytes, until that
// doesn't suffice for one of them: from then on it reads them whole (*corev1.Node). A watch
// then continues with whole nodes from where it was, without another list, so that a watch may
// have objects of both forms.
type NodeReader struct {
	suffices        func(*metav1.PartialObjectMetadata) bool
	full            atomic.Bool
	metadata, whole nodeForm
}

const nodesPath = "/api/v1/nodes"

// nodeForm reads one of the forms.
type nodeForm interface {
	objectReader
	ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error)
	WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// NewNodeReader returns a reader. The client is that of the cluster; see ListWatch.
func NewNodeReader(client func() (Client, error), suffices func(*metav1.PartialObjectMetadata) bool) *NodeReader {
	n := &NodeReader{suffices: suffices, whole: &reader[nodeRead, *nodeRead]{client: client, path: nodesPath}}
	n.metadata = &reader[nodeMetadata, *nodeMetadata]{client: client, path: nodesPath, partial: true, suffices: n.check}
	return n
}

// check reports whether metadata suffices for an object.
func (n *NodeReader) check(object runtime.Object) bool {
	m, is := object.(*metav1.PartialObjectMetadata)
	if !is || n.suffices(m) {
		return true
	}
	n.full.Store(true)
	return false
}

// Whole reports whether nodes are read whole.
func (n *NodeReader) Whole() bool { return n.full.Load() }

// SetWhole sets the form of the requests that follow; see Watch.Renew.
func (n *NodeReader) SetWhole(whole bool) { n.full.Store(whole) }

func (n *NodeReader) form() nodeForm {
	if n.full.Load() {
		return n.whole
	}
	return n.metadata
}

// List implements cache.Lister.
func (n *NodeReader) List(options metav1.ListOptions) (runtime.Object, error) {
	return n.ListWithContext(context.Background(), options)
}

// ListWithContext implements cache.ListerWithContext. It omits the objects.
func (n *NodeReader) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	return n.form().ListWithContext(ctx, options)
}

// Watch implements cache.Watcher.
func (n *NodeReader) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return n.WatchWithContext(context.Background(), options)
}

// WatchWithContext implements cache.WatcherWithContext.
func (n *NodeReader) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return n.form().WatchWithContext(ctx, options)
}

func (n *NodeReader) read(ctx context.Context, options metav1.ListOptions, take func(runtime.Object) error, dropped func()) (metav1.ListMeta, error) {
	return n.form().read(ctx, options, take, dropped)
}

func (n *NodeReader) follow(ctx context.Context, options metav1.ListOptions, most int, dropped func()) (watch.Interface, error) {
	return n.form().follow(ctx, options, most, dropped)
}

// NodeMetadata is a WatchConfig.ListWatch of the nodes of a cluster that isn't trusted, as
// metadata only (*metav1.PartialObjectMetadata). A cluster that forbids reading them to its
// account has none, unless they have been read before.
type NodeMetadata struct {
	*reader[nodeMetadata, *nodeMetadata]
	notify    func()
	answered  atomic.Bool
	forbidden atomic.Int64
}

// NewNodeMetadata returns a reader. The client is that of the cluster; see ListWatch. notify is
// called after each answer that forbids reading, and must not block.
func NewNodeMetadata(client func() (Client, error), notify func()) *NodeMetadata {
	n := &NodeMetadata{notify: notify}
	n.reader = &reader[nodeMetadata, *nodeMetadata]{client: client, path: nodesPath, partial: true, absent: n.absent}
	return n
}

func (n *NodeMetadata) absent(err error) bool {
	switch {
	case err == nil:
		n.answered.Store(true)
		return false
	case n.answered.Load() || !apierrors.IsForbidden(err):
		return false
	}
	n.forbidden.Add(1)
	n.notify()
	return true
}

// Forbidden returns how often reading was forbidden since start; 0 once nodes have been read.
func (n *NodeMetadata) Forbidden() int64 {
	if n.answered.Load() {
		return 0
	}
	return n.forbidden.Load()
}
