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

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
	"github.com/kube-semaphore/kube-semaphore/ctl/probe"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
	"github.com/kube-semaphore/kube-semaphore/internal/reach"
)

// leaveGone removes a cluster that no longer exists from the settings of others.
func leaveGone(ctx context.Context, s *cli.Session, gone string, names []string, forced bool) error {
	if _, err := cluster.ParseName(gone); err != nil {
		return cli.Usage(fmt.Errorf("--gone: %w", err))
	}
	if slices.Contains(names, gone) {
		return cli.Usage(fmt.Errorf("--gone %s: the arguments must be the other clusters", gone))
	}
	clusters, err := s.ClustersBut(gone, names)
	if err != nil {
		return err
	}
	s.Say("checking %s", strings.Join(names, ", "))
	a := newInstallation(ctx, s, clusters, Options{})
	if err := a.mayLeave(ctx); err != nil {
		return err
	}
	if !forced {
		if err := a.confirmGone(ctx, gone); err != nil {
			return cli.Hint(err, "nothing was changed; to remove it nevertheless: "+s.Again()+" --force")
		}
	}
	name := cluster.Name(gone)
	if err := a.separate(ctx, func(*inspect.Facts) ([]cluster.Name, bool) { return []cluster.Name{name}, false }); err != nil {
		return err
	}
	if slices.ContainsFunc(a.facts, func(f *inspect.Facts) bool { return slices.Contains(f.Installed.Settings.Remotes(), name) }) {
		s.Say("%s itself is unchanged: should it exist again, uninstall it: %s", gone, s.Line("leave", "--alone", gone))
	}
	return nil
}

// confirmGone returns an error unless neither this machine, if it has a context for the
// cluster, nor the nodes of the others reach the API server of a cluster.
func (a *installation) confirmGone(ctx context.Context, gone string) error {
	if c, err := a.Cluster(gone); err == nil {
		limited, cancel := context.WithTimeout(ctx, answerLimit)
		_, err := discovery.ToServerVersionInterfaceWithContext(c.Client.Discovery()).ServerVersionWithContext(limited)
		cancel()
		if _, status := errors.AsType[*apierrors.StatusError](err); err == nil || status {
			return fmt.Errorf("%s isn't gone: its API server at %s answers; separate it with %s", gone, c.Server, a.Line("leave", gone))
		}
	}
	a.Say("checking from nodes of %s that %s is gone, with temporary pods in %s", names(a.clusters), gone, probe.Namespace)
	defer a.sweep(ctx)
	return a.each(func(i int, c *cli.Cluster) error { return a.unreached(ctx, c, a.facts[i], gone) })
}

const answerLimit = 10 * time.Second

// unreached returns an error unless nodes of a cluster have tried to reach the API server of
// another one, and none has.
func (a *installation) unreached(ctx context.Context, c *cli.Cluster, f *inspect.Facts, gone string) error {
	name := cluster.Name(gone)
	server := f.Installed.Settings[name.Variables()+"_API_URL"]
	if !slices.Contains(f.Installed.Settings.Remotes(), name) {
		of := a.releases[f.Name].remote(name)
		if of == nil {
			return nil // It will stay as it is.
		}
		server, _ = of["apiURL"].(string) // of a join that has failed
	}
	if server == "" {
		return fmt.Errorf("%s: it reads %s with a kubeconfig, whose server can't be checked", c.Name, gone)
	}
	ca, err := authorityOf(ctx, c, gone)
	if err != nil {
		return fmt.Errorf("%s: whether it reaches %s can't be checked: %w", c.Name, gone, err)
	}
	found, failed := probe.Ask(ctx, c, f.Nodes, f.Installed.Image, reach.Request{
		Servers: []reach.Server{{URLs: []string{server}, CA: ca, Proxy: f.Installed.Settings[name.Variables()+inspect.ProxyURL]}},
		Proxy:   f.Installed.Settings["HTTPS_PROXY"], NoProxy: f.Installed.Settings["NO_PROXY"],
	})
	for _, node := range slices.Sorted(maps.Keys(found)) {
		why, tried := found[node].Servers[server]
		if !tried || strings.Contains(why, "x509: ") || strings.Contains(why, "tls: ") {
			return fmt.Errorf("%s: whether it reaches %s can't be checked from node %s: %s", c.Name, gone, node, cmp.Or(why, "no result"))
		}
		if why == "" {
			return fmt.Errorf("%s isn't gone: node %s of %s reaches its API server at %s; separate it with %s", gone, node, c.Name, server, a.Line("leave", gone))
		}
	}
	if len(found) > 0 {
		return nil
	}
	for _, node := range slices.Sorted(maps.Keys(failed)) {
		return fmt.Errorf("%s: whether it reaches %s can't be checked: a temporary pod on node %s failed: %w", c.Name, gone, node, failed[node])
	}
	return fmt.Errorf("%s: whether it reaches %s can't be checked: none of its nodes is ready", c.Name, gone)
}

// authorityOf returns the CA with which a cluster's programs verify a remote.
func authorityOf(ctx context.Context, c *cli.Cluster, remote string) (string, error) {
	for _, tool := range manifests.Tools() {
		found, err := c.Client.CoreV1().Secrets(cli.Namespace).Get(ctx, "semaphore-"+manifests.Account(tool)+"-remotes", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return "", err
		}
		if err == nil && len(found.Data[remote+".ca.crt"]) > 0 {
			return inspect.Certificates(found.Data[remote+".ca.crt"])
		}
	}
	return "", errors.New("its Secrets have no CA of that cluster")
}
