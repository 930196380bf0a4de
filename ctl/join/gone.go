package join

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
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
