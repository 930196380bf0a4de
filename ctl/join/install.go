package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
)

// step changes something, or waits for it.
type step struct {
	name string
	do   func(context.Context) error
}

// steps runs steps one after the other, each for all clusters at the same time. It returns
// the names of those that are done.
func (a *installation) steps(ctx context.Context, list ...step) (done []string, err error) {
	for _, s := range list {
		if err := s.do(ctx); err != nil {
			if context.Cause(ctx) != nil {
				err = errors.Join(err, context.Cause(ctx))
			}
			return done, fmt.Errorf("%s: %w", s.name, err)
		}
		done = append(done, s.name)
		if a.AfterStep != nil {
			if err := a.AfterStep(s.name); err != nil {
				return done, err
			}
		}
	}
	return done, nil
}

// install brings the clusters into the planned state.
func (a *installation) install(ctx context.Context) error {
	done, err := a.steps(ctx,
		step{"revocations", a.finishRevocations},
		step{"accounts and rights", a.start},
		step{"foreign CRDs", a.reportCRDs},
		step{"names", a.nameAll},
		step{"tokens", a.handAll},
		step{"leftovers of semaphore-relay", a.forgetLeftovers},
		step{"programs", a.advance},
		step{"rollout", a.waitAll},
		step{"accepted tokens", a.awaitTokens},
		step{"nodes' sources", a.settleRelays},
		step{"leftovers", a.advance},
		step{"pods reach each other", a.meet},
	)
	a.end()
	if err != nil {
		return cli.Hint(err, a.progress(done))
	}
	return nil
}

// start installs or upgrades the release of each cluster, up to its programs.
func (a *installation) start(ctx context.Context) error {
	a.running = make([]*running, len(a.clusters))
	return a.each(func(i int, c *cli.Cluster) error {
		if a.facts[i].Installed.Owner != "" {
			return nil
		}
		if err := namespace(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
		a.running[i] = run(func(reached func() error) error { return a.upgrade(ctx, i, reached) })
		return <-a.running[i].reached
	})
}

// advance lets the releases proceed.
func (a *installation) advance(context.Context) error {
	return a.each(func(i int, _ *cli.Cluster) error {
		if a.running[i] == nil {
			return nil
		}
		return a.running[i].advance()
	})
}

// end waits until the releases have ended. A step that has failed ends those that run.
func (a *installation) end() {
	for _, r := range a.running {
		if r != nil {
			r.end()
		}
	}
}

// upgrade brings the release of a cluster to its wanted values, unless nothing would change, and notes its
// objects.
func (a *installation) upgrade(ctx context.Context, i int, reached func() error) error {
	c, r, wanted := a.clusters[i], a.releases[a.clusters[i].Name], a.wanted[i]
	err := func() error {
		if r.last == nil && len(a.facts[i].Installed.Tools) > 0 {
			have, err := a.present(i).Values()
			if err == nil {
				err = r.adopt(ctx, have)
			}
			if err != nil {
				return err
			}
		}
		values, err := wanted.Values()
		if err != nil {
			return err
		}
		made, err := manifests.Dry(values, wanted.Cleanup)
		if err == nil {
			a.objects[i], err = manifests.Decode([]byte(made.Manifest))
		}
		if err != nil {
			return err
		}
		if differs, err := drifted(ctx, c, a.objects[i], !r.is(made)); err != nil || !differs {
			return err
		}
		if err := r.apply(ctx, values, wanted.Cleanup, reached); err != nil {
			return err
		}
		a.Done("%s: Helm release %s: revision %d", c.Name, manifests.Release, r.last.Version)
		return nil
	}()
	if err != nil {
		return fmt.Errorf("%s: %w", c.Name, err)
	}
	return nil
}

// waitAll waits until all workloads are rolled out.
func (a *installation) waitAll(ctx context.Context) error {
	return a.each(func(i int, c *cli.Cluster) error {
		for _, o := range a.objects[i] {
			if !slices.Contains(workloads, o.GetKind()) || o.GetKind() == "CronJob" {
				continue
			}
			if err := rolledOut(ctx, c, o, a.facts[i].Waiting()); err != nil {
				return fmt.Errorf("%s: %s %s: %w", c.Name, o.GetKind(), o.GetName(), err)
			}
		}
		a.Done("%s: all programs run", c.Name)
		return nil
	})
}

// rolledOut waits until all pods of a workload are of its latest generation, and ready, but for those of
// agents on so many nodes that aren't ready.
func rolledOut(ctx context.Context, c *cli.Cluster, o *unstructured.Unstructured, down int) error {
	objects, err := resourceOf(ctx, c, o)
	if err != nil {
		return err
	}
	err = cli.Poll(ctx, func(ctx context.Context) error {
		now, err := objects.Get(ctx, o.GetName(), metav1.GetOptions{})
		if err != nil {
			return err
		}
		return rollout(now, down)
	})
	if err != nil {
		return fmt.Errorf("%w; see %s", err, c.Kubectl("-n %s get pods", cli.Namespace))
	}
	return nil
}

func rollout(o *unstructured.Unstructured, down int) error {
	number := func(fields ...string) int64 {
		n, _, _ := unstructured.NestedInt64(o.Object, fields...)
		return n
	}
	want, updated, ready := number("spec", "replicas"), number("status", "updatedReplicas"), number("status", "readyReplicas")
	if o.GetKind() == "DaemonSet" {
		want, updated, ready = number("status", "desiredNumberScheduled")-int64(down), number("status", "updatedNumberScheduled"), number("status", "numberReady")
	}
	total := number("status", "replicas")
	if number("status", "observedGeneration") < o.GetGeneration() || updated < want || ready < want || o.GetKind() == "Deployment" && total > want {
		return fmt.Errorf("of %s %d updated and %d ready", cli.Count(int(want), "pod"), updated, ready)
	}
	return nil
}

// meetPatience is for how many seconds a pod of meet waits for the response of another one.
const meetPatience = 120

// meet waits until a pod of each cluster has received a response from pods of all others, which see its own
// address.
func (a *installation) meet(ctx context.Context) error {
	if a.NoProbe {
		return nil
	}
	a.Say("waiting until pods of %s reach each other", names(a.clusters))
	started, surveys := time.Now(), inspect.Collect(ctx, a.clusters, inspect.ForPods()...)
	var errs []error
	for _, s := range surveys {
		if err := s.Unread(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", s.Name, err))
		} else if len(probe.Pick(s.Nodes.Value, 1)) == 0 {
			errs = append(errs, fmt.Errorf("%s: no node is ready for a pod", s.Name))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	found, err := probe.Mesh(ctx, a.clusters, surveys, probe.Plan{Nodes: 1, Patience: meetPatience})
	if found == nil {
		return err
	}
	if err != nil {
		a.Warn("%v", err)
	}
	for i := range found.Connections {
		l := &found.Connections[i]
		why := cmp.Or(l.Skipped, l.Error)
		if why == "" && l.Seen != "" {
			why = "masqueraded: it came from " + l.Seen
		}
		if why != "" {
			errs = append(errs, fmt.Errorf("the pod on %s doesn't reach that on %s: %s; find out why with semaphorectl doctor", l.From, l.To, why))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	a.Done("pods of %s reach each other, %s after their start", names(a.clusters), time.Since(started).Round(100*time.Millisecond))
	return nil
}
