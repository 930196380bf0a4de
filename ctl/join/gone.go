package join

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/handover"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/internal/cluster"
)

// leaveGone removes a cluster from the settings of others. It makes no request to that cluster.
func leaveGone(ctx context.Context, s *cli.Session, gone string, names []string) error {
	if _, err := cluster.ParseName(gone); err != nil {
		return cli.Usage(fmt.Errorf("--gone: %w", err))
	}
	if slices.Contains(names, gone) {
		return cli.Usage(fmt.Errorf("--gone %s: the arguments must be the other clusters", gone))
	}
	clusters, err := s.Clusters(names)
	if err != nil {
		return err
	}
	s.Say("checking %s", strings.Join(names, ", "))
	a := newInstallation(ctx, s, clusters, Options{})
	a.gone = true
	if err := a.mayLeave(ctx); err != nil {
		return err
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

// shut deletes the accounts of clusters that are gone, whose tokens may be in anyone's hands: before all
// else, because programs may take long to end, and once more when Helm no longer creates them again.
func (a *installation) shut(ctx context.Context, c *cli.Cluster, gone []cluster.Name) error {
	if !a.gone {
		return nil
	}
	var errs []error
	for _, remote := range gone {
		errs = append(errs, handover.Shut(ctx, c, string(remote)))
	}
	return errors.Join(errs...)
}
