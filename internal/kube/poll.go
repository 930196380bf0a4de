package kube

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// PollNode returns a WatchConfig.ListWatch of one node that requests it at intervals of period. It
// is for an account that may get nodes, and neither list nor watch them: RBAC can't limit those
// verbs to the node that a token is bound to.
func PollNode(client Client, name string, period func() time.Duration) cache.ListerWatcher {
	p := &poll{nodes: client.Nodes(), name: name, period: period}
	return &polled{&cache.ListWatch{ListWithContextFunc: p.list, WatchFuncWithContext: p.watch}}
}

// polled has no streamed lists.
type polled struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported implements an interface of client-go.
func (*polled) IsWatchListSemanticsUnSupported() bool { return true }

type poll struct {
	nodes  Objects[*corev1.Node, *corev1.NodeList]
	name   string
	period func() time.Duration
}

func (p *poll) list(ctx context.Context, _ metav1.ListOptions) (runtime.Object, error) {
	list := &corev1.NodeList{}
	// The API server answers version 0 from its watch cache.
	switch n, err := p.nodes.Get(ctx, p.name, metav1.GetOptions{ResourceVersion: "0"}); {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, err
	default:
		list.Items, list.ResourceVersion = []corev1.Node{*n}, n.ResourceVersion
	}
	return list, nil
}

// watch ends when the node has another version, so that it is listed again.
func (p *poll) watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	go func() {
		defer close(events)
		ticker := time.NewTicker(p.period())
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-w.StopChan():
				return
			case <-ticker.C:
			}
			now, err := p.list(ctx, options)
			if err == nil {
				if now.(*corev1.NodeList).ResourceVersion == options.ResourceVersion { //nolint:forcetypeassert // The type of list.
					continue
				}
				err = apierrors.NewResourceExpired("the node has changed")
			}
			select {
			case events <- errorEvent(err):
			case <-ctx.Done():
			case <-w.StopChan():
			}
			return
		}
	}()
	return w, nil
}
