package kubetest

import (
	"context"
	"sync"
	"testing"

	"github.com/kube-semaphore/kube-semaphore/internal/run"
)

// Run runs a controller's tasks, and lead unless it is nil, until stop is called or the
// test ends. An error of any of them fails the test, and a task that ends by itself.
func Run(t testing.TB, tasks []run.Task, lead func(context.Context) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	for _, task := range tasks {
		wg.Go(func() {
			if err := task.Run(ctx); err != nil || ctx.Err() == nil {
				t.Errorf("%v ended: %v", task, err) // a program would end with it
			}
		})
	}
	if lead != nil {
		wg.Go(func() {
			if err := lead(ctx); err != nil {
				t.Errorf("lead: %v", err)
			}
		})
	}
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}
