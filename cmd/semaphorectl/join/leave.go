package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/handover"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// leaving is the plan for a cluster.
type leaving struct {
	from     []cluster.Name // the clusters that it leaves
	settings facts.Settings // afterwards
	entirely bool           // no remote remains
}

// Leave separates clusters, each from each other; a single one from all of its neighbours.
// A cluster without remaining neighbours is uninstalled, except for the keys on its nodes.
func Leave(ctx context.Context, s *cli.Session, clusters []*cli.Cluster, o Options) error {
	s.Say("checking %s", names(clusters))
	a := newAll(ctx, s, clusters, o)
	if err := a.mayLeave(ctx); err != nil {
		return err
	}
	plans := make([]leaving, len(clusters))
	for i, f := range a.facts {
		plans[i] = plan(f, clusters)
	}
	err := a.each(func(i int, c *cli.Cluster) error {
		if plans[i].entirely {
			return a.leaveEntirely(ctx, i, c)
		}
		return a.leaveSome(ctx, i, c, plans[i])
	})
	return a.unfinished(err)
}

// unfinished adds how to continue to the error of an interrupted or failed run of leave.
func (a *all) unfinished(err error) error {
	if err == nil {
		return nil
	}
	return cli.Hint(err, "continue with: "+a.Again())
}

// mayLeave checks that the clusters are the intended ones, and were installed by this tool.
func (a *all) mayLeave(ctx context.Context) error {
	if err := a.stopped(ctx); err != nil {
		return err
	}
	faults := duplicates(a.clusters, a.facts)
	for _, f := range a.facts {
		faults = append(faults, strange(f)...)
	}
	return a.report(faults)
}

// strange returns the faults that prevent changes of a cluster.
func strange(f *facts.Facts) []fault {
	faults := unread(f)
	if misnamed := misnamed(f); misnamed != nil {
		faults = append(faults, *misnamed)
	}
	if len(f.Installed.Foreign) > 0 {
		faults = append(faults, fault{cluster: f.Name, what: strings.Join(f.Installed.Foreign, ", ") + ": not installed by semaphorectl",
			remedy: "uninstall it as it was installed, or adopt it first with semaphorectl join --adopt"})
	}
	return faults
}

// misnamed returns a fault if the cluster's name differs from that of its installation.
func misnamed(f *facts.Facts) *fault {
	name := f.Installed.Misnamed(f.Name)
	if name == "" {
		return nil
	}
	return &fault{cluster: f.Name, what: "it is installed as cluster " + name, remedy: "check that its kubeconfig context is that of the intended cluster"}
}

// plan computes a cluster's settings without the others.
func plan(f *facts.Facts, clusters []*cli.Cluster) leaving {
	p := leaving{settings: f.Installed.Settings}
	for _, other := range clusters {
		if other.Name != f.Name {
			p.from = append(p.from, cluster.Name(other.Name))
		}
	}
	if len(clusters) == 1 {
		p.from = f.Installed.Settings.Remotes()
	}
	for _, remote := range p.from {
		if p.settings != nil {
			p.settings = without(p.settings, remote)
		}
	}
	p.entirely = len(p.settings.Remotes()) == 0
	return p
}

// leaveSome removes some neighbours from a cluster that has others.
func (a *all) leaveSome(ctx context.Context, i int, c *cli.Cluster, p leaving) error {
	f := a.facts[i]
	a.settings[i] = p.settings
	wishes := Wishes{Tools: f.Installed.Tools, Image: f.Installed.Image}
	var err error
	if a.objects[i], err = desired(f, &wishes, p.settings).Render(); err != nil {
		return err
	}
	one := &all{Session: a.Session, Options: a.Options, clusters: a.clusters[i : i+1], facts: a.facts[i : i+1],
		settings: a.settings[i : i+1], objects: a.objects[i : i+1]}
	gone := strings.ReplaceAll(list(p.from), ",", ", ")
	_, err = one.steps(ctx,
		step{"revocations", one.finishRevocations},
		step{"settings", func(ctx context.Context) error { _, err := apply(ctx, c, a.objects[i]); return err }},
		step{"names", one.nameAll},
		step{"rollout", one.waitAll},
		step{"tokens", func(ctx context.Context) error {
			var errs []error
			for _, remote := range p.from {
				errs = append(errs, handover.Forget(ctx, a.Session, c, string(remote)))
			}
			return errors.Join(errs...)
		}},
		step{"leftovers", one.pruneAll},
		step{"mirrors and sets", func(ctx context.Context) error {
			var errs []error
			for _, remote := range p.from {
				prefix, err := f.Installed.Settings.ServicePrefix(remote)
				if err != nil {
					continue // The mirror doesn't start with this setting, so there are no mirrors.
				}
				errs = append(errs, forget(ctx, c, f, prefix, string(remote)))
			}
			if err := errors.Join(errs...); err != nil {
				return err
			}
			a.Done("%s: left %s", c.Name, gone)
			return nil
		}},
	)
	return err
}

// forget deletes the mirrors and network sets of a remote. The programs would delete them,
// too, after their grace period for removed remotes.
func forget(ctx context.Context, c *cli.Cluster, f *facts.Facts, prefix, remote string) error {
	return errors.Join(
		deleteAll(ctx, c, schema.GroupVersionResource{Version: "v1", Resource: "services"}, cli.Namespace, "mirrored-svc=true,mirror-svc-prefix-sync="+prefix),
		deleteSets(ctx, c, f, "managed-by=semaphore-policy,policy.semaphore.uw.io/cluster="+remote),
	)
}

func deleteSets(ctx context.Context, c *cli.Cluster, f *facts.Facts, selector string) error {
	if f.Calico.Version == "" {
		return nil
	}
	return deleteAll(ctx, c, f.Calico.WithResource("globalnetworksets"), "", selector)
}

// deleteAll deletes the objects of a resource that match a selector. The resource may not be
// served.
func deleteAll(ctx context.Context, c *cli.Cluster, r schema.GroupVersionResource, namespace, selector string) error {
	objects := c.Dynamic.Resource(r).Namespace(namespace)
	var found []string
	err := cli.ListUntyped(ctx, objects, metav1.ListOptions{LabelSelector: selector}, func(o *unstructured.Unstructured) error {
		found = append(found, o.GetName())
		return nil
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: list %s: %w", c.Name, r.Resource, err)
	}
	var errs []error
	for _, name := range found {
		if err := objects.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s: delete %s %s: %w", c.Name, r.Resource, name, err))
		}
	}
	return errors.Join(errs...)
}

// leaveEntirely uninstalls a cluster: first the agents clean up their nodes, then all
// objects are deleted.
func (a *all) leaveEntirely(ctx context.Context, i int, c *cli.Cluster) error {
	f := a.facts[i]
	one := &all{Session: a.Session, Options: a.Options, clusters: a.clusters[i : i+1], facts: a.facts[i : i+1]}
	_, err := one.steps(ctx,
		step{"names", func(ctx context.Context) error {
			return one.name(ctx, c, nil)
		}},
		step{"controllers", func(ctx context.Context) error { return stopControllers(ctx, c) }},
		step{"mirrors and sets", func(ctx context.Context) error {
			return errors.Join(
				deleteAll(ctx, c, schema.GroupVersionResource{Version: "v1", Resource: "services"}, cli.Namespace, "mirrored-svc=true"),
				deleteSets(ctx, c, f, "managed-by=semaphore-policy"))
		}},
		step{"nodes", func(ctx context.Context) error { return one.cleanNodes(ctx, c, f) }},
		step{"everything else", func(ctx context.Context) error {
			for _, remote := range f.Installed.Settings.Remotes() {
				// Secrets that semaphorectl hasn't created are kept, without these keys.
				if err := handover.Forget(ctx, a.Session, c, string(remote)); err != nil {
					return err
				}
			}
			removed, err := remove(ctx, c, nil)
			if err != nil {
				return err
			}
			if err := waitGone(ctx, c); err != nil {
				return err
			}
			a.Done("%s: deleted %s; only the private keys remain, in /var/lib/semaphore-wireguard on its nodes", c.Name, cli.Count(removed, "object"))
			return nil
		}},
	)
	return err
}

// stopControllers stops the programs that would create deleted objects again.
func stopControllers(ctx context.Context, c *cli.Cluster) error {
	foreground := metav1.DeletePropagationForeground
	var errs []error
	for _, name := range []string{"semaphore-service-mirror", "semaphore-policy"} {
		err := c.Client.AppsV1().Deployments(cli.Namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s: delete Deployment %s: %w", c.Name, name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return poll(ctx, func(ctx context.Context) error {
		both := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name in (semaphore-service-mirror, semaphore-policy)"}
		return cli.List(ctx, c.Client.CoreV1().Pods(cli.Namespace), both, func(p *corev1.Pod) error {
			return fmt.Errorf("pod %s still runs", p.Name)
		})
	})
}

// poll calls ask until it succeeds, and returns its last error when ctx is done.
func poll(ctx context.Context, ask func(context.Context) error) error {
	state := errors.New("not read yet")
	err := wait.PollUntilContextCancel(ctx, 250*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		if err := ask(ctx); ctx.Err() == nil {
			state = err
		}
		return state == nil, nil
	})
	if err != nil {
		return state
	}
	return nil
}

const agent = "semaphore-wireguard"

// cleanNodes lets the agents clean up their nodes, and waits until all of them have.
func (a *all) cleanNodes(ctx context.Context, c *cli.Cluster, f *facts.Facts) error {
	if !slices.Contains(f.Installed.Tools, manifests.WireGuard) {
		return nil
	}
	wishes := Wishes{Tools: []string{manifests.WireGuard}, Image: f.Installed.Image}
	wanted := desired(f, &wishes, f.Installed.Settings)
	wanted.Cleanup, wanted.Pools = true, nil
	objects, err := wanted.Render()
	if err != nil {
		return err
	}
	for _, o := range objects {
		if o.GetKind() != "DaemonSet" && (o.GetKind() != "ConfigMap" || o.GetNamespace() != cli.Namespace) {
			continue
		}
		if _, err := applyOne(ctx, c, o); err != nil {
			return fmt.Errorf("%s: apply %s %s: %w", c.Name, o.GetKind(), o.GetName(), err)
		}
	}
	a.Say("%s: the agents clean up %s", c.Name, cli.Count(len(f.Nodes), "node"))
	if err := poll(ctx, func(ctx context.Context) error { return cleaned(ctx, c) }); err != nil {
		return err
	}
	a.Done("%s: devices, routes, rules and annotations are removed from all nodes", c.Name)
	return nil
}

// cleaned returns an error until the agents of all nodes have exited with success, and all
// annotations of the agents are removed.
func cleaned(ctx context.Context, c *cli.Cluster) error {
	set, err := c.Client.AppsV1().DaemonSets(cli.Namespace).Get(ctx, agent, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if s := set.Status; s.ObservedGeneration < set.Generation || s.UpdatedNumberScheduled < s.DesiredNumberScheduled {
		return fmt.Errorf("%s: of %s of the agents %d updated", c.Name, cli.Count(int(s.DesiredNumberScheduled), "pod"), s.UpdatedNumberScheduled)
	}
	agents := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + agent}
	err = cli.List(ctx, c.Client.CoreV1().Pods(cli.Namespace), agents, func(p *corev1.Pod) error {
		if !hasCleaned(p) {
			return fmt.Errorf("%s: node %s: pod %s hasn't cleaned up yet: see %s; if the node was removed for good, delete its Node",
				c.Name, p.Spec.NodeName, p.Name, cli.Kubectl(c.Context, "-n %s logs %s", cli.Namespace, p.Name))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return cli.List(ctx, c.Client.CoreV1().Nodes(), metav1.ListOptions{}, func(n *corev1.Node) error {
		for name := range n.Annotations {
			if _, administrators := facts.Location(name); !administrators && strings.Contains(name, "wireguard.semaphore.uw.io/") {
				return fmt.Errorf("%s: node %s still has the annotation %s", c.Name, n.Name, name)
			}
		}
		return nil
	})
}

func hasCleaned(p *corev1.Pod) bool {
	for _, status := range p.Status.ContainerStatuses {
		for _, state := range []corev1.ContainerState{status.State, status.LastTerminationState} {
			if status.Name == "agent" && state.Terminated != nil && state.Terminated.ExitCode == 0 {
				return true
			}
		}
	}
	return false
}

// waitGone waits until all objects of this tool are deleted.
func waitGone(ctx context.Context, c *cli.Cluster) error {
	return poll(ctx, func(ctx context.Context) error {
		all, err := owned(ctx, c)
		if err != nil {
			return err
		}
		for _, r := range kinds() {
			for _, o := range all[r] {
				return fmt.Errorf("%s: %s %s isn't deleted yet", c.Name, o.GetKind(), o.GetName())
			}
		}
		return nil
	})
}

// leaveNeighbour removes a cluster from the settings of its neighbour, without changing the
// cluster.
func leaveNeighbour(ctx context.Context, s *cli.Session, neighbour, one *cli.Cluster) error {
	a := newAll(ctx, s, []*cli.Cluster{neighbour}, Options{})
	if err := a.mayLeave(ctx); err != nil {
		return err
	}
	// The list of neighbours comes from the leaving cluster, which may be hostile.
	if !slices.Contains(a.facts[0].Installed.Settings.Remotes(), cluster.Name(one.Name)) {
		s.Warn("%s: %s isn't its neighbour, nothing was changed", neighbour.Name, one.Name)
		return nil
	}
	p := plan(a.facts[0], []*cli.Cluster{neighbour, one})
	if p.entirely {
		return a.leaveEntirely(ctx, 0, neighbour)
	}
	return a.leaveSome(ctx, 0, neighbour, p)
}
