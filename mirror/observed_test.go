package mirror

import (
	"fmt"
	"sync"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/kube"
)

// TestSlicesAreReadWhileTheyChange: the writer's workers read slices during a pass.
func TestSlicesAreReadWhileTheyChange(t *testing.T) {
	x := newObjects(func() {})
	var passes sync.WaitGroup
	passes.Go(func() {
		for i := range 500 {
			s := &ObservedSlice{service: "shop/web"}
			s.Name = fmt.Sprint("web-", i)
			x.slices.Observe([]kube.Change[ObservedSlice]{{Key: s.Name, After: s}}, true)
			x.changed(func(string) {})
		}
	})
	for range 500 {
		x.get(&Service{Name: "shop/web"})
	}
	passes.Wait()
	if n := len(x.get(&Service{Name: "shop/web"}).Slices); n != 500 {
		t.Errorf("%d slices", n)
	}
}
