package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// The values of --relay. Without it, agents stay as they are.
const (
	relayAuto = "auto"
	relayOn   = "on"
	relayOff  = "off"
)

// relaySize is the number of nodes, of any of the joined clusters, from which semaphore-relay is
// proposed: what direct reading costs API servers grows with the product of both clusters' nodes.
const relaySize = 100

// largest returns the cluster with the most nodes.
func largest(all []*inspect.Facts) *inspect.Facts {
	return slices.MaxFunc(all, func(x, y *inspect.Facts) int { return len(x.Nodes) - len(y.Nodes) })
}

// relays reports whether the agents of a cluster are to read the objects of semaphore-relay,
// as --relay says:
//
//	--relay      agents read its objects
//	on           yes
//	off          no
//	auto         if they do now, or from relaySize nodes
//	not given    if they do now; one that they don't read yet stays
func (w *InstallOptions) relays(f *inspect.Facts) bool {
	switch w.Relay {
	case relayOn:
		return true
	case relayOff:
		return false
	}
	return f.Installed.Relayed || w.Relay == relayAuto && w.nodes >= relaySize
}

// proposals returns warnings about clusters whose agents should read the objects of
// semaphore-relay, and prints which ones are going to change what they read.
func (a *installation) proposals() []fault {
	var faults []fault
	big := largest(a.facts)
	for i, f := range a.facts {
		agents := slices.Contains(a.wanted[i].Tools, manifests.WireGuard)
		switch {
		case a.wanted[i].Relay && !f.Installed.Relayed:
			a.Say("%s: its agents are going to read the nodes of all clusters from semaphore-relay", f.Name)
		case agents && f.Installed.Relayed && !a.wanted[i].Relay:
			a.Say("%s: its agents are going to read the nodes of each cluster from its API server, and semaphore-relay is removed", f.Name)
		case agents && !a.wanted[i].Relay && a.Relay == "" && len(big.Nodes) >= relaySize:
			faults = append(faults, fault{cluster: f.Name, warning: true,
				what:   fmt.Sprintf("each of its agents reads the nodes of all clusters, of which %s has %d", big.Name, len(big.Nodes)),
				remedy: "let semaphore-relay read them once with --relay=on (docs/operating.md, \"Nodes from semaphore-relay\")"})
		}
	}
	return faults
}

// forgetLeftovers deletes the objects that an earlier installation of semaphore-relay has left: they
// would look complete, and be outdated.
func (a *installation) forgetLeftovers(ctx context.Context) error {
	return a.each(func(i int, c *cli.Cluster) error {
		if have := &a.facts[i].Installed; !a.wanted[i].Relay || have.Relay || have.Relayed {
			return nil
		}
		return forgetPeers(ctx, c)
	})
}

func resourceOfPeers() schema.GroupVersionResource {
	return v1alpha1.GroupVersion().WithResource(v1alpha1.Resource)
}

func peers(c *cli.Cluster) dynamic.ResourceInterface {
	return c.Dynamic.Resource(resourceOfPeers()).Namespace(cli.Namespace)
}

// stored returns an error until semaphore-relay has stored all nodes of a cluster.
func stored(ctx context.Context, c *cli.Cluster, of string) error {
	counted, nodes := -1, 0
	err := cli.ListUntyped(ctx, peers(c), metav1.ListOptions{LabelSelector: v1alpha1.ClusterLabel + "=" + of}, func(o *unstructured.Unstructured) error {
		node, _, _ := unstructured.NestedString(o.Object, "spec", "name")
		switch count, _, _ := unstructured.NestedInt64(o.Object, "spec", "count"); {
		case node != "":
			nodes++
		case o.GetName() == v1alpha1.CountName(of):
			counted = int(count)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list WireguardPeers of %s: %w", of, err)
	}
	if why := v1alpha1.Incomplete(counted, nodes); why != "" {
		return errors.New(why)
	}
	return nil
}

// settleRelays waits, after the rollout of the programs, until semaphore-relay has stored the nodes of
// the joined clusters, and removes it where neither agents read its objects nor anything keeps it. Until
// then agents keep the peers that they have on disk.
func (a *installation) settleRelays(ctx context.Context) error {
	return a.each(func(i int, c *cli.Cluster) error {
		f := a.facts[i]
		switch {
		case a.wanted[i].RelayAlone, !a.wanted[i].Relay && f.Installed.Owner != "":
			return nil
		case !a.wanted[i].Relay:
			return a.removeRelay(ctx, c, f)
		}
		of := append(a.others(f), f.Name)
		slices.Sort(of)
		for _, name := range of {
			if err := cli.Poll(ctx, func(ctx context.Context) error { return stored(ctx, c, name) }); err != nil {
				return fmt.Errorf("%s: semaphore-relay hasn't stored the nodes of %s: %w; find out why with semaphorectl doctor", c.Name, name, err)
			}
		}
		if !f.Installed.Relayed {
			a.Done("%s: semaphore-relay has stored the nodes of %s, and agents have neither credentials for other clusters nor the right to list nodes", c.Name, cli.And(of...))
		}
		return nil
	})
}

// removeRelay deletes semaphore-relay with its objects, and then their CRD, unless there are
// objects of others. It leaves one that semaphorectl hasn't created.
func (a *installation) removeRelay(ctx context.Context, c *cli.Cluster, f *inspect.Facts) error {
	if _, err := c.Resource(ctx, resourceOfPeers()); !f.Installed.Relay && meta.IsNoMatchError(err) {
		return nil // Neither may be readable where it was never installed.
	}
	have, err := c.Client.AppsV1().Deployments(cli.Namespace).Get(ctx, inspect.Relay, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: read Deployment %s: %w", c.Name, inspect.Relay, err)
	}
	installed := err == nil
	if installed && !manifests.Ours(have) {
		return nil
	}
	crd, err := crds(c).Get(ctx, v1alpha1.Resource+"."+v1alpha1.GroupVersion().Group, metav1.GetOptions{})
	if !installed && (apierrors.IsNotFound(err) || err == nil && !manifests.Ours(crd)) {
		return nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("%s: read the CRD of WireguardPeers: %w", c.Name, err)
	}
	if installed {
		if err := stop(ctx, c, inspect.Relay); err != nil {
			return err
		}
	}
	if err := forgetPeers(ctx, c); err != nil {
		return err
	}
	a.Done("%s: deleted semaphore-relay and its objects", c.Name)
	if crd == nil || !manifests.Ours(crd) {
		return nil
	}
	return a.dropCRDs(ctx, c, "semaphore-relay", []string{crd.GetName()}, resourceOfPeers())
}

// forgetPeers deletes the objects and Leases of semaphore-relay, which mustn't run.
func forgetPeers(ctx context.Context, c *cli.Cluster) error {
	var names []string
	leases := c.Client.CoordinationV1().Leases(cli.Namespace)
	err := cli.List(ctx, leases, metav1.ListOptions{LabelSelector: v1alpha1.ClusterLabel}, func(l *coordinationv1.Lease) error {
		if l.Name == v1alpha1.LeaseName(l.Labels[v1alpha1.ClusterLabel]) {
			names = append(names, l.Name)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: list the Leases of semaphore-relay: %w", c.Name, err)
	}
	return errors.Join(deleteAll(ctx, c, resourceOfPeers(), cli.Namespace, ""), deleteLeases(ctx, c, append(names, inspect.Relay)...))
}

// stop deletes Deployments, and waits until their pods are gone: they would create deleted
// objects again.
func stop(ctx context.Context, c *cli.Cluster, programs ...string) error {
	foreground := metav1.DeletePropagationForeground
	var errs []error
	for _, name := range programs {
		err := c.Client.AppsV1().Deployments(cli.Namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &foreground})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s: delete Deployment %s: %w", c.Name, name, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return gone(ctx, c, programs...)
}

// gone waits until no pod of some programs runs.
func gone(ctx context.Context, c *cli.Cluster, programs ...string) error {
	return cli.Poll(ctx, func(ctx context.Context) error {
		of := metav1.ListOptions{LabelSelector: "app.kubernetes.io/name in (" + strings.Join(programs, ", ") + ")"}
		return cli.List(ctx, c.Client.CoreV1().Pods(cli.Namespace), of, func(p *corev1.Pod) error {
			return fmt.Errorf("pod %s still runs", p.Name)
		})
	})
}
