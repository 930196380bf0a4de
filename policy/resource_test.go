package policy

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	calico "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// askedSets notes the options of requests, and answers with an error.
type askedSets struct {
	fakeSets
	err     error
	options []metav1.ListOptions
}

// List implements SetClient.
func (a *askedSets) List(_ context.Context, options metav1.ListOptions) (*calico.GlobalNetworkSetList, error) {
	a.options = append(a.options, options)
	return &calico.GlobalNetworkSetList{}, a.err
}

// Watch implements SetClient.
func (a *askedSets) Watch(_ context.Context, options metav1.ListOptions) (watch.Interface, error) {
	a.options = append(a.options, options)
	return watch.NewFake(), a.err
}

// TestListsAreUpToDate also holds that only lists are asked for in another way: a
// watch goes on from the version that it is told.
func TestListsAreUpToDate(t *testing.T) {
	t.Parallel()
	asked := &askedSets{}
	sets := current[*calico.GlobalNetworkSetList]{asked}
	cached := metav1.ListOptions{ResourceVersion: "0", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	later := metav1.ListOptions{ResourceVersion: "7", ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan}
	for _, options := range []metav1.ListOptions{cached, later} {
		_, listErr := sets.List(t.Context(), options)
		_, watchErr := sets.Watch(t.Context(), options)
		if listErr != nil || watchErr != nil {
			t.Errorf("list %v, watch %v", listErr, watchErr)
		}
	}
	if diff := cmp.Diff([]metav1.ListOptions{{}, cached, later, later}, asked.options); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAPIThatHasGoneIsForgotten(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		want int // times, of two requests
	}{
		"served":  {nil, 0},
		"refused": {apierrors.NewForbidden(resource(), "", nil), 0},
		"gone":    {apierrors.NewNotFound(resource(), ""), 2},
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
