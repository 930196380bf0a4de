package join

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/mcs-api/pkg/apis/v1beta1"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

const mirrorName = "semaphore-service-mirror"

var (
	// withdrawTimeout bounds the wait for the mirror to remove endpoints. Images before
	// SEMAPHORE_DEPARTED_REMOTES never do.
	withdrawTimeout = time.Minute
	// proxyTime is how long kube-proxies get to use the remaining endpoints.
	proxyTime = 2 * time.Second
)

// withdraw lets the mirror of a cluster remove the endpoints of the clusters that it leaves,
// and waits until they are removed. Agents and settings of all other programs stay as they
// are.
func (a *installation) withdraw(ctx context.Context, i int, c *cli.Cluster, p leaving) error {
	f := a.facts[i]
	if !p.joined || !slices.Contains(f.Installed.Tools, manifests.Mirror) {
		return nil
	}
	if err := a.bring(ctx, i, func(wanted *manifests.Cluster) {
		settings := maps.Clone(f.Installed.Settings)
		settings.Depart(p.from)
		wanted.Leaving = settings.Departed()
	}); err != nil {
		if p.entirely && ctx.Err() == nil { // A setting that no program takes keeps no cluster from being left.
			a.Warn("%s: its settings can't be changed, so that endpoints aren't withdrawn: requests to global services may fail until it has left: %v", c.Name, err)
			return nil
		}
		return err
	}
	from := strings.ReplaceAll(list(p.from), ",", ", ")
	a.Say("%s: removing the endpoints of %s", c.Name, from)
	limited, cancel := context.WithTimeoutCause(ctx, withdrawTimeout, fmt.Errorf("not within %s", withdrawTimeout))
	defer cancel()
	err := a.rolledOut(limited, i, mirrorName)
	if err == nil {
		err = cli.Poll(limited, func(ctx context.Context) error {
			return slicesOf(ctx, c, f, p.from, func(s *discoveryv1.EndpointSlice) error {
				return fmt.Errorf("EndpointSlice %s remains", s.Name)
			})
		})
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		a.Warn("%s: the endpoints of %s aren't removed within %s (%v): requests to global services may fail until it has left", c.Name, from, withdrawTimeout, err)
		return nil
	}
	select {
	case <-time.After(proxyTime):
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	a.Done("%s: no endpoints of %s remain", c.Name, from)
	return nil
}

// rolledOut waits until a Deployment of a cluster is rolled out.
func (a *installation) rolledOut(ctx context.Context, i int, name string) error {
	for _, o := range a.objects[i] {
		if o.GetKind() == "Deployment" && o.GetName() == name {
			return rolledOut(ctx, a.clusters[i], o, 0)
		}
	}
	return nil
}

func mirrorNamespace(f *inspect.Facts) string {
	return cmp.Or(f.Installed.Settings["SEMAPHORE_MIRROR_NAMESPACE"], cli.Namespace)
}

// slicesOf calls each for the EndpointSlices that the mirror has made for these clusters.
func slicesOf(ctx context.Context, c *cli.Cluster, f *inspect.Facts, of []cluster.Name, each func(*discoveryv1.EndpointSlice) error) error {
	ours := metav1.ListOptions{LabelSelector: discoveryv1.LabelManagedBy + "=" + mirrorName}
	err := cli.List(ctx, c.Client.DiscoveryV1().EndpointSlices(mirrorNamespace(f)), ours, func(s *discoveryv1.EndpointSlice) error {
		if slices.Contains(of, cluster.Name(s.Annotations["mirror.semaphore.uw.io/cluster"])) {
			return each(s)
		}
		return nil
	})
	if err != nil || !f.MultiCluster.Installed {
		return err
	}
	return cli.List(ctx, c.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceAll), metav1.ListOptions{LabelSelector: importSlices}, func(s *discoveryv1.EndpointSlice) error {
		if slices.Contains(of, cluster.Name(s.Labels[v1beta1.LabelSourceCluster])) {
			return each(s)
		}
		return nil
	})
}

// forgetSlices deletes the EndpointSlices that the mirror has made for a cluster.
func forgetSlices(ctx context.Context, c *cli.Cluster, f *inspect.Facts, remote string) error {
	var found []types.NamespacedName
	err := slicesOf(ctx, c, f, []cluster.Name{cluster.Name(remote)}, func(s *discoveryv1.EndpointSlice) error {
		found = append(found, types.NamespacedName{Namespace: s.Namespace, Name: s.Name})
		return nil
	})
	if err != nil {
		return fmt.Errorf("%s: list the EndpointSlices of %s: %w", c.Name, remote, err)
	}
	var errs []error
	for _, o := range found {
		err := c.Client.DiscoveryV1().EndpointSlices(o.Namespace).Delete(ctx, o.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("%s: delete EndpointSlice %s: %w", c.Name, o, err))
		}
	}
	return errors.Join(errs...)
}
