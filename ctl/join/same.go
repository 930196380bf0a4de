package join

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
)

// duplicates returns a fault for each cluster that has the UID of an earlier one.
func duplicates(clusters []*cli.Cluster, all []*inspect.Facts) []fault {
	var faults []fault
	for i, f := range all {
		for j, before := range all[:i] {
			if f.UID == "" || f.UID != before.UID {
				continue
			}
			faults = append(faults, fault{cluster: before.Name + ", " + f.Name,
				what: fmt.Sprintf("the contexts %s (%s) and %s (%s) are of the same cluster: its namespace kube-system has the UID %s in both",
					clusters[j].Context, clusters[j].Server, clusters[i].Context, clusters[i].Server, f.UID),
				remedy: "select the context of the other cluster with --context " + f.Name + "=<context>; of entries of equal names in several kubeconfigs the first one is used"})
			break
		}
	}
	return faults
}

// stopped returns an error if the command was interrupted or has timed out. Then the facts
// are incomplete, and faults computed from them may be wrong.
func (a *installation) stopped(ctx context.Context) error {
	cause := context.Cause(ctx)
	if cause == nil {
		return nil
	}
	var errs []error
	for _, f := range a.facts {
		if f.Version != "" || slices.ContainsFunc(f.Unread, func(err error) bool { return errors.Is(err, context.Canceled) }) {
			continue
		}
		for _, fault := range unread(f) {
			errs = append(errs, errors.New(fault.String()))
		}
	}
	return cli.Hint(errors.Join(append(errs, cause)...), "nothing was changed")
}
