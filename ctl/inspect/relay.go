package inspect

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/statuspage"
	"github.com/kube-semaphore/kube-semaphore/internal/wireguardpeers/v1alpha1"
)

// FollowTime is how long an agent has, at least, to read what semaphore-relay has stored. It
// mostly takes some 100 ms.
const FollowTime = 5 * time.Second

// stored returns the newest resource version of the objects of each cluster; nil without the CRD.
func (t *collector) stored(ctx context.Context) (map[string]string, error) {
	newest := map[string]string{}
	objects := t.access.Dynamic.Resource(v1alpha1.GroupVersion().WithResource(v1alpha1.Resource)).Namespace(cli.Namespace)
	err := cli.ListUntyped(ctx, objects, metav1.ListOptions{}, func(o *unstructured.Unstructured) error {
		of, err := cluster.ParseName(o.GetLabels()[v1alpha1.ClusterLabel])
		if err == nil && older(newest[string(of)], o.GetResourceVersion()) {
			newest[string(of)] = o.GetResourceVersion()
		}
		return nil
	})
	switch {
	case apierrors.IsNotFound(err) || meta.IsNoMatchError(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return newest, nil
}

// older reports whether a resource version is older than another one; one that isn't valid isn't.
func older(a, b string) bool {
	if a == "" {
		return b != ""
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}

// Behind returns the clusters of which an agent that reads the objects of semaphore-relay hasn't
// read what is stored.
func (c *Cluster) Behind(agent *statuspage.Agent) []string {
	if agent.RemotesFrom != RemotesFromRelay {
		return nil
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(agent.Relay)), func(of string) bool {
		return !older(agent.Relay[of].Revision, c.Stored.Value[of])
	})
}

// askBehind asks agents that haven't read what was stored when it was listed again, after
// FollowTime.
func (t *collector) askBehind(ctx context.Context, listed time.Time) {
	var behind []*Reported[statuspage.Agent]
	for i := range t.Agents {
		if a := &t.Agents[i]; a.Known() && len(t.Behind(a.Value)) > 0 {
			behind = append(behind, a)
		}
	}
	if len(behind) == 0 {
		return
	}
	select {
	case <-time.After(time.Until(listed.Add(FollowTime))):
	case <-ctx.Done():
		return
	}
	slots := make(chan struct{}, askers)
	var asking sync.WaitGroup
	for _, a := range behind {
		asking.Go(func() { reported(ctx, t, a, agents, slots) })
	}
	asking.Wait()
}
