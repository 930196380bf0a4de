package join

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/coredns"
	"github.com/kube-semaphore/kube-semaphore/ctl/handover"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// leaving is the plan for a cluster.
type leaving struct {
	from     []cluster.Name   // the clusters that it leaves
	settings inspect.Settings // afterwards
	entirely bool             // no remote remains
	joined   bool             // it is joined with one of them
	started  bool             // it has left one of them, perhaps in an interrupted run
}

// Leave separates clusters, each from each other; a single one from all of its neighbours.
// A cluster without remaining neighbours is uninstalled, except for the keys on its nodes.
func Leave(ctx context.Context, s *cli.Session, clusters []*cli.Cluster, o Options) error {
	s.Say("checking %s", names(clusters))
	a := newInstallation(ctx, s, clusters, o)
	if err := a.mayLeave(ctx); err != nil {
		return err
	}
	return a.separate(ctx, func(f *inspect.Facts) (from []cluster.Name, asked bool) {
		if len(clusters) == 1 {
			return f.Installed.Settings.Remotes(), true
		}
		for _, other := range clusters {
			if other.Name != f.Name {
				from = append(from, cluster.Name(other.Name))
			}
		}
		return from, true
	})
}

// separate separates each cluster from some others: those that are gone lose their accounts, then
// endpoints are withdrawn everywhere, so that no request goes to a tunnel that is removed after that.
// From returns the clusters to leave, and whether the administrator asked for this cluster itself
// to leave; otherwise it stays as it is unless it is joined with them.
func (a *installation) separate(ctx context.Context, from func(*inspect.Facts) ([]cluster.Name, bool)) error {
	plans := make([]leaving, len(a.clusters))
	for i, f := range a.facts {
		names, asked := from(f)
		plans[i] = plan(f, names)
		// A join that has failed may have created accounts for a cluster that no program knows.
		for _, remote := range names {
			plans[i].started = plans[i].started || a.releases[f.Name].remote(remote) != nil
		}
		// Without programs it is the rest of an interrupted run.
		plans[i].entirely = plans[i].entirely && (asked || plans[i].joined || plans[i].started || len(f.Installed.Tools) == 0)
	}
	err := a.each(func(i int, c *cli.Cluster) error { return a.shut(ctx, c, plans[i].from) })
	if err == nil {
		err = a.each(func(i int, c *cli.Cluster) error { return a.withdraw(ctx, i, c, plans[i]) })
	}
	if err == nil {
		err = a.each(func(i int, c *cli.Cluster) error {
			if plans[i].entirely {
				return a.leaveEntirely(ctx, i, c, plans[i].from)
			}
			return a.leaveSome(ctx, i, c, plans[i])
		})
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = errors.Join(err, cause)
	}
	return a.unfinished(err)
}

// unfinished adds how to continue to the error of an interrupted or failed run of leave.
func (a *installation) unfinished(err error) error {
	if err == nil {
		return nil
	}
	return cli.Hint(err, "continue with: "+a.Again())
}

// mayLeave checks that the clusters are the intended ones, and were installed by this tool.
func (a *installation) mayLeave(ctx context.Context) error {
	if err := a.stopped(ctx); err != nil {
		return err
	}
	if faults := duplicates(a.clusters, a.facts); len(faults) > 0 {
		return a.report(faults)
	}
	var faults []fault
	lacking := make([][]fault, len(a.facts))
	_ = a.each(func(i int, c *cli.Cluster) error {
		if a.facts[i].Version != "" {
			if a.releases[c.Name].last == nil && len(a.facts[i].Installed.Tools) > 0 {
				a.facts[i].ReadPodPrefixes(ctx, c) // The release will be recorded from what is found.
			}
			a.objects[i] = a.removed(i)
			lacking[i] = rightsToLeave(ctx, c, a.facts[i], a.objects[i])
		}
		return nil
	})
	for i, f := range a.facts {
		found := strange(f)
		if len(lacking[i]) > 0 {
			found = slices.Concat(lacking[i], slices.DeleteFunc(found, func(f fault) bool { return f.forbidden }))
		}
		faults = append(faults, found...)
	}
	if err := a.stopped(ctx); err != nil {
		return err
	}
	err := a.report(faults)
	var gone, others []string
	for _, f := range a.facts {
		if f.Version == "" {
			gone = append(gone, f.Name)
		} else {
			others = append(others, f.Name)
		}
	}
	if err == nil || len(gone) != 1 {
		return err
	}
	line := a.Line(append([]string{"leave", "--gone", gone[0]}, others...)...)
	if len(others) == 0 {
		line += " CLUSTER..., with its neighbours"
	}
	return cli.Hint(err, "if "+gone[0]+" no longer exists: "+line)
}

// removed returns the objects of a cluster's release; nil: they aren't known, which is reported when it is
// upgraded.
func (a *installation) removed(i int) []*unstructured.Unstructured {
	present := a.present(i)
	present.Cleanup = true
	objects, err := present.Render()
	if err != nil {
		return nil
	}
	return objects
}

// strange returns the faults that prevent changes of a cluster.
func strange(f *inspect.Facts) []fault {
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
func misnamed(f *inspect.Facts) *fault {
	name := f.Installed.Misnamed(f.Name)
	if name == "" {
		return nil
	}
	return &fault{cluster: f.Name, what: "it is installed as cluster " + name, remedy: "check that its kubeconfig context is that of the intended cluster"}
}

// plan computes how a cluster leaves others.
func plan(f *inspect.Facts, from []cluster.Name) leaving {
	p := leaving{from: from, settings: inspect.Settings{}}
	have := f.Installed.Settings
	maps.Copy(p.settings, have)
	for _, remote := range from {
		p.joined = p.joined || slices.Contains(have.Remotes(), remote)
		p.started = p.started || slices.Contains(have.Departed(), remote)
		p.settings = without(p.settings, remote)
	}
	p.settings.Depart(from)
	if p.entirely = len(p.settings.Remotes()) == 0; p.entirely {
		delete(p.settings, inspect.PodSubnetsMap)
	}
	return p
}

// leaveSome removes some neighbours from a cluster that has others.
func (a *installation) leaveSome(ctx context.Context, i int, c *cli.Cluster, p leaving) error {
	f := a.facts[i]
	gone := strings.ReplaceAll(list(p.from), ",", ", ")
	if !p.joined && !p.started {
		a.Warn("%s: it isn't joined with %s, nothing was changed", c.Name, gone)
		return nil
	}
	one := a.only(i)
	one.sweep(ctx)
	a.settings[i] = p.settings
	a.wanted[i] = a.present(i)
	a.wanted[i].Settings, a.wanted[i].Remotes = p.settings, p.settings.Remotes()
	_, err := one.steps(ctx,
		step{"access", func(ctx context.Context) error { return a.shut(ctx, c, p.from) }},
		step{"settings", one.start},
		step{"programs", one.advance},
		step{"names", one.nameAll},
		step{"rollout", one.waitAll},
		step{"tokens", func(ctx context.Context) error {
			var errs []error
			for _, remote := range p.from {
				errs = append(errs, handover.Forget(ctx, c, string(remote)))
			}
			return errors.Join(errs...)
		}},
		step{"leftovers", one.advance},
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
			if p.joined {
				a.Done("%s: left %s", c.Name, gone)
			} else {
				a.Done("%s: it had left %s already", c.Name, gone)
			}
			return nil
		}},
	)
	one.end()
	return err
}

// only is the state of the run for one cluster.
func (a *installation) only(i int) *installation {
	return &installation{Session: a.Session, Options: a.Options, clusters: a.clusters[i : i+1], facts: a.facts[i : i+1], settings: a.settings[i : i+1],
		wanted: a.wanted[i : i+1], objects: a.objects[i : i+1], releases: a.releases}
}

// bring changes the wanted state of what is installed in a cluster, and upgrades its release to that.
func (a *installation) bring(ctx context.Context, i int, change func(*manifests.Cluster)) error {
	a.wanted[i] = a.present(i)
	change(a.wanted[i])
	return a.upgrade(ctx, i, func() error { return nil })
}

// forget deletes the mirrors and network sets of a remote. The programs would delete them,
// too, after their grace period for removed remotes.
func forget(ctx context.Context, c *cli.Cluster, f *inspect.Facts, prefix, remote string) error {
	return errors.Join(
		deleteAll(ctx, c, schema.GroupVersionResource{Version: "v1", Resource: "services"}, mirrorNamespace(f), "mirrored-svc=true,mirror-svc-prefix-sync="+prefix),
		forgetSlices(ctx, c, f, remote),
		deleteSets(ctx, c, f, remote),
	)
}

// deleteSets deletes the network sets of a remote, or of all: "".
func deleteSets(ctx context.Context, c *cli.Cluster, f *inspect.Facts, remote string) error {
	if f.Calico.Version == "" {
		return nil
	}
	return deleteAll(ctx, c, f.Calico.WithResource("globalnetworksets"), "", setSelector(f.Installed.Settings, remote))
}

// setSelector selects the network sets of a remote, or of all: "".
func setSelector(settings inspect.Settings, remote string) string {
	set := labels.Set{"managed-by": settings.ManagedBy()}
	if remote != "" {
		set[settings.LabelDomain()+"/cluster"] = remote
	}
	return set.String()
}

// deleteAll deletes the objects of a resource in a namespace, or in all, that match a selector. The resource may not be
// served.
func deleteAll(ctx context.Context, c *cli.Cluster, r schema.GroupVersionResource, namespace, selector string) error {
	const atOnce = 10_000 // The programs make more objects than a list may have.
	deleted := map[types.NamespacedName]bool{}
	for {
		var found []types.NamespacedName
		err := cli.ListUntyped(ctx, c.Dynamic.Resource(r).Namespace(namespace), metav1.ListOptions{LabelSelector: selector}, func(o *unstructured.Unstructured) error {
			if name := (types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}); !deleted[name] {
				found = append(found, name)
			}
			if len(found) == atOnce {
				return cli.ErrEnough
			}
			return nil
		})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("%s: list %s: %w", c.Name, r.Resource, err)
		}
		var errs []error
		for _, o := range found {
			deleted[o] = true
			if err := c.Dynamic.Resource(r).Namespace(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("%s: delete %s %s: %w", c.Name, r.Resource, o.Name, err))
			}
		}
		if len(found) < atOnce || len(errs) > 0 {
			return errors.Join(errs...)
		}
	}
}

// deleteLeases deletes Leases of programs, which mustn't run.
func deleteLeases(ctx context.Context, c *cli.Cluster, names ...string) error {
	var errs []error
	for _, name := range names {
		if err := c.Client.CoordinationV1().Leases(cli.Namespace).Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s: delete Lease %s: %w", c.Name, name, err))
		}
	}
	return errors.Join(errs...)
}

// leaveEntirely uninstalls a cluster: first the agents clean up their nodes, then all
// objects are deleted.
func (a *installation) leaveEntirely(ctx context.Context, i int, c *cli.Cluster, from []cluster.Name) error {
	f := a.facts[i]
	if a.releases[c.Name].last == nil && len(f.Installed.Tools) == 0 && !f.Installed.Ours {
		names, err := coredns.Write(ctx, c.Client, nil)
		if err != nil {
			return fmt.Errorf("%s: CoreDNS: %w", c.Name, err)
		}
		if len(names) == 0 {
			a.Warn("%s: Kube-Semaphore isn't installed, nothing was changed", c.Name)
		} else {
			a.Done("%s: removed the server blocks for other clusters from ConfigMap %s", c.Name, cli.And(names...))
		}
		return a.deleteCRDs(ctx, c, f)
	}
	one := a.only(i)
	one.sweep(ctx)
	_, err := one.steps(ctx,
		step{"names", func(ctx context.Context) error {
			return one.name(ctx, c, nil)
		}},
		step{"programs", one.stop},
		step{"access", func(ctx context.Context) error { return a.shut(ctx, c, from) }},
		step{"end of programs", func(ctx context.Context) error {
			return gone(ctx, c, inspect.ServiceMirror, inspect.NetworkPolicy, inspect.Relay)
		}},
		step{"mirrors and sets", func(ctx context.Context) error {
			// The right by which it is known may be removed already.
			f.MultiCluster.Installed = len(f.MultiCluster.CRDs) > 0
			return errors.Join(
				deleteAll(ctx, c, schema.GroupVersionResource{Version: "v1", Resource: "services"}, mirrorNamespace(f), "mirrored-svc=true"),
				deleteAll(ctx, c, discoveryv1.SchemeGroupVersion.WithResource("endpointslices"), mirrorNamespace(f), discoveryv1.LabelManagedBy+"="+mirrorName),
				deleteLeases(ctx, c, inspect.ServiceMirror, inspect.NetworkPolicy),
				deleteImports(ctx, c, f),
				forgetExports(ctx, c, f),
				deleteSets(ctx, c, f, ""))
		}},
		step{"semaphore-relay", func(ctx context.Context) error { return a.removeRelay(ctx, c, f) }},
		step{"nodes", func(ctx context.Context) error { return one.awaitNodes(ctx) }},
		step{"everything else", func(ctx context.Context) error {
			for _, remote := range f.Installed.Settings.Remotes() {
				// Secrets that semaphorectl hasn't created are kept, without these keys.
				if err := handover.Forget(ctx, c, string(remote)); err != nil {
					return err
				}
			}
			if err := a.removeAll(ctx, i); err != nil {
				return fmt.Errorf("%s: %w", c.Name, err)
			}
			left := "nothing remains"
			if slices.Contains(f.Installed.Tools, manifests.WireGuard) {
				left = "only the private keys remain, in /var/lib/semaphore-wireguard on its nodes"
			}
			a.Done("%s: uninstalled; %s", c.Name, left)
			if m := f.Installed.Settings.SubnetMap(); len(m) > 0 {
				a.Done("%s: no cluster knows its pods by virtual subnets any more (%s)", c.Name, m)
			}
			return a.deleteCRDs(ctx, c, f)
		}},
	)
	return err
}

const agent = "semaphore-wireguard"

// stop lets the agents of a cluster clean up their nodes, and stops all other programs.
func (a *installation) stop(ctx context.Context) error {
	if len(a.facts[0].Installed.Tools) == 0 {
		return nil
	}
	return a.bring(ctx, 0, func(wanted *manifests.Cluster) {
		wanted.Cleanup, wanted.Relay, wanted.RelayAlone = true, false, false
		wanted.Tools = slices.DeleteFunc(slices.Clone(wanted.Tools), func(tool string) bool { return tool != manifests.WireGuard })
	})
}

// awaitNodes waits until all agents have cleaned up their nodes.
func (a *installation) awaitNodes(ctx context.Context) error {
	c, f := a.clusters[0], a.facts[0]
	if !slices.Contains(f.Installed.Tools, manifests.WireGuard) {
		return nil
	}
	a.Say("%s: the agents clean up %s", c.Name, cli.Count(len(f.Nodes), "node"))
	if err := cli.Poll(ctx, func(ctx context.Context) error { return cleaned(ctx, c) }); err != nil {
		return err
	}
	a.Done("%s: devices, routes, rules and annotations are removed from all nodes", c.Name)
	return nil
}

// deleteOwn deletes what this tool has created in its namespaces besides the release: Secrets with tokens,
// and the policies of a killed verify.
func deleteOwn(ctx context.Context, c *cli.Cluster) error {
	var errs []error
	for _, resource := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "secrets"},
		{Group: "projectcalico.org", Version: "v3", Resource: "networkpolicies"}, {Group: "crd.projectcalico.org", Version: "v1", Resource: "networkpolicies"},
	} {
		if _, err := c.Resource(ctx, resource); meta.IsNoMatchError(err) {
			continue
		} else if err != nil {
			errs = append(errs, err)
			continue
		}
		for _, namespace := range []string{cli.Namespace, probe.Namespace} {
			errs = append(errs, deleteAll(ctx, c, resource, namespace, manifests.ManagedLabel+"="+manifests.Manager))
		}
	}
	return errors.Join(errs...)
}

// removeAll removes what this tool has created in a cluster, and last the namespace: until then a removal
// isn't complete.
func (a *installation) removeAll(ctx context.Context, i int) error {
	c := a.clusters[i]
	err := errors.Join(deleteOwn(ctx, c), a.releases[c.Name].uninstall(ctx))
	if err == nil {
		err = gone(ctx, c, agent)
	}
	if err != nil || !a.facts[i].Installed.Ours {
		return err
	}
	namespaces := c.Client.CoreV1().Namespaces()
	return cli.Poll(ctx, func(ctx context.Context) error {
		err := namespaces.Delete(ctx, cli.Namespace, metav1.DeleteOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil && !apierrors.IsConflict(err):
			return fmt.Errorf("delete the namespace %s: %w", cli.Namespace, err)
		}
		return fmt.Errorf("the namespace %s isn't deleted yet", cli.Namespace)
	})
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
				c.Name, p.Spec.NodeName, p.Name, c.Kubectl("-n %s logs %s", cli.Namespace, p.Name))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return cli.List(ctx, c.Client.CoreV1().Nodes(), metav1.ListOptions{}, func(n *corev1.Node) error {
		for name := range n.Annotations {
			if _, administrators := inspect.Location(name); !administrators && strings.Contains(name, "wireguard.semaphore.uw.io/") {
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
