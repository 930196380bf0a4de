package handover

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/cli"
	"github.com/kube-semaphore/kube-semaphore/cmd/semaphorectl/facts"
)

// named is an error unless each cluster is asked for by the name that it is installed with:
// tokens of another one would be handed over in its name.
func named(ctx context.Context, clusters []*cli.Cluster) error {
	var errs []error
	for _, c := range clusters {
		installed, err := facts.ReadInstalled(ctx, c)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: read what is installed, to see that it is this cluster: %w", c.Name, err))
		} else if name := installed.Misnamed(c.Name); name != "" {
			errs = append(errs, fmt.Errorf("%s: it is installed as cluster %s: see that its context is that of the cluster that you mean", c.Name, name))
		}
	}
	return errors.Join(errs...)
}

// Command is "semaphorectl tokens".
func Command(s *cli.Session) *cobra.Command {
	var revoke bool
	var only []string
	cmd := &cobra.Command{
		Use:   "tokens CLUSTER CLUSTER...",
		Short: "Hand joined clusters new tokens for each other",
		Long: `Hands each of the clusters tokens for reading the others: one for each tool, which may
read what that tool reads and nothing else. They last 30 days; semaphore-tokens renews
them in the clusters from then on.

With --revoke all tokens that were handed over before, and what they were renewed to,
end first. That takes half a minute: new ones are made when no API server accepts those
before any longer. Interrupted, the next run goes on.`,
		Example: `  semaphorectl tokens aws gcp
  semaphorectl tokens --revoke aws gcp
  semaphorectl tokens --revoke --from gcp aws gcp
  semaphorectl tokens --context aws=prod-eu aws gcp`,
		Args:              cobra.MinimumNArgs(2),
		ValidArgsFunction: s.CompleteClusters,
		RunE: func(cmd *cobra.Command, names []string) error {
			ctx, cancel := s.Context(cmd.Context())
			defer cancel()
			for _, name := range only {
				if !slices.Contains(names, name) {
					return cli.Usage(fmt.Errorf("--from %s: no cluster %s is asked for", name, name))
				}
			}
			clusters, err := s.Clusters(names)
			if err != nil {
				return err
			}
			if err := named(ctx, clusters); err != nil {
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
			if revoke {
				if err := Revoke(ctx, s, pairs); err != nil {
					return err
				}
			}
			var errs []error
			for _, p := range pairs {
				tools, none, err := Hand(ctx, s, p.From, p.To, All)
				if err != nil {
					errs = append(errs, err)
					continue
				}
				for _, tool := range none {
					s.Warn("%s: no Secret %s, so %s gets nothing for %s", p.From.Name, account(tool, p.To.Name), p.To.Name, tool)
				}
				s.Done("%s has new tokens for %s: %s", p.To.Name, p.From.Name, strings.Join(tools, ", "))
			}
			return errors.Join(errs...)
		},
	}
	cmd.Flags().BoolVar(&revoke, "revoke", false, "take back all tokens that were handed over before")
	cmd.Flags().StringSliceVar(&only, "from", nil, "hand over tokens of these clusters only (default: of all)")
	return cmd
}
