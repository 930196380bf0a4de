package handover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/ctl/cli"
	"github.com/kube-semaphore/kube-semaphore/ctl/inspect"
	"github.com/kube-semaphore/kube-semaphore/ctl/manifests"
)

// toolsOf returns the tools of each cluster, and an error unless its name is that of its
// installation: otherwise tokens of a wrong cluster would be handed over.
func toolsOf(ctx context.Context, clusters []*cli.Cluster) (map[string][]string, error) {
	tools := map[string][]string{}
	var errs []error
	for _, c := range inspect.Collect(ctx, clusters, inspect.Programs) {
		if err := c.Unread(); err != nil {
			errs = append(errs, fmt.Errorf("%s: to check the cluster's name: %w", c.Name, err))
		} else if name := c.Misnamed(); name != "" {
			errs = append(errs, fmt.Errorf("%s: it is installed as cluster %s: check that its kubeconfig context is that of the intended cluster", c.Name, name))
		}
		if tools[c.Name] = inspect.Tools(c.Workloads.Value); len(tools[c.Name]) == 0 { // They may be installed after this.
			tools[c.Name] = manifests.Tools()
		}
	}
	return tools, errors.Join(errs...)
}

// Command is "semaphorectl tokens".
func Command(s *cli.Session) *cobra.Command {
	var revoke bool
	var only []string
	cmd := &cobra.Command{
		Use:   "tokens CLUSTER CLUSTER...",
		Short: "Hand over new tokens between joined clusters",
		Long: `Hands over tokens with which each of the clusters reads the others: one for each tool, with
the rights of that tool, and waits until the tools use them. They are valid for 30 days, and
semaphore-tokens renews them in the clusters.

With --revoke all earlier tokens and their renewals are revoked first. This takes half a
minute: new tokens are issued when no API server accepts the earlier ones any more. After
an interruption the next run continues.`,
		Example: `  semaphorectl tokens aws gcp
  semaphorectl tokens --revoke aws gcp
  semaphorectl tokens --revoke --from gcp aws gcp
  semaphorectl tokens --context aws=prod-eu aws gcp`,
		Args: cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, cancel := s.Context(cmd.Context())
			defer cancel()
			for _, name := range only {
				if !slices.Contains(names, name) {
					return cli.Usage(fmt.Errorf("--from %s: cluster %s isn't among the arguments", name, name))
				}
			}
			clusters, err := s.Clusters(names)
			if err != nil {
				return err
			}
			installed, err := toolsOf(ctx, clusters)
			if err != nil {
				return err
			}
			var pairs []Pair
			for _, from := range clusters {
				for _, to := range clusters {
					if from != to && (len(only) == 0 || slices.Contains(only, from.Name)) {
						pairs = append(pairs, Pair{from, to})
					}
				}
			}
			first := Restore
			if revoke {
				first = Revoke
			}
			if err := first(ctx, s, pairs); err != nil {
				return err
			}
			var errs []error
			handed := map[*cli.Cluster]map[string][]string{}
			for _, p := range pairs {
				tools, none, err := Hand(ctx, p.From, p.To, installed[p.To.Name], All)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				for _, tool := range none {
					s.Warn("%s: the Secret %s is missing, so %s gets no token for %s", p.From.Name, account(tool, p.To.Name), p.To.Name, tool)
				}
				if handed[p.To] == nil {
					handed[p.To] = map[string][]string{}
				}
				handed[p.To][p.From.Name] = tools
				s.Done("%s has new tokens for %s: %s", p.To.Name, p.From.Name, strings.Join(tools, ", "))
			}
			for _, to := range clusters {
				if len(handed[to]) > 0 {
					errs = append(errs, Await(ctx, s, to, handed[to]))
				}
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&revoke, "revoke", false, "revoke all earlier tokens first")
	cmd.Flags().StringSliceVar(&only, "from", nil, "hand over only tokens of these clusters (default: all)")
	return cmd
}
