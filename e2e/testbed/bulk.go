package testbed

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AddObjects creates count Node objects without a machine, as fast as the API
// server takes them. Their names are <cluster>-object-00000 and so on, their
// podCIDRs the next free ones (the pod subnets must have room: 100.64.0.0/10
// suffices for 16,000) and their InternalIPs are in 198.18.0.0/15, which is on no
// underlay (RFC 2544 reserves it for benchmarks). adjust, unless it is nil, may
// change object number i before it is created.
func (c *Cluster) AddObjects(ctx context.Context, count int, adjust func(i int, node *corev1.Node)) error {
	c.mu.Lock()
	first := c.taken + 1
	c.taken += count
	c.mu.Unlock()
	addresses := netip.MustParsePrefix("198.18.0.0/15")
	return InParallel(ctx, count, func(ctx context.Context, i int) error {
		prefixes, err := podCIDRs(c.PodSubnets, first+i)
		if err != nil {
			return err
		}
		name := fmt.Sprintf("%s-object-%05d", c.Name, i)
		object := nodeObject(name, prefixes, []netip.Addr{nth(addresses, first+i)})
		if adjust != nil {
			adjust(i, object)
		}
		if _, err := c.client.CoreV1().Nodes().Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create node %s: %w", name, err)
		}
		return nil
	})
}

// InParallel calls do for each number below count, some at the same time, until
// all are done or one returned an error, which ends the context of the others
// and is returned.
func InParallel(ctx context.Context, count int, do func(ctx context.Context, i int) error) error {
	const workers = 32
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	numbers := make(chan int)
	var wg sync.WaitGroup
	for range min(workers, count) {
		wg.Go(func() {
			for i := range numbers {
				if err := do(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	for i := 0; i < count && ctx.Err() == nil; i++ {
		select {
		case numbers <- i:
		case <-ctx.Done():
		}
	}
	close(numbers)
	wg.Wait()
	return context.Cause(ctx)
}
