package mirror

import (
	"fmt"
	"sync"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// TestSlicesAreReadWhileTheyChange: the writer's workers read slices during a pass.
func TestSlicesAreReadWhileTheyChange(t *testing.T) {
	x := newSliceIndex(func() {})
	var passes sync.WaitGroup
	passes.Go(func() {
		for i := range 500 {
			s := &ObservedSlice{service: "shop/web"}
			s.Name = fmt.Sprint("web-", i)
			x.Observe([]kube.Change[ObservedSlice]{{Key: s.Name, After: s}}, true)
			x.update(map[string]struct{}{})
		}
	})
	for range 500 {
		x.of("shop/web", &Service{})
	}
	passes.Wait()
	if n := len(x.of("shop/web", &Service{})); n != 500 {
		t.Errorf("%d slices", n)
	}
}
