package probe

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// MostAsks bounds the services that pods of a cluster ask during a change.
const MostAsks = MaxNodes * (reach.MaxAsks - 1)

// startWithin is how long pods ask longer than a change lasts: they don't start at the same time.
const startWithin = 20 * time.Second

// AskDuring lets pods ask the services of a plan, again and again, while change runs, which takes
// at most as long as lasts. With several nodes, pods on each of them ask. It deletes its pods, also
// when ctx is done. The error is that of change or of the cleanup, or says why change wasn't called.
func AskDuring(ctx context.Context, clusters []*cli.Cluster, all []*inspect.Cluster, plan Plan, lasts time.Duration, change func(context.Context) error) (results *Results, err error) {
	if err := Sweep(ctx, clusters); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, Sweep(ctx, clusters)) }()
	var askers []*asker
	for i, f := range all {
		nodes, remote := plan.nodes(f), ""
		for pair, services := range plan.Asks {
			if pair[0] == f.Name && len(services) > 0 {
				remote = pair[1]
			}
		}
		if remote == "" {
			continue
		}
		if len(nodes) == 0 {
			return nil, fmt.Errorf("%s: no node is ready for pods", f.Name)
		}
		parts := (len(plan.Asks[[2]string{f.Name, remote}]) + reach.MaxAsks - 2) / (reach.MaxAsks - 1)
		for number := range min(max(len(nodes), parts), MaxNodes) {
			a := &asker{from: &server{NodeRef: NodeRef{f.Name, nodes[number%len(nodes)]}, cluster: i}, remote: remote}
			a.request.AskFor = int((lasts + startWithin) / time.Second)
			if a.from.image, err = plan.image(f); err != nil {
				return nil, err
			}
			a.plan(&plan, nil, number)
			askers = append(askers, a)
		}
	}
	began, pods := time.Now(), make([]*corev1.Pod, len(askers))
	var group sync.WaitGroup
	for i, a := range askers {
		group.Go(func() {
			c := clusters[a.from.cluster]
			pod := OnNode(a.from.image, a.from.Node, a.request)
			if pod, a.err = c.Client.CoreV1().Pods(Namespace).Create(ctx, pod, metav1.CreateOptions{}); a.err == nil {
				pods[i], a.err = Wait(ctx, c, pod, Running)
			}
		})
	}
	group.Wait()
	for _, a := range askers {
		if a.err != nil {
			return nil, fmt.Errorf("the pod on %s failed: %w", a.from.NodeRef, a.err)
		}
	}
	if took := time.Since(began); took > startWithin {
		return nil, fmt.Errorf("the pods took %s to start, as when nodes pull the image: run it again", took.Round(time.Second))
	}
	if err := change(ctx); err != nil {
		return nil, err
	}
	for i, a := range askers {
		group.Go(func() {
			ctx, cancel := context.WithTimeoutCause(ctx, startWithin+limit, errors.New("not within "+limit.String()))
			defer cancel()
			a.result, a.err = await(ctx, clusters[a.from.cluster], pods[i], &a.request)
		})
	}
	group.Wait()
	results = &Results{}
	for _, a := range askers {
		a.collectRequests(results)
	}
	return results, nil
}
