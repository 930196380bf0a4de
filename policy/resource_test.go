package policy

import (
	"context"
	"errors"
	"testing"

	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// askedSets answers with an error.
type askedSets struct {
	SetClient
	err error
}

// List implements SetClient.
func (a *askedSets) List(context.Context, metav1.ListOptions) (*calico.GlobalNetworkSetList, error) {
	return &calico.GlobalNetworkSetList{}, a.err
}

// Watch implements SetClient.
func (a *askedSets) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return watch.NewFake(), a.err
}

func TestAPIThatHasGoneIsForgotten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want int // times, of two requests
	}{
		"served":  {nil, 0},
		"refused": {apierrors.NewForbidden(schema.GroupResource{Group: "projectcalico.org", Resource: kube.NetworkSets}, "", nil), 0},
		"gone":    {apierrors.NewNotFound(schema.GroupResource{Group: "projectcalico.org", Resource: kube.NetworkSets}, ""), 2},
	} {
		t.Run(name, func(t *testing.T) {
			forgotten := 0
			sets := mayGo{&askedSets{err: c.err}, func() { forgotten++ }}
			_, listErr := sets.List(t.Context(), metav1.ListOptions{})
			_, watchErr := sets.Watch(t.Context(), metav1.ListOptions{})
			if !errors.Is(listErr, c.err) || !errors.Is(watchErr, c.err) {
				t.Errorf("list %v, watch %v, want %v", listErr, watchErr, c.err)
			}
			if forgotten != c.want {
				t.Errorf("forgotten %d times, want %d", forgotten, c.want)
			}
		})
	}
}
