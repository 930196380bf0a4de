package controllers_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/kube-semaphore/kube-semaphore/e2e/testbed"
	"github.com/kube-semaphore/kube-semaphore/policy"
)

// requests returns how many writes an instance made, by verb, and how many of them were
// outdated or failed.
func (i *policyInstance) requests(t *testing.T) map[string]int {
	t.Helper()
	all := map[string]int{}
	writes, _ := samples(t, i.metrics, "semaphore_policy_writes_total")
	for _, s := range writes {
		all[s.labels["verb"]] += int(s.value)
	}
	for name, metric := range map[string]string{"outdated": "semaphore_policy_outdated_writes_total", "failed": "kube_policy_semaphore_calico_client_failures"} {
		if _, sum := samples(t, i.metrics, metric); sum > 0 {
			all[name] = int(sum)
		}
	}
	return all
}

// testVolume expects one write for each of 100 sets of 2,000 pods that exist at the start.
// Then all pods are relabelled at once.
func (b *policyBed) testVolume(t *testing.T) {
	const pods, apps = 2000, 100
	createNamespace(t, b.merit, "ns")
	pod := func(i int) podSpec {
		return running("ns", fmt.Sprintf("pod-%d", i), fmt.Sprintf("app-%d", i%apps), fmt.Sprintf("10.6.%d.%d", i/200, 1+i%200))
	}
	must(t, testbed.InParallel(t.Context(), pods, func(ctx context.Context, i int) error { return putPod(ctx, b.merit, pod(i)) }))
	began := time.Now()
	i := b.start(t, b.gcp, nil, b.merit)
	complete := func(want int) func() error {
		return func() error {
			s := i.status(t, "merit")
			total := 0
			for _, set := range s.Sets {
				total += set.Addresses
			}
			if len(s.Sets) != want || total != pods || s.Pending > 0 {
				return fmt.Errorf("%d sets of %d addresses, %d to write", len(s.Sets), total, s.Pending)
			}
			return nil
		}
	}
	wait(t, "the sets", complete(apps))
	t.Logf("%d pods in %d sets after %v", pods, apps, time.Since(began).Round(time.Millisecond))
	if got := i.requests(t); got["create"] != apps || len(got) != 1 {
		t.Errorf("writes %v, want each set created once and nothing else", got)
	}
	must(t, testbed.InParallel(t.Context(), apps, func(ctx context.Context, i int) error {
		return relabel(ctx, b.merit, "ns", fmt.Sprintf("pod-%d", i), fmt.Sprintf("app-%d", (i+1)%apps))
	}))
	wait(t, "the moves", func() error {
		members, err := membersOf(t.Context(), b.sets(t, b.gcp))
		if err != nil {
			return err
		}
		for n := range apps {
			if got := len(members[policy.Identity{Cluster: "merit", Namespace: "ns", Name: fmt.Sprintf("app-%d", n)}]); got != pods/apps {
				return fmt.Errorf("app-%d has %d", n, got)
			}
		}
		return complete(apps)()
	})
	if got := i.requests(t); got["outdated"] > 0 || got["failed"] > 0 {
		t.Errorf("writes %v: some were needless", got)
	}
}
